"""The inline engine: runs all stages in the calling process, in order, without transport.

It serves pdb, notebooks, systems other than Linux, and the tests as their oracle: every other engine must yield what it
yields. It uses the same stages, chains and order points as the workers; only the hops are function calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, Self

from stagepipe.core import Cursor, Key, RunError, SourceIdentity, advise_in, name_error_type, with_error_type
from stagepipe.engine.item_rate import RateEstimator
from stagepipe.plan import Plan, ProcessPlan, ProcessRole
from stagepipe.report import Progress
from stagepipe.runtime import (
    Box,
    Cardinality,
    DeadLetterStore,
    DeadLetterWriter,
    IsolatedGenerators,
    ItemHeader,
    OrderedGrouping,
    Route,
    SourceReader,
    SourceRunner,
    StageChain,
    StageError,
    StageRunner,
    count_outputs,
    format_error,
    format_key,
    format_user_traceback,
    make_private_stage_region,
)

DeadLetterCallback = Callable[[StageRunner, Key, StageError, bytes], None]


class _InlineOutput:
    """The end of the chain: holds the items that are ready to be yielded, as (value, samples)."""

    def __init__(self, on_dead_letter: DeadLetterCallback) -> None:
        self.ready_items: deque[tuple[Any, int]] = deque()
        self.on_dead_letter = on_dead_letter

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        del key, meta
        self.ready_items.append((box.pop(), samples))

    def send_tombstone(self, key: Key, samples: int, meta: bytes) -> None:
        pass

    def send_skip(self, stage: StageRunner, key: Key, error: StageError | None, header: ItemHeader) -> None:
        if error is not None:
            self.on_dead_letter(stage, key, error, header[1])

    def send_close(self, key: Key, part_count: int, meta: bytes) -> None:
        pass

    def finish_epoch(self) -> None:
        pass

    def start_epoch(self, epoch: int) -> None:
        del epoch
        self.ready_items.clear()  # an epoch that was broken off may have left some


class _InlineStageProcess(_InlineOutput):
    """A stage process as a function call. With `batch`, it buffers items until the batch is full."""

    def __init__(self, stages: list[StageRunner], downstream: _InlineOutput) -> None:
        super().__init__(downstream.on_dead_letter)
        self._stages = stages
        self._chain = StageChain(stages, downstream)
        self._downstream = downstream
        self._batch = stages[0].plan.batch if stages else None
        self._buffered_items: list[tuple[Key, Any, ItemHeader]] = []
        self._passing_keys: set[Key] = set()
        """Of the buffered items, those that pass the stage by: they keep their place among the others."""

    def start_epoch(self, epoch: int) -> None:
        self._buffered_items.clear()
        self._passing_keys.clear()
        for stage in self._stages:
            stage.start_epoch(epoch)
        self._downstream.start_epoch(epoch)

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        if self._batch is None:
            self._chain.push(key, box, samples, meta)
            return
        route = self._chain.choose_route(key, box[0], (samples, meta))
        if route is Route.FAILED:
            return
        if route is Route.AROUND:
            self._passing_keys.add(key)
        self._buffered_items.append((key, box.pop(), (samples, meta)))
        called_count = len(self._buffered_items) - len(self._passing_keys)
        if called_count in {0, self._batch.size}:
            self._run_batch()

    def _run_batch(self) -> None:
        buffered, passing_keys = self._buffered_items, self._passing_keys
        self._buffered_items = []
        self._passing_keys = set()
        if buffered:
            self._chain.push_batch(
                [key for key, _, _ in buffered],
                [value for key, value, _ in buffered if key not in passing_keys],
                [header for _, _, header in buffered],
                {key: value for key, value, _ in buffered if key in passing_keys},
            )

    def finish_epoch(self) -> None:
        self._run_batch()
        self._downstream.finish_epoch()


class _InlineOrderPoint(_InlineOutput):
    """An order point as a function call. Leaves arrive in order, and nothing is resumed from its cursors."""

    def __init__(self, stages: list[StageRunner], downstream: _InlineOutput, input_segment: int) -> None:
        super().__init__(downstream.on_dead_letter)
        self._stages = stages
        self._grouping = OrderedGrouping(stages[0], input_segment)
        self._chain = StageChain(stages[1:], downstream)
        self._downstream = downstream

    def start_epoch(self, epoch: int) -> None:
        self._grouping.seek(Cursor(), 0)
        for stage in self._stages:
            stage.start_epoch(epoch)
        self._downstream.start_epoch(epoch)

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        self._grouping.add_item(key, box, samples, meta)
        self._push_outputs()

    def _push_outputs(self) -> None:
        while self._grouping.pending_outputs:
            number, box, samples, meta = self._grouping.pending_outputs.popleft()
            self._chain.push((number,), box, samples, meta)

    def finish_epoch(self) -> None:
        self._grouping.finish_segment()
        self._push_outputs()
        self._downstream.finish_epoch()


class InlineRun:
    """A run in the calling process, with the interface of `LocalRun`."""

    def __init__(self, plan: Plan) -> None:
        """Build all stages. Raises RunError if a stage cannot be built."""
        self.plan = plan
        self._started_ns = perf_counter_ns()
        self._items_read = 0
        self.dead_letters = DeadLetterStore(plan, lambda: self._items_read)
        self._dead_letter_writer = DeadLetterWriter(
            process_index=0,
            worker=0,
            first_stage_name=plan.processes[0].name,
            shard=plan.shard,
            any_order=False,
        )
        self._output = _InlineOutput(self._store_dead_letter)
        is_reseeded = all(stage.reseed for process in plan.processes for stage in process.stages)
        self._generators = IsolatedGenerators(is_reseeded=is_reseeded)
        self.items_yielded = 0
        self.samples_yielded = 0
        downstream: _InlineOutput = self._output
        self._cardinalities: list[Cardinality] = []
        for process in reversed(plan.processes[1:]):
            stages = self._build_stages(process)
            self._cardinalities = [*(stage.cardinality for stage in stages), *self._cardinalities]
            if process.role is ProcessRole.ORDER_POINT:
                downstream = _InlineOrderPoint(stages, downstream, process.input_segment)
            else:
                downstream = _InlineStageProcess(stages, downstream)
        source, *fused_stages = self._build_stages(plan.processes[0])
        self._cardinalities = [*(stage.cardinality for stage in fused_stages), *self._cardinalities]
        self._source_stages = [source, *fused_stages]
        self._downstream = downstream
        self._source_reader = SourceReader(source.target, plan.seed, plan.limit, plan.shard)
        with self._generators.swap_in():
            self._source_identity = self._source_reader.identify()
        self._source_runner = SourceRunner(self._source_reader, self._source_stages, downstream)
        self._samples_rate = RateEstimator()
        self._items_rate = RateEstimator()

    def _build_stages(self, process: ProcessPlan) -> list[StageRunner]:
        plan = self.plan
        stages: list[StageRunner] = []
        for stage in process.stages:
            shard = plan.shard.for_segment(process.output_segment if stages else process.input_segment)
            try:
                with self._generators.swap_in():
                    stages.append(StageRunner(stage, 0, plan.seed, plan.config_dir, make_private_stage_region(), shard))
            except (Exception, SystemExit) as error:
                message = f"stage {stage.name}, worker 0: cannot be built: {format_error(error)}"
                run_error = RunError(message, stage=stage.name, worker=0, trace=format_user_traceback(error))
                raise with_error_type(run_error, name_error_type(error)) from error
        return stages

    def iter_epoch(self, epoch: int) -> Iterator[Any]:
        """Yield the items of an epoch, in order. Raises RunError if a stage fails."""
        steps = self._iter_steps(epoch)
        while self._advance(steps):
            yield from self._pop_ready_items()

    def _advance(self, steps: Iterator[None]) -> bool:
        """Step until items are ready; False at the end of the epoch. Outside, the caller's generators are untouched."""
        try:
            with self._generators.swap_in():
                return any(self._output.ready_items for _ in steps)
        except StageError as error:
            item = format_key(error.key)
            run_error = RunError(error.describe(worker=0), stage=error.stage, worker=0, item=item, trace=error.trace)
            raise with_error_type(run_error, name_error_type(error.cause)) from error.cause

    def _iter_steps(self, epoch: int) -> Iterator[None]:
        for stage in self._source_stages:
            stage.start_epoch(epoch)
        self._downstream.start_epoch(epoch)
        self.dead_letters.apply_seek(0, epoch, [Cursor()] * len(self.plan.segments), ())
        self._source_runner.seek(epoch, 0)
        item_number = 0
        while self._step(item_number):
            item_number += 1
            self._items_read += 1
            yield
        with advise_in(self.plan.syntax):
            self._downstream.finish_epoch()
        yield
        self.dead_letters.enforce_limit()

    def _step(self, item_number: int) -> bool:
        with advise_in(self.plan.syntax):  # not around a `yield`: the caller may run another pipeline meanwhile
            return self._source_runner.step(item_number)

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

    def _pop_ready_items(self) -> Iterator[Any]:
        while self._output.ready_items:
            value, samples = self._output.ready_items.popleft()
            self.items_yielded += 1
            self.samples_yielded += samples
            yield value

    def progress(self) -> Progress:
        """Return the progress of the run."""
        now_ns = perf_counter_ns()
        return Progress(
            elapsed_ns=now_ns - self._started_ns,
            items_in=self._items_read,
            items_done=self._items_read,
            items_total=self._source_reader.epoch_items,
            items_out=self.items_yielded,
            samples_out=self.samples_yielded,
            samples_per_s=self._samples_rate.update(now_ns, self.samples_yielded),
            starting=(),
            busiest="",
            items_per_s=self._items_rate.update(now_ns, self._items_read),
        )

    def close(self) -> None:
        """Do nothing: an inline run has no processes."""

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""
