"""The recovery coordinator: death -> decision -> seek -> all processes have entered. In the caller's process.

It alone decides how a run continues, and one lock guards what it knows. The supervisor's thread reports what happened:
a death, a stall, an error, an item that does not fit into shared memory. That becomes the pending interrupt, which ends
the consumer's wait. A seek can be named only once the consumer has stopped and knows the cursor of its last item, so
the rest happens on the consumer's thread: it notices (`is_interrupted`), asks what to do (`resolve_interrupt`), answers
with its cursor and enters the new generation (`begin_generation`). Last, every process reports that it has entered the
era (`record_era_entry`), and the memory that a dead worker held is given back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns, sleep

from msgspec.structs import replace as replace_fields

from stagepipe.core import Cursor, RunError, split_by_segment
from stagepipe.plan import Plan
from stagepipe.runtime.dead_letters import DeadLetterStore
from stagepipe.runtime.flow import SegmentWindows
from stagepipe.runtime.protocol import ArenaFullEvent, FailureEvent, Seek, StreamStateEvent, make_run_error
from stagepipe.runtime.supervisor.arena_eras import ArenaEras
from stagepipe.runtime.supervisor.arena_full_policy import ArenaFullDecision, ArenaFullPolicy
from stagepipe.runtime.supervisor.memory_pressure import make_arena_full_error
from stagepipe.runtime.supervisor.restart_policy import FailDecision
from stagepipe.runtime.supervisor.restarts import Restarts, WorkerRestart
from stagepipe.runtime.supervisor.run_resources import RunResources
from stagepipe.runtime.supervisor.seek_publisher import SeekPublisher
from stagepipe.runtime.supervisor.stalls import Stall
from stagepipe.runtime.supervisor.stream_states import StreamStates
from stagepipe.runtime.supervisor.worker_deaths import WorkerDeaths
from stagepipe.runtime.supervisor.worker_process import WorkerProcess
from stagepipe.timing import ProcessCounter, ProcessState
from stagepipe.transport import LeaseExtent

_MAX_STALL_RECOVERIES = 2
"""How many times in a row a stalled run is restarted from the last delivered item before it fails."""
_ARENA_FULL_SETTLE_S = 0.15
"""Workers publish their held bytes every 100 ms (`_FLUSH_INTERVAL_NS`): after this wait all of them are current."""
_log = logging.getLogger("stagepipe")


@dataclass(frozen=True)
class RunFailure:
    """The error that the iterating caller gets.

    `generation`: the seek after this one clears it; 0: the run has failed for good.
    """

    error: RunError
    generation: int = 0


@dataclass(frozen=True)
class SeekNeeded:
    """The items in flight are lost or stuck: the consumer must seek to its cursor. `reason` is for people."""

    reason: str


Interrupt = RunFailure | SeekNeeded | ArenaFullEvent
"""Why the consumer must stop waiting for items. A failure outweighs a seek, and a seek makes room in the arenas too."""


class RecoveryCoordinator:
    """Owns the current seek, the pending interrupt, the restarts and the eras of a run. Thread-safe."""

    def __init__(
        self, plan: Plan, resources: RunResources, dead_letters: DeadLetterStore, publisher: SeekPublisher
    ) -> None:
        """No generation has begun yet. Each seek is applied to `dead_letters` and made known by `publisher`."""
        self._plan = plan
        self._resources = resources
        self._dead_letters = dead_letters
        self._publisher = publisher
        self._lock = threading.Lock()
        self._interrupt: Interrupt | None = None
        self._current_seek: Seek | None = None
        self._deaths = WorkerDeaths(plan, resources.board)
        self._arena_full_policy = ArenaFullPolicy(SegmentWindows(plan))
        self._arena_eras = ArenaEras(
            plan.memory_bytes, resources.arena_memfds, resources.board, resources.process_indices
        )
        self._stall_recovery_count = 0
        self._stream_states = StreamStates()
        self.restarts = Restarts()

    # ------------------------------------------------------------------ called by the consumer

    def is_interrupted(self) -> bool:
        """Whether the consumer must stop waiting for items and call `resolve_interrupt`."""
        return self._interrupt is not None

    def resolve_interrupt(self, items_delivered: int) -> bool:
        """Whether the consumer must now seek to its cursor. Raises the RunError of a failure.

        `items_delivered`: by the whole run so far. The consumer has published its held bytes on the board.
        """
        with self._lock:
            if self.failure is not None:
                raise self.failure  # no local holds it: its traceback holds this frame, and the frame all memory
            interrupt = self._interrupt
            if not isinstance(interrupt, ArenaFullEvent):
                return interrupt is not None
            decision = self._arena_full_policy.decide(items_delivered)
        if decision is ArenaFullDecision.FAIL:
            raise make_arena_full_error(interrupt, self._plan, self._resources.board, self._resources.slots)
        if decision is ArenaFullDecision.SETTLE:
            sleep(_ARENA_FULL_SETTLE_S)
        return decision is ArenaFullDecision.SEEK

    def begin_generation(
        self, cursor: Cursor | None, epoch: int, *, rebuild_stateful: bool = True, is_recovery: bool = False
    ) -> Seek:
        """Name `cursor` under a new generation, send it to all ready workers, and return the seek. Does not wait.

        The consumer has stopped, and enters the seek next. `rebuild_stateful`: stages with `stateful: true` are built
        again; False only where the seek follows the natural end of an epoch. `is_recovery`: the iteration goes on.
        """
        cursors = split_by_segment(cursor, len(self._plan.segments))
        with self._lock:
            if not self._has_failed_for_good:
                self._interrupt = None
            if cursors[-1].stream_state is not None:
                self._stream_states.add(epoch, cursors[0].item, cursors[-1].stream_state)
            seek = self._make_seek(cursors, epoch, rebuild_stateful=rebuild_stateful, is_recovery=is_recovery)
            self._current_seek = seek
            self._dead_letters.apply_seek(seek.generation, epoch, cursors, seek.forced_skips)
            self._publisher.publish(seek)
        return seek

    def _make_seek(self, cursors: Sequence[Cursor], epoch: int, *, rebuild_stateful: bool, is_recovery: bool) -> Seek:
        windows = self._arena_full_policy.windows
        return Seek(
            generation=self.generation + 1,
            epoch=epoch,
            cursor=replace_fields(cursors[-1], stream_state=None),
            windows=windows.windows,
            small_item_windows=windows.small_item_windows,
            era=self.era,
            forced_skips=self._deaths.collect_forced_skips(epoch, cursors),
            unbatched_ranges=self._deaths.collect_unbatched_ranges(epoch),
            rebuild_stateful=rebuild_stateful,
            is_recovery=is_recovery,
            stream_state=self._stream_states.find(epoch, cursors[0].item),
        )

    @property
    def awaits_delivery(self) -> bool:
        """Whether the first item of this generation has to be reported by `record_delivery`."""
        return self.restarts.awaits_delivery or self._stall_recovery_count > 0

    def record_delivery(self) -> None:
        """An item was delivered: the run has recovered from the deaths so far, and is not stalled."""
        with self._lock:
            if not isinstance(self._interrupt, SeekNeeded):  # else it is an item from before the seek
                self._stall_recovery_count = 0
                self.restarts.record_delivery()

    def add_consumer_arena(self) -> None:
        """Give the caller's process an arena and a release pipe, so that it can send items to processes of its own."""
        with self._lock:
            self._arena_eras.has_unreported_leases = True
            self._resources.add_consumer_arena(self.era)

    # ------------------------------------------------------------------ called by any thread

    @property
    def generation(self) -> int:
        """The number of the current seek; 0 before the first."""
        return 0 if self._current_seek is None else self._current_seek.generation

    @property
    def era(self) -> int:
        """The number of worker deaths that were followed by a restart."""
        return self._arena_eras.current_era

    @property
    def failure(self) -> RunError | None:
        """The error of the run, or of the current generation."""
        interrupt = self._interrupt
        return interrupt.error if isinstance(interrupt, RunFailure) else None

    @property
    def _has_failed_for_good(self) -> bool:
        return isinstance(self._interrupt, RunFailure) and not self._interrupt.generation

    def fail(self, error: RunError) -> None:
        """End the run with `error`, which the iterating caller gets."""
        with self._lock:
            self._record_failure(RunFailure(error))

    def record_era_entry(self, process_index: int, era: int, leases: list[LeaseExtent]) -> None:
        """A process has entered `era`, with these leases on older blocks."""
        with self._lock:
            if self._arena_eras.record_era_entry(process_index, era, leases):
                self._resources.reclaim_buffers()

    def record_stream_state(self, event: StreamStateEvent) -> None:
        """The source's stream has reported its state."""
        with self._lock:
            if self._current_seek is not None and event.epoch == self._current_seek.epoch:
                self._stream_states.add(event.epoch, event.item, event.state)

    def add_stream_state(self, cursor: Cursor) -> Cursor:
        """Return `cursor`, a cursor of the current epoch, with the nearest state of the source's stream, if any."""
        with self._lock:
            if self._current_seek is None or self._stream_states.is_empty:
                return cursor
            source_item = split_by_segment(cursor, len(self._plan.segments))[0].item
            return replace_fields(cursor, stream_state=self._stream_states.find(self._current_seek.epoch, source_item))

    def forget_failure(self) -> None:
        """Drop the error, whose traceback refers to the run. Call at the very end."""
        self._interrupt = None

    def _record_failure(self, failure: RunFailure) -> None:
        previous = self._interrupt
        if not isinstance(previous, RunFailure):
            self._interrupt = failure
        elif not failure.generation:  # the first error is the cause; keep it over its consequences
            self._interrupt = replace(previous, generation=0)
        self._resources.consumer_wake_event.set()

    def _request_seek(self, reason: str) -> None:
        if not isinstance(self._interrupt, RunFailure):
            self._interrupt = SeekNeeded(reason)
        self._resources.consumer_wake_event.set()

    # ------------------------------------------------------------------ called by the supervisor's thread

    def handle_ready(self, worker: WorkerProcess) -> None:
        """A worker has built its stages: it gets the current seek."""
        with self._lock:
            worker.is_ready = True
            worker.ready_at_ns = perf_counter_ns()
            if self._current_seek is not None:
                self._publisher.send(self._current_seek, worker.slot.process_index)

    def handle_failure(self, event: FailureEvent) -> None:
        """A stage raised, or could not be built (generation 0). An error of an older generation is void."""
        with self._lock:
            if event.generation in {0, self.generation}:
                self._record_failure(RunFailure(make_run_error(event), event.generation))

    def handle_arena_full(self, event: ArenaFullEvent) -> None:
        """An item did not fit into its worker's arena."""
        with self._lock:
            if event.generation == self.generation and not isinstance(self._interrupt, RunFailure | SeekNeeded):
                self._interrupt = event
                self._resources.consumer_wake_event.set()

    def handle_stall(self, stall: Stall) -> None:
        """Nothing moves: a seek drops the items in flight and processes them again. If that did not help, fail."""
        with self._lock:
            self._stall_recovery_count += 1
            if self._stall_recovery_count <= _MAX_STALL_RECOVERIES:
                _log.warning("%s; restarting from the last delivered item", stall.description)
                self.restarts.record_stall(stall)
                self._request_seek(stall.description)
                return
            message = (
                f"{stall.description}; no progress after {_MAX_STALL_RECOVERIES} restarts from the last delivered item"
            )
            self._record_failure(RunFailure(RunError(message)))

    def handle_death(self, worker: WorkerProcess) -> None:
        """A worker has exited: restart it in a new era and ask for a seek, or fail."""
        with self._lock:
            if self._has_failed_for_good:
                return
            death, decision = self._deaths.decide(worker, 0 if self._current_seek is None else self._current_seek.epoch)
            if isinstance(decision, FailDecision):
                error = RunError(
                    decision.message, stage=death.stage.row, worker=death.worker, item=death.item, trace=death.trace
                )
                self._record_failure(RunFailure(error))
                return
            self._begin_era(death.process_index)
            self.restarts.schedule(death, worker.slot, decision.delay_s)
            self._request_seek(death.description)

    def _begin_era(self, dead_process_index: int) -> None:
        board = self._resources.board
        region = board.region(dead_process_index)
        self._arena_eras.begin_era(board.live_bytes() - board.stale_bytes)
        self._arena_eras.forget_process(dead_process_index)
        region.set_current_key(())
        region[ProcessCounter.LIVE_BYTES] = 0
        region[ProcessCounter.PROCESS_STATE] = ProcessState.STARTING

    def take_due_restarts(self) -> list[WorkerRestart]:
        """Remove and return the restarts that are due; none once the run has failed for good."""
        with self._lock:
            due = self.restarts.take_due()  # in any case, or the event loop would not wait any more
            return [] if self._has_failed_for_good else due
