"""The inline engine: runs all stages in the calling process, in order, without transport.

It serves pdb, notebooks and systems other than Linux. It is also the tests' oracle: all engines must yield its items.
It uses the same stages, chains and order points as the workers; only the hops are function calls.
"""

from __future__ import annotations

import contextlib
import sys
from abc import abstractmethod
from collections.abc import Callable, Generator
from functools import partial
from time import perf_counter_ns, process_time_ns
from typing import Any, Final

from stagepipe.core import (
    Cursor,
    Key,
    SourceIdentity,
    UserCode,
    end_forked_child,
    share_datasets,
    this_process,
)
from stagepipe.engine.engines import EngineRun
from stagepipe.engine.inline_hops import (
    DeliveryOutput,
    InlineOrderPoint,
    InlineOutput,
    InlineStageProcess,
    absorb_stages,
    make_build_error,
    make_stage_error,
)
from stagepipe.engine.live_figures import ProgressMeter
from stagepipe.engine.recording import make_inline_record
from stagepipe.plan import Plan, ProcessPlan, ProcessRole, StagePlan
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
    as_only_rank,
    count_outputs,
    make_private_stage_region,
)
from stagepipe.timing import StageRegion

_MAX_ITEMS: Final = 64
"""Number of item numbers that are read together. Each item runs when the caller asks for it."""

_Step = Callable[[], Any]
"""Runs until an item is ready or the step ends. Returns the next step, or None after the last one."""


class CallerRun(EngineRun):
    """A run that executes all stages, or all stages from some process on, in the calling process.

    A subclass sets `_source_reader` and `_source_identity`.
    """

    _source_reader: SourceReader
    _source_identity: SourceIdentity

    def __init__(self, plan: Plan, first: ProcessPlan, index: int, *, any_order: bool) -> None:
        """Dead letters count from process `first`, and are written in the process with this `index`."""
        self.plan = plan
        self._statistics = DeliveryStatistics()
        self._dead_letters = DeadLetterStore(plan, lambda: self.items_in)
        self._letters = DeadLetterWriter(
            process_index=index,
            worker=0,
            first_stage_name=first.first_stage.row,
            shard=plan.shard,
            any_order=any_order,
        )
        self._output = DeliveryOutput(self._store_dead_letter)
        is_reseeded = all(stage.reseed for process in plan.processes for stage in process.stages)
        self._generators = IsolatedGenerators(is_reseeded=is_reseeded)
        self._regions: dict[str, StageRegion] = {}
        """The counters of this process's stages, by stage name, as in `_stages`."""
        self._stages: dict[str, StageRunner] = {}
        self._progress = ProgressMeter()

    @property
    @abstractmethod
    def items_in(self) -> int:
        """The number of items that the source has read."""

    def _build_downstream(self, first: int) -> InlineOutput:
        """Build the processes from index `first` on, the last one first."""
        downstream: InlineOutput = self._output
        for index in reversed(range(first, len(self.plan.processes))):
            downstream = self._build_process(index, downstream)
        return downstream

    def _build_process(self, index: int, downstream: InlineOutput) -> InlineOutput:
        process = self.plan.processes[index]
        stages = self._build_stages(process)
        if process.role is ProcessRole.ORDER_POINT:
            return InlineOrderPoint(stages, downstream, process.input_segment)
        return InlineStageProcess(stages, downstream)

    def _build_stages(self, process: ProcessPlan) -> list[StageRunner]:
        plan = self.plan
        stages: list[StageRunner] = []
        for stage in process.stages:
            shard = plan.shard.for_segment(process.output_segment if stages else process.input_segment)
            region = self._regions[stage.name] = make_private_stage_region()
            try:
                with self._generators.swap_in(), as_only_rank() if stage.group > 1 else contextlib.nullcontext():
                    stages.append(StageRunner(stage, 0, plan.seed, plan.config_dir, region, shard))
            except (Exception, SystemExit) as error:
                raise make_build_error(stage.row, error) from error
            self._stages[stage.name] = stages[-1]
        return stages

    @property
    def dead_letters(self) -> DeadLetterStore:
        """The items that failed and were skipped."""
        return self._dead_letters

    def _store_dead_letter(self, stage: StageRunner, key: Key, error: StageError, meta: bytes) -> None:
        self._add_letter(self._letters.make_letter(stage, key, error, meta, 0))

    def _add_letter(self, letter: Any) -> None:
        self.dead_letters.add(letter)
        limit_error = self.dead_letters.make_limit_error()
        if limit_error is not None:
            raise limit_error

    def get_epoch_length(self) -> int | None:
        """Return the number of items in an epoch, or None if it is unknown."""
        with self._generators.swap_in():  # a sampler may use random numbers for its length
            stages = [stage for process in self.plan.processes for stage in process.stages if stage.index]
            return count_outputs(self._source_reader.declared_items, [self._get_cardinality(each) for each in stages])

    def _get_cardinality(self, stage: StagePlan) -> Cardinality:
        runner = self._stages.get(stage.name)
        if runner is None:  # the stage runs elsewhere
            runner = StageRunner(stage, 0, self.plan.seed, self.plan.config_dir, make_private_stage_region())
            runner.close()
        return runner.cardinality

    def _close_stages(self) -> None:
        for stage in self._stages.values():
            stage.close()

    def wait_for_source(self) -> SourceIdentity:
        """Return the source's identity at the time when it was built."""
        return self._source_identity

    def progress(self, *, detailed: bool = False) -> LiveRun:
        """Return the progress of the run. `detailed` has no effect."""
        del detailed
        return self._progress.take(self._statistics.take_snapshot(), self.items_in, self._source_reader.epoch_items)


class InlineRun(CallerRun):
    """A run in the calling process."""

    @share_datasets()
    def __init__(self, plan: Plan) -> None:
        """Build all stages. Raises RunError if a stage cannot be built."""
        super().__init__(plan, plan.processes[0], 0, any_order=False)
        self._cpu_started_ns = process_time_ns()
        self._cpu_ns: int | None = None
        """CPU time of this process during the run; None until it is closed."""
        self._items_before = 0
        """The items that the source has read in earlier epochs."""
        downstream = self._build_downstream(1)
        source_stages = self._build_stages(plan.processes[0])
        self._source_stages, self._downstream = absorb_stages(source_stages, downstream)
        self._source_reader = SourceReader(self._source_stages[0].target, plan.seed, plan.limit, plan.shard)
        with UserCode("source"), self._generators.swap_in():
            self._source_identity = self._source_reader.identify()
        self._source_runner = SourceRunner(self._source_reader, self._source_stages, self._downstream)

    @property
    def items_in(self) -> int:
        """The number of items that the source has read."""
        return self._items_before + self._source_runner.items_done

    def iter_epoch(self, epoch: int, cursor: Cursor | None = None) -> Generator[Any, None, None]:
        """Yield the items of an epoch, in order. Raises RunError if a stage fails."""
        del cursor
        statistics, ready_items, generators = self._statistics, self._output.ready_items, self._generators
        read_clock = perf_counter_ns  # an unfinished iterator may end with the interpreter, after its globals
        own_pid = this_process.pid
        iteration = statistics.outside_clock.begin_iteration()
        step: _Step | None = partial(self._begin_epoch, epoch)
        try:
            with self.noting_failures(), generators.installed():
                began_ns = read_clock()
                while step is not None:
                    swap = generators.begin()
                    try:
                        step = step()
                        while step is not None and not ready_items:
                            step = step()
                    except StageError as error:
                        raise make_stage_error(error) from error.cause
                    finally:
                        if this_process.pid != own_pid:  # a fork outside the stages' guards: Ctrl-C, epoch start
                            end_forked_child(own_pid, "inline run", sys.exc_info()[1])
                        generators.end(swap)  # the caller's random generators are untouched outside of a step
                        del swap  # it may hold a random generator, which then would not wait for its first use
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

    def _begin_epoch(self, epoch: int) -> _Step:
        for stage in self._source_stages:
            stage.start_epoch(epoch)
        self._downstream.start_epoch(epoch)
        self.dead_letters.apply_seek(0, epoch, [Cursor()] * len(self.plan.segments), ())
        self._items_before = self.items_in
        self._source_runner.seek(epoch, 0)
        return self._run_source

    def _run_source(self) -> _Step:
        return self._run_source if self._source_runner.run(_MAX_ITEMS) else self._finish_epoch

    def _finish_epoch(self) -> _Step:
        self._downstream.finish_epoch()
        return self.dead_letters.enforce_limit

    def make_record(self) -> RunRecord:
        """Return the counts so far; after `close`, those of the whole run."""
        self._source_runner.count_shares()
        for stage in self._stages.values():
            stage.flush()
        return make_inline_record(
            self.plan,
            self._regions,
            self._statistics.take_snapshot(),
            cpu_ns=process_time_ns() - self._cpu_started_ns if self._cpu_ns is None else self._cpu_ns,
            **self.make_run_fields(),
        )

    def close(self) -> None:
        """End the run: close its stages, and stop its clocks."""
        self._close_stages()
        if self._cpu_ns is None:
            self._cpu_ns = process_time_ns() - self._cpu_started_ns
            self._statistics.end()
