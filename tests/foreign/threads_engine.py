"""An engine that stagepipe does not know: `engine: threads` runs each process of a plan as a thread of this process.

It has no part in stagepipe: `register_engine(ThreadsEngine())` is all that a program needs to run configs on it.

A thread takes an item from its queue, calls its stages, and puts what they return into the next thread's queue. The
global random generators are one for all threads, and each stage has its own seed for each item; so one thread at a time
calls stages, and the others receive and send meanwhile. A thread waits for room in the next queue before it takes an
item, never in a call, so no queue grows for ever and no thread waits for the turn of one that waits for room.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import perf_counter_ns, process_time_ns
from typing import Any, ClassVar, Final

from stagepipe.core import Cursor, Key, RunError, SourceIdentity
from stagepipe.engine import Engine, EngineRun, RunRequest
from stagepipe.engine.inline_hops import InlineOrderPoint, InlineOutput, InlineStageProcess
from stagepipe.engine.recording import make_inline_record
from stagepipe.plan import Plan, ProcessPlan, ProcessRole
from stagepipe.report import LiveRun, RunRecord
from stagepipe.runtime import (
    Box,
    DeadLetterStore,
    DeadLetterWriter,
    DeliveryStatistics,
    IsolatedGenerators,
    SourceReader,
    SourceRunner,
    StageError,
    StageRunner,
    count_outputs,
    format_key,
    make_private_stage_region,
)
from stagepipe.spec import Capabilities
from stagepipe.timing import StageRegion

CAPABILITIES: Final = Capabilities(
    calls_objects=True,
    refused_keys={"env": "a thread has the environment of its process", "timeout": "a thread cannot be ended"},
    ignored_keys=("memory_bytes", "window", "preload", "start", "transport"),
    ignored_reason="all threads are in one process",
)
_ROOM: Final = 16
"""Items in a queue from which its sender waits."""
_WAIT_S: Final = 0.2
"""After so long, a waiting thread looks whether the run has ended."""


class ThreadsEngine(Engine):
    """Runs each process of a plan as a thread."""

    name: ClassVar = "threads"
    title: ClassVar = "threads"
    capabilities: ClassVar = CAPABILITIES

    def start(self, request: RunRequest) -> EngineRun:
        """Build the stages. The threads start with each epoch."""
        return ThreadsRun(request.plan)


class _EpochEndedError(Exception):
    """The epoch has ended: the thread has nothing more to do."""


class _Epoch:
    """What the threads of an epoch share: the turn to call stages, the news of a change, and the end."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.changed = threading.Condition()
        self.has_ended = False

    def wait_until(self, is_true: Callable[[], object]) -> None:
        """Wait. Raises _EpochEndedError if the epoch ends meanwhile."""
        with self.changed:
            while not self.has_ended and not is_true():
                self.changed.wait(_WAIT_S)
            if self.has_ended:
                raise _EpochEndedError

    def tell(self) -> None:
        """Wake all who wait."""
        with self.changed:
            self.changed.notify_all()

    def end(self) -> None:
        """Let all threads end."""
        self.has_ended = True
        self.tell()


class _Queue(InlineOutput):
    """The way into a thread, or out of the last one: what is sent here is taken there."""

    def __init__(self, on_dead_letter: Callable[..., None]) -> None:
        super().__init__(on_dead_letter)
        self.epoch = _Epoch()
        self.entries: deque[tuple[Key, Any, int, bytes] | BaseException | None] = deque()

    def put(self, entry: Any) -> None:
        """Add an item, an error, or None: the end of the epoch."""
        self.entries.append(entry)
        self.epoch.tell()

    def take(self) -> Any:
        """Return what came first."""
        self.epoch.wait_until(lambda: self.entries)
        entry = self.entries.popleft()
        self.epoch.tell()
        return entry

    def wait_for_room(self) -> None:
        """Wait until the reader keeps up."""
        self.epoch.wait_until(lambda: len(self.entries) < _ROOM)

    def send_item(self, key: Key, box: Box, samples: int, meta: bytes) -> None:
        """Take an item; the box is left empty."""
        self.put((key, box.pop(), samples, meta))

    def finish_epoch(self) -> None:
        """End the epoch after what is here."""
        self.put(None)

    def begin(self, epoch: _Epoch) -> None:
        """Forget what is left of another epoch."""
        self.epoch = epoch
        self.entries.clear()

    def start_epoch(self, epoch: int) -> None:
        """Do nothing: the stages of the next thread start by themselves."""


class ThreadsRun(EngineRun):
    """A run in threads. The caller draws no random numbers of the global generators while it iterates."""

    def __init__(self, plan: Plan) -> None:
        """Build all stages."""
        self.plan = plan
        self._statistics = DeliveryStatistics()
        self._items_read = 0
        self._letters = DeadLetterStore(plan, lambda: self._items_read)
        self._letter_writer = DeadLetterWriter(
            process_index=0,
            worker=0,
            first_stage_name=plan.processes[0].first_stage.row,
            shard=plan.shard,
            any_order=False,
        )
        is_reseeded = all(stage.reseed for process in plan.processes for stage in process.stages)
        self._generators = IsolatedGenerators(is_reseeded=is_reseeded)
        self._regions: dict[str, StageRegion] = {}
        self._stages: list[StageRunner] = []
        self._queues = [_Queue(self._store_letter) for _ in plan.processes]
        """By process: what it sends to."""
        source, *fused = self._build(plan.processes[0])
        self._reader = SourceReader(source.target, plan.seed, plan.limit, plan.shard)
        self._source = SourceRunner(self._reader, [source, *fused], self._queues[0])
        self._calls: list[InlineOutput] = []
        for process, queue in zip(plan.processes[1:], self._queues[1:], strict=True):
            stages = self._build(process)
            if process.role is ProcessRole.ORDER_POINT:
                self._calls.append(InlineOrderPoint(stages, queue, process.input_segment))
            else:
                self._calls.append(InlineStageProcess(stages, queue))
        self._identity = self._reader.identify()
        self._epoch = _Epoch()
        self._threads: list[threading.Thread] = []
        self._cpu_started_ns = process_time_ns()

    def _build(self, process: ProcessPlan) -> list[StageRunner]:
        stages = []
        for stage in process.stages:
            shard = self.plan.shard.for_segment(process.output_segment if stages else process.input_segment)
            region = self._regions[stage.name] = make_private_stage_region()
            stages.append(StageRunner(stage, 0, self.plan.seed, self.plan.config_dir, region, shard))
        self._stages += stages
        return stages

    def _store_letter(self, stage: StageRunner, key: Key, error: StageError, meta: bytes) -> None:
        self._letters.add(self._letter_writer.make_letter(stage, key, error, meta, 0))
        limit_error = self._letters.make_limit_error()
        if limit_error is not None:
            raise limit_error

    # ------------------------------------------------------------------ the threads

    def _read_source(self, first: _Queue) -> None:
        number, has_more = 0, True
        while has_more:
            first.wait_for_room()
            with self._calling():
                has_more = self._source.step(number)
            number += 1
            self._items_read += has_more
        first.finish_epoch()

    def _call_stages(self, call: InlineOutput, received: _Queue, sent: _Queue) -> None:
        while True:
            sent.wait_for_room()
            entry = received.take()
            with self._calling():
                if entry is None:
                    call.finish_epoch()
                    return
                key, value, samples, meta = entry
                call.send_item(key, [value], samples, meta)

    @contextmanager
    def _calling(self) -> Generator[None, None, None]:
        """Wait for the turn to call stages, and seed and restore the generators around it."""
        with self._epoch.turn:
            swap = self._generators.begin()
            try:
                yield
            finally:
                self._generators.end(swap)

    def _run_thread(self, target: Callable[..., None], *arguments: Any) -> None:
        try:
            target(*arguments)
        except _EpochEndedError:
            return
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._queues[-1].put(error)

    # ------------------------------------------------------------------ what a pipeline asks for

    def iter_epoch(self, epoch: int, cursor: Cursor | None = None) -> Generator[Any, None, None]:
        """Yield the items of an epoch, in order. Raises RunError if a stage fails."""
        del cursor
        self._end_threads()
        iteration = self._statistics.outside_clock.begin_iteration()
        shared = self._start_threads(epoch)
        try:
            with self._generators.installed():
                while True:
                    began_ns = perf_counter_ns()
                    entry = self._queues[-1].take()
                    self._statistics.wait_ns += perf_counter_ns() - began_ns
                    if entry is None:
                        break
                    if isinstance(entry, BaseException):
                        raise self._describe(entry) from entry
                    _, value, samples, _ = entry
                    self._statistics.count_item(samples)
                    began_ns = perf_counter_ns()
                    yield value
                    self._statistics.busy_ns += perf_counter_ns() - began_ns
            self._letters.enforce_limit()
        except RunError as error:
            self._status, self._error_message = "failed", str(error)
            raise
        finally:
            self._statistics.outside_clock.end_iteration(iteration)
            if self._epoch is shared:
                self._end_threads()

    def _start_threads(self, epoch: int) -> _Epoch:
        shared = self._epoch = _Epoch()
        for queue in self._queues:
            queue.begin(shared)
        for stage in self._stages:
            stage.start_epoch(epoch)
        for call in self._calls:
            call.start_epoch(epoch)
        self._letters.apply_seek(0, epoch, [Cursor()] * len(self.plan.segments), ())
        self._source.seek(epoch, 0)
        jobs: list[tuple[Any, ...]] = [(self._read_source, self._queues[0])]
        pairs = zip(self._queues, self._queues[1:], strict=False)
        jobs += [(self._call_stages, call, *pair) for call, pair in zip(self._calls, pairs, strict=True)]
        self._threads = [threading.Thread(target=self._run_thread, args=job, daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()
        return shared

    def _end_threads(self) -> None:
        self._epoch.end()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _describe(self, error: BaseException) -> RunError:
        if isinstance(error, StageError):
            item = format_key(error.key)
            return RunError(error.describe(worker=0), stage=error.stage, worker=0, item=item, trace=error.trace)
        return error if isinstance(error, RunError) else RunError(f"{type(error).__name__}: {error}")

    @property
    def dead_letters(self) -> DeadLetterStore:
        """The items that failed and were skipped."""
        return self._letters

    def get_epoch_length(self) -> int | None:
        """Return the number of items that an epoch yields; None if it is unknown."""
        return count_outputs(self._reader.declared_items, [stage.cardinality for stage in self._stages[1:]])

    def wait_for_source(self) -> SourceIdentity:
        """Return what the source read when it was built."""
        return self._identity

    def progress(self, *, detailed: bool = False) -> LiveRun:
        """Return the figures of the run. It has no details."""
        del detailed
        snapshot = self._statistics.take_snapshot()
        return LiveRun(
            elapsed_ns=snapshot.wall_ns,
            items_in=self._items_read,
            items_done=self._items_read,
            items_total=self._reader.epoch_items,
            items_out=snapshot.items,
            samples_out=snapshot.samples,
        )

    def make_record(self) -> RunRecord:
        """Return what was counted so far."""
        for stage in self._stages:
            stage.flush()
        return make_inline_record(
            self.plan,
            self._regions,
            self._statistics.take_snapshot(),
            cpu_ns=process_time_ns() - self._cpu_started_ns,
            **self.make_run_fields(),
        )

    def close(self) -> None:
        """End the threads."""
        self._end_threads()
        self._statistics.end()
