"""The inline engine: runs all stages in the calling process, in order, without transport.

It serves pdb, notebooks, systems other than Linux, and the tests as their oracle: every other engine must yield what it
yields. It uses the same stages, chains and order points as the workers; only the hops are function calls.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from time import perf_counter_ns, process_time_ns
from typing import Any

from stagepipe.core import (
    Cursor,
    Key,
    SourceIdentity,
    UserCode,
    share_datasets,
)
from stagepipe.engine.engines import EngineRun
from stagepipe.engine.inline_hops import (
    InlineOrderPoint,
    InlineOutput,
    InlineStageProcess,
    make_build_error,
    make_stage_error,
)
from stagepipe.engine.live_figures import ProgressMeter
from stagepipe.engine.recording import make_inline_record
from stagepipe.plan import Plan, ProcessPlan, ProcessRole
from stagepipe.report import LiveRun, RunRecord
from stagepipe.runtime import (
    Cardinality,
    DeadLetterStore,
    DeadLetterWriter,
    DeliveryStatistics,
    IsolatedGenerators,
    SourceReader,
    SourceRunner,
    StageError,
    StageRunner,
    count_outputs,
    make_private_stage_region,
)
from stagepipe.timing import StageRegion


class InlineRun(EngineRun):
    """A run in the calling process."""

    @share_datasets()
    def __init__(self, plan: Plan) -> None:
        """Build all stages. Raises RunError if a stage cannot be built."""
        self.plan = plan
        self._statistics = DeliveryStatistics()
        self._cpu_started_ns = process_time_ns()
        self._cpu_ns: int | None = None
        """CPU time of this process during the run, once it is closed."""
        self._items_read = 0
        self._dead_letters = DeadLetterStore(plan, lambda: self._items_read)
        self._dead_letter_writer = DeadLetterWriter(
            process_index=0,
            worker=0,
            first_stage_name=plan.processes[0].first_stage.row,
            shard=plan.shard,
            any_order=False,
        )
        self._output = InlineOutput(self._store_dead_letter)
        is_reseeded = all(stage.reseed for process in plan.processes for stage in process.stages)
        self._generators = IsolatedGenerators(is_reseeded=is_reseeded)
        self._regions: dict[str, StageRegion] = {}
        self._stages: list[StageRunner] = []
        downstream: InlineOutput = self._output
        self._cardinalities: list[Cardinality] = []
        for process in reversed(plan.processes[1:]):
            stages = self._build_stages(process)
            self._cardinalities = [*(stage.cardinality for stage in stages), *self._cardinalities]
            if process.role is ProcessRole.ORDER_POINT:
                downstream = InlineOrderPoint(stages, downstream, process.input_segment)
            else:
                downstream = InlineStageProcess(stages, downstream)
        source, *fused_stages = self._build_stages(plan.processes[0])
        self._cardinalities = [*(stage.cardinality for stage in fused_stages), *self._cardinalities]
        self._source_stages = [source, *fused_stages]
        self._downstream = downstream
        self._source_reader = SourceReader(source.target, plan.seed, plan.limit, plan.shard)
        with UserCode("source"), self._generators.swap_in():
            self._source_identity = self._source_reader.identify()
        self._source_runner = SourceRunner(self._source_reader, self._source_stages, downstream)
        self._progress = ProgressMeter()

    def _build_stages(self, process: ProcessPlan) -> list[StageRunner]:
        plan = self.plan
        stages: list[StageRunner] = []
        for stage in process.stages:
            shard = plan.shard.for_segment(process.output_segment if stages else process.input_segment)
            region = self._regions[stage.name] = make_private_stage_region()
            try:
                with self._generators.swap_in():
                    stages.append(StageRunner(stage, 0, plan.seed, plan.config_dir, region, shard))
            except (Exception, SystemExit) as error:
                raise make_build_error(stage.row, error) from error
        self._stages += stages
        return stages

    @property
    def dead_letters(self) -> DeadLetterStore:
        """The items that failed and were skipped."""
        return self._dead_letters

    def iter_epoch(self, epoch: int, cursor: Cursor | None = None) -> Generator[Any, None, None]:
        """Yield the items of an epoch, in order. Raises RunError if a stage fails."""
        del cursor
        steps = self._iter_steps(epoch)
        statistics, ready_items = self._statistics, self._output.ready_items
        read_clock = perf_counter_ns  # an iterator that is left over ends with the interpreter, without globals
        iteration = statistics.outside_clock.begin_iteration()
        try:
            with self.noting_failures(), self._generators.installed():
                began_ns = read_clock()
                while self._advance(steps):
                    ready_ns = read_clock()
                    statistics.wait_ns += ready_ns - began_ns
                    try:
                        while ready_items:
                            value, samples = ready_items.popleft()
                            statistics.count_item(samples)
                            yield value
                            del value
                    finally:
                        began_ns = read_clock()
                        statistics.busy_ns += began_ns - ready_ns
        finally:
            statistics.outside_clock.end_iteration(iteration)

    def _advance(self, steps: Iterator[None]) -> bool:
        """Step until items are ready; False at the end of the epoch. Outside, the caller's generators are untouched."""
        swap = self._generators.begin()
        ready_items = self._output.ready_items
        began_ns = perf_counter_ns()
        try:
            with UserCode("inline run"):  # what the stages do not watch themselves: Ctrl-C, the begin of an epoch
                for _ in steps:
                    if ready_items:
                        return True
        except StageError as error:
            raise make_stage_error(error) from error.cause
        finally:
            self._generators.end(swap)
            if not ready_items:
                self._statistics.wait_ns += perf_counter_ns() - began_ns
        return False

    def _iter_steps(self, epoch: int) -> Iterator[None]:
        for stage in self._source_stages:
            stage.start_epoch(epoch)
        self._downstream.start_epoch(epoch)
        self.dead_letters.apply_seek(0, epoch, [Cursor()] * len(self.plan.segments), ())
        self._source_runner.seek(epoch, 0)
        item_number = 0
        while self._source_runner.step(item_number):
            item_number += 1
            self._items_read += 1
            yield
        self._downstream.finish_epoch()
        yield
        self.dead_letters.enforce_limit()

    def _store_dead_letter(self, stage: StageRunner, key: Key, error: StageError, meta: bytes) -> None:
        self.dead_letters.add(self._dead_letter_writer.make_letter(stage, key, error, meta, 0))
        limit_error = self.dead_letters.make_limit_error()
        if limit_error is not None:
            raise limit_error

    def get_epoch_length(self) -> int | None:
        """Return the number of items that an epoch yields; None if it is unknown."""
        with self._generators.swap_in():  # a sampler may draw to tell its length
            return count_outputs(self._source_reader.declared_items, self._cardinalities)

    def wait_for_source(self) -> SourceIdentity:
        """Return what the source read when it was built."""
        return self._source_identity

    def progress(self) -> LiveRun:
        """Return the progress of the run."""
        return self._progress.take(self._statistics.take_snapshot(), self._items_read, self._source_reader.epoch_items)

    def make_record(self) -> RunRecord:
        """Return what was counted so far; once closed, in the whole run."""
        for stage in self._stages:
            stage.flush()
        return make_inline_record(
            self.plan,
            self._regions,
            self._statistics.take_snapshot(),
            cpu_ns=process_time_ns() - self._cpu_started_ns if self._cpu_ns is None else self._cpu_ns,
            **self.make_run_fields(),
        )

    def close(self) -> None:
        """End the run: its clocks stop."""
        if self._cpu_ns is None:
            self._cpu_ns = process_time_ns() - self._cpu_started_ns
            self._statistics.end()
