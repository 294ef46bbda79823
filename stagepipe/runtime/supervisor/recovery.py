"""The recovery coordinator: death -> decision -> seek -> all processes have entered. In the caller's process.

It alone decides how a run continues, and one lock guards what it knows: the classes above it are called with this lock
held. The supervisor's thread reports what happened: a death, a stall, an error, an item that does not fit into shared
memory. That becomes the pending interrupt, which ends the consumer's wait. A seek can be named only once the consumer
has stopped and knows the cursor of its last item, so the rest happens on the consumer's thread: it notices
(`is_interrupted`), asks what to do (`resolve_interrupt`), answers with its cursor and enters the new generation
(`begin_generation`). Last, every process reports that it has entered the era (`record_era_entry`), and the memory that
a dead worker held is given back.

No process knows which blocks a dead worker held, so each death begins a new era: from the next seek on, blocks come
from a fresh range of every arena. A process that enters the era reports its leases on older blocks. When all processes
have entered, the older ranges are punched out except for the reported leases. Those are punched out when a later report
no longer has them. Until then the older ranges count as memory in flight.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns, sleep
from typing import Final

from msgspec.structs import replace as replace_fields

from stagepipe.core import Cursor, Key, RunError, StreamState, split_by_segment
from stagepipe.machine import oom_kill_count
from stagepipe.plan import Plan, ProcessRole
from stagepipe.runtime.dead_letters import DeadLetterStore
from stagepipe.runtime.flow import SegmentWindows
from stagepipe.runtime.protocol import (
    ArenaFullEvent,
    FailureEvent,
    ForcedSkip,
    Seek,
    StreamStateEvent,
    UnbatchedRange,
    encode_message,
    format_item,
    make_run_error,
)
from stagepipe.runtime.supervisor.restart_policy import (
    ArenaFullDecision,
    ArenaFullPolicy,
    FailDecision,
    RestartDecision,
    RestartPolicy,
    WorkerDeath,
)
from stagepipe.runtime.supervisor.watchdog import Stall, make_arena_full_error
from stagepipe.runtime.supervisor.workers import RunResources, WorkerProcess, WorkerSlot
from stagepipe.timing import Board, ProcessCounter, ProcessState
from stagepipe.transport import LeaseExtent, WakeEvent, era_span_bytes, extend_arena_fd, punch_hole

_MAX_STATES: Final = 128
"""At 20 states per second, the last 6 s of reading are kept whole, and what is older more and more sparsely."""


class StreamStates:
    """Finds the newest state of a stream at or before an item.

    >>> states = StreamStates()
    >>> states.add(0, 4, (4, "a")), states.add(0, 9, (9, "b"))
    (None, None)
    >>> states.find(0, 8), states.find(0, 3), states.find(1, 8)
    ((4, 'a'), None, None)
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._items: list[int] = []
        self._states: list[StreamState] = []

    @property
    def is_empty(self) -> bool:
        """Whether no state was reported in the newest epoch that reported any."""
        return not self._items

    def add(self, epoch: int, item: int, state: StreamState) -> None:
        """Add the state before item `item` of this rank. States of an earlier epoch are dropped.

        In an epoch a stream yields the same items each time, so a state stays valid after a seek.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._items.clear()
            self._states.clear()
        index = bisect_right(self._items, item)
        if index and self._items[index - 1] == item:
            return
        self._items.insert(index, item)
        self._states.insert(index, state)
        if len(self._items) > _MAX_STATES:
            del self._items[1:-1:2]
            del self._states[1:-1:2]

    def find(self, epoch: int, item: int) -> StreamState | None:
        """Return the state that is nearest before item `item`; None if there is none."""
        index = bisect_right(self._items, item) if epoch == self._epoch else 0
        return self._states[index - 1] if index else None


class WorkerDeaths:
    """Decides on each death. Knows the items that later seeks skip, and the lists that they take apart."""

    def __init__(self, plan: Plan, board: Board) -> None:
        """`board`: it shows which item a worker was processing."""
        stateful_stage = next(
            (stage.name for process in plan.processes for stage in process.stages if stage.stateful), ""
        )
        self._shard = plan.shard
        self._board = board
        self._restart_policy = RestartPolicy(max_restarts=plan.max_restarts, stateful_stage=stateful_stage)
        self._oom_kill_count = oom_kill_count() or 0
        self._poison_items: dict[tuple[int, str, Key], tuple[str, int]] = {}
        self._unbatched_ranges: set[tuple[int, str, int, int]] = set()

    def decide(self, worker: WorkerProcess, epoch: int) -> tuple[WorkerDeath, RestartDecision | FailDecision]:
        """Decide on the death of `worker`, which has exited."""
        death = self._make_worker_death(worker, epoch)
        decision = self._restart_policy.decide(death)
        if isinstance(decision, RestartDecision):
            self._record_decision(death, decision)
        return death, decision

    def _make_worker_death(self, worker: WorkerProcess, epoch: int) -> WorkerDeath:
        slot = worker.slot
        died_at_ns = perf_counter_ns()
        region = self._board.region(slot.process_index)
        stages = slot.process_plan.stages
        # A worker may still be at an item of an epoch that was left: the item of that number in this one is another.
        key = region.current_key if region[ProcessCounter.CURRENT_EPOCH] == epoch else ()
        stage_index = min(region[ProcessCounter.CURRENT_STAGE], len(stages) - 1) if key else 0
        last_item_plus_one = region[ProcessCounter.LAST_CURRENT_ITEM_PLUS_ONE]
        # Its ready event may not have arrived, so the board counts too.
        was_ready = worker.is_ready or region[ProcessCounter.PROCESS_STATE] != ProcessState.STARTING
        return WorkerDeath(
            stage=stages[stage_index],
            is_order_point=slot.process_plan.role is ProcessRole.ORDER_POINT and not stage_index,
            worker=slot.worker,
            process_index=slot.process_index,
            pid=worker.pid,
            cause=worker.describe_exit(has_oom_kill=self._has_new_oom_kill()),
            died_at_ns=died_at_ns,
            epoch=epoch,
            key=key,
            item=format_item(self._shard, key),
            item_count=max(last_item_plus_one - key[0], 2) if key and last_item_plus_one else 1,
            uptime_ns=died_at_ns - (worker.ready_at_ns or died_at_ns) if was_ready else None,
            is_memory_fault=worker.has_memory_fault,
            was_killed_externally=worker.was_killed_externally,
            trace=worker.read_crash_log(),
        )

    def _has_new_oom_kill(self) -> bool:
        """Whether the kernel's out-of-memory killer has killed a process since the last call."""
        previous_count = self._oom_kill_count
        self._oom_kill_count = oom_kill_count() or 0
        return self._oom_kill_count > previous_count

    def _record_decision(self, death: WorkerDeath, decision: RestartDecision) -> None:
        if decision.poison_kill_count:
            kill_count = decision.poison_kill_count
            subject = "its worker" if kill_count == 1 else f"it killed {kill_count} workers; the last one"
            reason = f"{subject} {death.cause}"
            self._poison_items[death.epoch, death.stage.name, death.key] = reason, kill_count
        if decision.is_unbatching_needed:
            first_item = death.key[0]
            self._unbatched_ranges.add((death.epoch, death.stage.name, first_item, first_item + death.item_count - 1))

    # ------------------------------------------------------------------ what the next seek forces

    def collect_forced_skips(self, epoch: int, cursors: Iterable[Cursor]) -> list[ForcedSkip]:
        """The items that stages skip in this epoch without trying them.

        They are the skips of the cursors, and the items that have killed too many workers.
        """
        cursor_skips = {(stage, key) for cursor in cursors for stage, key in cursor.skips}
        forced_skips = [ForcedSkip(stage, key) for stage, key in sorted(cursor_skips)]
        for (poison_epoch, stage, key), (error, kill_count) in sorted(self._poison_items.items()):
            if poison_epoch == epoch:
                forced_skips.append(ForcedSkip(stage, key, error, kill_count))
        return forced_skips

    def collect_unbatched_ranges(self, epoch: int) -> list[UnbatchedRange]:
        """The items that are processed one by one instead of in batches."""
        return [
            UnbatchedRange(stage, first, last)
            for range_epoch, stage, first, last in sorted(self._unbatched_ranges)
            if range_epoch == epoch
        ]


@dataclass
class WorkerRestart:
    """A death that leads to a restart. `lost_ns`: from the death to the next delivered item; 0 until there is one."""

    death: WorkerDeath
    slot: WorkerSlot
    due_ns: int
    lost_ns: int = 0


@dataclass
class StallRestart:
    """A stall that was ended by a seek; no worker died. `lost_ns`: from its first moment to the next delivered item."""

    stall: Stall
    began_at_ns: int
    lost_ns: int = 0


class Restarts:
    """The restarts of a run, oldest first, and those among them that are not due yet."""

    def __init__(self) -> None:
        self.history: list[WorkerRestart] = []
        self.stalls: list[StallRestart] = []
        self._pending: list[WorkerRestart] = []

    def schedule(self, death: WorkerDeath, slot: WorkerSlot, delay_s: float) -> None:
        """Restart the worker of `slot`, `delay_s` after its death."""
        restart = WorkerRestart(death, slot, death.died_at_ns + int(delay_s * 1e9))
        self.history.append(restart)
        self._pending.append(restart)

    def record_stall(self, stall: Stall) -> None:
        """All processes go on from the last delivered item, to end a stall."""
        self.stalls.append(StallRestart(stall, perf_counter_ns() - stall.stalled_ns))

    def take_due(self) -> list[WorkerRestart]:
        """Remove the restarts that are due from the pending ones, and return them."""
        now_ns = perf_counter_ns()
        due = [restart for restart in self._pending if restart.due_ns <= now_ns]
        self._pending = [restart for restart in self._pending if restart.due_ns > now_ns]
        return due

    def limit_wait_s(self, max_wait_s: float) -> float:
        """`max_wait_s`, or less if a restart is due before."""
        now_ns = perf_counter_ns()
        return max(min([max_wait_s, *((restart.due_ns - now_ns) / 1e9 for restart in self._pending)]), 0.0)

    @property
    def awaits_delivery(self) -> bool:
        """Whether no item has been delivered since the last death."""
        return bool(self.history) and not self.history[-1].lost_ns

    def record_delivery(self) -> None:
        """An item was delivered: the run has recovered from all deaths so far."""
        now_ns = perf_counter_ns()
        for restart in self.history:
            restart.lost_ns = restart.lost_ns or now_ns - restart.death.died_at_ns
        for stall in self.stalls:
            stall.lost_ns = stall.lost_ns or now_ns - stall.began_at_ns


class ArenaEras:
    """The current era, which processes have entered it, and their leases on blocks of older eras."""

    def __init__(
        self, memory_bytes: int, arena_fds: Mapping[int, int], board: Board, process_indices: Iterable[int]
    ) -> None:
        """`arena_fds`: by process index, the memfds that `make_arena_fd` made for `memory_bytes`.

        `process_indices`: the processes that enter eras.
        """
        self.current_era = 0
        self._memory_bytes = memory_bytes
        self._arena_fds = arena_fds
        self._board = board
        self._process_indices = tuple(process_indices)
        self._leases_by_process: dict[int, tuple[int, list[LeaseExtent]]] = {}
        self.has_unreported_leases = False
        """Whether processes outside the run hold blocks without reporting them: then older eras are not punched out."""

    def begin_era(self, live_bytes: int) -> None:
        """Begin an era after a death. `live_bytes`: shared memory in use in the era that ends."""
        self.current_era += 1
        for fd in self._arena_fds.values():
            extend_arena_fd(fd, self._memory_bytes, self.current_era)
        self._board.stale_bytes += live_bytes

    def record_era_entry(self, process_index: int, era: int, leases: list[LeaseExtent]) -> bool:
        """A process has entered `era` with these leases on older blocks.

        Returns whether all processes have entered the current era, so that the unleased rest is punched out.
        """
        self._leases_by_process[process_index] = era, leases
        if any(self._leases_by_process.get(index, (0,))[0] < self.current_era for index in self._process_indices):
            return False
        if self.has_unreported_leases:
            self._board.stale_bytes = 0  # the memory stays in use, but no report will ever release it
            return True
        live_leases = [lease for index in self._process_indices for lease in self._leases_by_process[index][1]]
        self._punch_unleased(live_leases)
        self._board.stale_bytes = sum(nbytes for _, _, nbytes in set(live_leases))
        return True

    def forget_process(self, process_index: int) -> None:
        """Drop the reports of a process that has died."""
        self._leases_by_process.pop(process_index, None)

    def _punch_unleased(self, live_leases: list[LeaseExtent]) -> None:
        end_offset = self.current_era * era_span_bytes(self._memory_bytes)
        for arena, fd in self._arena_fds.items():
            offset = 0
            for _, block, nbytes in sorted(lease for lease in live_leases if lease[0] == arena):
                # Only whole pages are given back: the first and the last page of a lease stay.
                if block > offset:
                    punch_hole(fd, offset, block - offset)
                offset = max(offset, block + nbytes)
            punch_hole(fd, offset, end_offset - offset)


SendCommand = Callable[[int, bytes], None]
"""Sends an encoded command to the worker with this process index."""


class SeekPublisher:
    """Makes a seek known to all ready workers. One that becomes ready later gets it by `send`."""

    def __init__(
        self,
        board: Board,
        wake_events: Mapping[int, WakeEvent],
        workers: Mapping[int, WorkerProcess],
        send_command: SendCommand,
    ) -> None:
        """`wake_events` and `workers` are live mappings, by process index."""
        self._board = board
        self._wake_events = wake_events
        self._workers = workers
        self._send_command = send_command

    def publish(self, seek: Seek) -> None:
        """Begin the seek's generation on the board, and wake all ready workers."""
        encoded_seek = encode_message(seek)
        is_on_board = self._board.publish_seek(seek.generation, encoded_seek)
        self._board.generation = seek.generation
        for process_index, worker in self._workers.items():
            if worker.is_ready and is_on_board:
                # A wake event involves two threads fewer than the control channel.
                self._wake_events[process_index].set()
            elif worker.is_ready:
                self._send_command(process_index, encoded_seek)

    def send(self, seek: Seek, process_index: int) -> None:
        """Send the seek to one worker, which has just become ready."""
        self._send_command(process_index, encode_message(seek))


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
