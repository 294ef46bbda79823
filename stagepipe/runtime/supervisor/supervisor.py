"""The Supervisor of a run: it owns the parts of a run from start to end, and runs a thread.

This is in the caller's process. The thread works while the caller is busy with an item: it passes each event of a
worker to the part that handles it, handles deaths, and makes the checks that are due.

Any thread may queue commands, which wakes the supervisor's thread. Only that thread sends commands and receives events:
a ZeroMQ socket belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import monotonic, perf_counter_ns, sleep
from typing import Final, assert_never

import zmq
from msgspec.structs import replace as replace_fields

from stagepipe.core import Cursor, Key, ReadOnceError, RunError, SourceIdentity, StreamState, split_by_segment
from stagepipe.machine import oom_kill_count
from stagepipe.plan import Plan, ProcessRole
from stagepipe.runtime.attach import AttachListener, describe_run, open_listener
from stagepipe.runtime.dead_letters import DeadLetterStore, make_letter_counters
from stagepipe.runtime.logs import OutputCallback, OutputCollector, forward_output
from stagepipe.runtime.protocol import (
    ArenaFullEvent,
    ControlSocket,
    DeadLetterEvent,
    FailureEvent,
    ItemDigestEvent,
    ProbeSample,
    ReadOnceEvent,
    ReadyEvent,
    Seek,
    StaleLeasesEvent,
    Stop,
    StreamStateEvent,
    WorkerEvent,
    count_outputs,
    decode_event,
    encode_message,
    format_error,
    format_item,
    format_user_traceback,
    make_run_error,
)
from stagepipe.runtime.supervisor.adaptive_transport import AdaptiveTransport
from stagepipe.runtime.supervisor.recovery import (
    Action,
    Answered,
    BeginEra,
    Delivered,
    Event,
    Fail,
    Failed,
    Interrupt,
    PublishSeek,
    Ready,
    Recovery,
    RestartPolicy,
    SendSeek,
    Settle,
    Stall,
    Start,
    Stopped,
    Ticked,
    Wipe,
    WorkerDeath,
)
from stagepipe.runtime.supervisor.scaling import ChangeCause, WorkerChange, WorkerScaling
from stagepipe.runtime.supervisor.watchdog import Watchdog, make_arena_full_error
from stagepipe.runtime.supervisor.workers import RunResources, WorkerPool, WorkerProcess, terminate_workers
from stagepipe.timing import Board, ProcessCounter, ProcessState
from stagepipe.transport import LeaseExtent, WakeEvent

_MAX_EVENTS_PER_READ = 256


class ControlServer:
    """Sends commands to workers by their process index, and receives the workers' events."""

    def __init__(self, exit_stack: contextlib.ExitStack) -> None:
        """Bind the control socket; `exit_stack` closes it."""
        self._control_socket = ControlSocket(exit_stack)
        self.socket = self._control_socket.socket
        self.control_socket_fd = self._control_socket.fd
        self.wake_event = WakeEvent()
        """Ends the wait of the supervisor's thread."""
        exit_stack.callback(self.wake_event.close)
        self._outbox: deque[tuple[int, bytes]] = deque()

    def queue_command(self, process_index: int, encoded_command: bytes) -> None:
        """Queue an encoded command for a worker. From any thread."""
        self._outbox.append((process_index, encoded_command))
        self.wake_event.set()

    def send_queued(self) -> None:
        """Send all queued commands. Drops commands to workers that are gone."""
        while self._outbox:
            process_index, encoded_command = self._outbox.popleft()
            with contextlib.suppress(zmq.Again):
                self.socket.send_multipart((str(process_index).encode(), encoded_command), zmq.NOBLOCK)

    def receive_events(self, timeout_s: float = 0.0) -> Iterator[WorkerEvent]:
        """Yield the events that have arrived, or arrive within `timeout_s`."""
        deadline = monotonic() + timeout_s
        for _ in range(_MAX_EVENTS_PER_READ):  # a flood of events must not starve the supervisor's other work
            if not self.socket.poll(max(int(1000 * (deadline - monotonic())), 0)):
                return
            yield decode_event(self.socket.recv_multipart()[1])


_MAX_STATES: Final = 128
"""At 20 states per second, this keeps all states of the last 6 s, and ever fewer of the older ones."""


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
        """Add the state before item `item` of this rank. Drops the states of earlier epochs.

        Within an epoch a stream yields the same items each time, so a state stays valid after a seek.
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
        """Return the last state at or before item `item`; None if there is none."""
        index = bisect_right(self._items, item) if epoch == self._epoch else 0
        return self._states[index - 1] if index else None


_ARENA_FULL_SETTLE_S = 0.15
"""Workers publish their held bytes every 100 ms (`_FLUSH_INTERVAL_NS`), so after this wait all are current."""
_log = logging.getLogger("stagepipe")


class RecoveryCoordinator:
    """Turns occurrences into events of a Recovery, and executes its actions. Thread-safe.

    One lock guards the machine and the effects of its actions, so that a seek is published before the next event
    counts.
    """

    def __init__(
        self,
        plan: Plan,
        resources: RunResources,
        dead_letters: DeadLetterStore,
        workers: Mapping[int, WorkerProcess],
        send_command: Callable[[int, bytes], None],
    ) -> None:
        """`workers` is a live mapping. `send_command` sends an encoded command. Both use process indexes."""
        self._plan = plan
        self._resources = resources
        self._dead_letters = dead_letters
        self._workers = workers
        self._send_command = send_command
        self._lock = threading.Lock()
        self._stream_states = StreamStates()
        self._oom_kill_count = oom_kill_count() or 0
        stateful_stage = next(
            (stage.name for process in plan.processes for stage in process.stages if stage.stateful), ""
        )
        self._machine = Recovery(
            RestartPolicy(plan.max_restarts, stateful_stage),
            [
                *(slot.process_index for slot in resources.slots if slot.is_filled_at_start),
                resources.consumer_process_index,
            ],
            [segment.window for segment in plan.segments],
            [segment.small_item_window for segment in plan.segments],
        )
        self.restarts = self._machine.restarts
        """The deaths that led to a restart, oldest first."""
        self.stalls = self._machine.stalls
        """The stalls that a seek ended, oldest first."""

    def on(self, event: Event) -> list[Action]:
        """Handle an event and execute its actions. Returns the actions that the calling thread must execute."""
        with self._lock:
            return [action for action in self._machine.on(event) if not self._execute(action)]

    def _execute(self, action: Action) -> bool:
        """Execute an action. Returns False if the calling thread must execute it."""
        match action:
            case Interrupt():
                self._resources.consumer_wake_event.set()
            case BeginEra():
                self._begin_era(action)
            case PublishSeek():
                self._publish(action)
            case SendSeek():
                self._send_command(action.process, encode_message(action.seek))
            case Wipe():
                self._resources.wipe_before(action.era, action.leases)
            case _:
                return False
        return True

    def _begin_era(self, action: BeginEra) -> None:
        board = self._resources.board
        region = board.region(action.dead_process)
        self._resources.begin_era(action.era)
        board.stale_bytes = board.live_bytes()
        region.set_current_key(())
        for slot in region.slots:
            slot.key = ()
        region[ProcessCounter.LIVE_BYTES] = 0
        region[ProcessCounter.PROCESS_STATE] = ProcessState.STARTING

    def _publish(self, action: PublishSeek) -> None:
        seek, board = action.seek, self._resources.board
        self._dead_letters.apply_seek(seek.generation, seek.epoch, action.cursors, seek.forced_skips)
        encoded_seek = encode_message(seek)
        is_on_board = board.publish_seek(seek.generation, encoded_seek)
        board.generation = seek.generation
        for process_index, worker in list(self._workers.items()):  # one that becomes ready later gets the seek then
            if worker.is_ready and is_on_board:
                # A wake event involves two threads fewer than the control channel.
                self._resources.worker_wake_events[process_index].set()
            elif worker.is_ready:
                self._send_command(process_index, encoded_seek)

    # ------------------------------------------------------------------ called by the consumer

    def is_interrupted(self) -> bool:
        """Whether the consumer must stop waiting for items and call `resolve_interrupt`."""
        return self._machine.interrupt is not None

    def resolve_interrupt(self, items_delivered: int) -> bool:
        """Whether the consumer must now seek to its cursor. Raises the RunError of a failure.

        `items_delivered` counts the whole run so far. The consumer must have published its held bytes on the board.
        """
        for action in self.on(Stopped(items_delivered)):
            if isinstance(action, Settle):
                sleep(_ARENA_FULL_SETTLE_S)
                return False
            if isinstance(action, Fail) and action.full_arena is not None:
                board, slots = self._resources.board, self._resources.slots
                raise make_arena_full_error(action.full_arena, self._plan, board, slots)
            if self.failure is not None:
                raise self.failure  # not in a local: the traceback would hold this frame, and the frame all memory
            return True
        return False

    def begin_generation(
        self, cursor: Cursor | None, epoch: int, *, rebuild_stateful: bool = True, is_recovery: bool = False
    ) -> Seek:
        """Publish `cursor` under a new generation to all ready workers, and return the seek. Does not wait.

        The consumer has stopped, and enters the seek next. With `rebuild_stateful`, stages with `stateful: true` are
        rebuilt; False only if the seek follows the natural end of an epoch. With `is_recovery`, the iteration
        continues.
        """
        *earlier, last = split_by_segment(cursor, len(self._plan.segments))
        cursors = [*earlier, replace_fields(last, stream_state=None)]
        with self._lock:
            if last.stream_state is not None:
                self._stream_states.add(epoch, cursors[0].item, last.stream_state)
            stream_state = self._stream_states.find(epoch, cursors[0].item)
        self.on(
            Answered(
                cursors=cursors,
                epoch=epoch,
                rebuild_stateful=rebuild_stateful,
                is_recovery=is_recovery,
                stream_state=stream_state,
            )
        )
        seek = self._machine.seek
        assert seek is not None  # noqa: S101 - only this thread, the consumer's, makes another
        return seek

    @property
    def era(self) -> int:
        """The current era."""
        return self._machine.era

    @property
    def awaits_delivery(self) -> bool:
        """Whether the first item of this generation must be reported by `record_delivery`."""
        return self._machine.awaits_delivery

    def record_delivery(self) -> None:
        """Record a delivered item: the run has recovered from the deaths so far, and is not stalled."""
        self.on(Delivered(perf_counter_ns()))

    def add_consumer_arena(self) -> None:
        """Give the caller's process an arena and a release pipe, so that it can send items to its own processes."""
        with self._lock:
            self._resources.add_consumer_arena(self._machine.era)

    # ------------------------------------------------------------------ called by any thread

    @property
    def failure(self) -> RunError | None:
        """The error of the run, or of the current generation."""
        interrupt = self._machine.interrupt
        return interrupt.error if isinstance(interrupt, Failed) else None

    def fail(self, error: RunError) -> None:
        """End the run with `error`, which the iterating caller gets."""
        self.on(Failed(error))

    def record_era_entry(self, process_index: int, era: int, leases: list[LeaseExtent]) -> None:
        """Record that a process has entered `era`, with these leases on older blocks."""
        self.on(StaleLeasesEvent(process=process_index, era=era, leases=leases))

    def record_stream_state(self, event: StreamStateEvent) -> None:
        """Record the state that the source's stream has reported."""
        with self._lock:
            if self._machine.seek is not None and event.epoch == self._machine.epoch:
                self._stream_states.add(event.epoch, event.item, event.state)

    def add_stream_state(self, cursor: Cursor) -> Cursor:
        """Return `cursor`, which is in the current epoch, with the nearest state of the source's stream, if any."""
        with self._lock:
            if self._machine.seek is None or self._stream_states.is_empty:
                return cursor
            source_item = split_by_segment(cursor, len(self._plan.segments))[0].item
            return replace_fields(cursor, stream_state=self._stream_states.find(self._machine.epoch, source_item))

    def forget_failure(self) -> None:
        """Drop the error, whose traceback refers to the run. Call it at the very end."""
        self._machine.interrupt = None

    # ------------------------------------------------------------------ called by the supervisor's thread

    def handle_ready(self, worker: WorkerProcess) -> None:
        """Send the current seek to a worker that has built its stages."""
        worker.ready_at_ns = perf_counter_ns()
        worker.is_ready = True  # before the event: a concurrent seek must not miss the worker
        self.on(Ready(worker.slot.process_index))

    def handle_stall(self, stall: Stall) -> None:
        """Handle a stalled run: a seek processes the items in flight again. If that did not help, the run fails."""
        self.on(stall)
        if self._machine.interrupt is stall:
            _log.warning("%s; restarting from the last delivered item", stall.description)

    def handle_death(self, worker: WorkerProcess) -> None:
        """Handle the exit of a worker: restart it in a new era and request a seek, or fail."""
        slot = worker.slot
        died_at_ns = perf_counter_ns()
        region = self._resources.board.region(slot.process_index)
        stages = slot.process_plan.stages
        in_progress = [slot.key for slot in region.slots if slot.key]
        key = worker.timed_out_key or (in_progress[0] if in_progress else region.current_key)
        stage_index = min(region[ProcessCounter.CURRENT_STAGE], len(stages) - 1) if key else 0
        last_item_plus_one = region[ProcessCounter.LAST_CURRENT_ITEM_PLUS_ONE]
        suspects = [(key[0], last_item_plus_one - 1)] if key and last_item_plus_one else []
        if len(in_progress) > 1 and not worker.timed_out_key:
            suspects = [(number, number) for number in sorted({each[0] for each in in_progress})]
        # Its ready event may not have arrived, so look at the board too.
        was_ready = worker.is_ready or region[ProcessCounter.PROCESS_STATE] != ProcessState.STARTING
        self.on(
            WorkerDeath(
                stage=stages[stage_index],
                is_order_point=slot.process_plan.role is ProcessRole.ORDER_POINT and not stage_index,
                worker=slot.worker,
                process_index=slot.process_index,
                pid=worker.pid,
                cause=worker.describe_exit(has_oom_kill=self._has_new_oom_kill()),
                died_at_ns=died_at_ns,
                epoch=region[ProcessCounter.CURRENT_EPOCH],
                key=key,
                item=format_item(self._plan.shard, key),
                suspects=suspects,
                uptime_ns=died_at_ns - (worker.ready_at_ns or died_at_ns) if was_ready else None,
                is_memory_fault=worker.has_memory_fault,
                was_killed_externally=worker.was_killed_externally,
                trace=worker.read_crash_log(),
            )
        )

    def _has_new_oom_kill(self) -> bool:
        """Whether the kernel's out-of-memory killer has killed a process since the last call."""
        previous_count = self._oom_kill_count
        self._oom_kill_count = oom_kill_count() or 0
        return self._oom_kill_count > previous_count

    def limit_wait_s(self, max_wait_s: float) -> float:
        """Return `max_wait_s`, or less if a restart is due earlier."""
        due_ns = self._machine.next_start_ns
        return max_wait_s if due_ns is None else max(min(max_wait_s, (due_ns - perf_counter_ns()) / 1e9), 0.0)

    def take_due_starts(self) -> list[Start]:
        """Return the workers that must be restarted now."""
        return [action for action in self.on(Ticked(perf_counter_ns())) if isinstance(action, Start)]


_ERROR_BACKOFF_S = 0.5
"""The pause after an error of the thread itself, so that a repeated error does not spin."""
_THREAD_JOIN_TIMEOUT_S = 5.0
_REAP_TIMEOUT_S = 0.2
_FINAL_EVENTS_TIMEOUT_S = 0.02


class EventLoop:
    """Waits for events, deaths and due checks until `stop`, and handles them. Keeps the events for other modules."""

    def __init__(  # noqa: PLR0917 - the parts of the supervisor that its thread drives
        self,
        control_server: ControlServer,
        worker_pool: WorkerPool,
        recovery: RecoveryCoordinator,
        scaling: WorkerScaling,
        watchdog: Watchdog,
        adaptive_transport: AdaptiveTransport,
        dead_letters: DeadLetterStore,
        attach_listener: AttachListener | None,
    ) -> None:
        """Start the thread. All workers have been started."""
        self._control_server = control_server
        self._worker_pool = worker_pool
        self._recovery = recovery
        self._scaling = scaling
        self._watchdog = watchdog
        self._adaptive_transport = adaptive_transport
        self._dead_letters = dead_letters
        self._attach_listener = attach_listener
        self._attach_fd = -1 if attach_listener is None else attach_listener.fd
        self.ready_events: dict[int, ReadyEvent] = {}
        """The newest event of each worker that has been ready, by process index."""
        self.source_identity: SourceIdentity | None = None
        """The data of the source when it was first built. A successor may find changed files."""
        self.probe_samples: dict[int, list[ProbeSample]] = {}
        """The measurements of a probe run, by process index."""
        self.item_digests: dict[str, dict[Key, ItemDigestEvent]] = {}
        """The digests of a determinism check, by process name and item."""
        self.on_check: list[Callable[[], None]] = []
        """Functions to call several times a second, and with each event."""
        self._poller = zmq.Poller()
        self._workers_by_pidfd: dict[int, WorkerProcess] = {}
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="stagepipe-supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send the queued commands, then end the thread."""
        self._is_ending = True
        self._control_server.wake_event.set()
        self._thread.join(timeout=_THREAD_JOIN_TIMEOUT_S)

    # ------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        self._poller.register(self._control_server.socket, zmq.POLLIN)
        self._poller.register(self._control_server.wake_event.fd, zmq.POLLIN)
        if self._attach_listener is not None:
            self._poller.register(self._attach_fd, zmq.POLLIN)
        for worker in self._worker_pool.workers.values():
            self._watch(worker)
        while not self._is_ending:
            try:
                self._run_once()
            except Exception as error:  # noqa: BLE001 - any error here must end the run, or the caller waits forever
                message = f"the supervisor failed: {format_error(error)}"
                self._recovery.fail(RunError(message, trace=format_user_traceback(error)))
                sleep(_ERROR_BACKOFF_S)

    def _watch(self, worker: WorkerProcess) -> None:
        self._workers_by_pidfd[worker.pidfd] = worker
        self._poller.register(worker.pidfd, zmq.POLLIN)

    def _run_once(self) -> None:
        wait_s = min(self._adaptive_transport.time_to_next_check_s, self._watchdog.time_to_next_check_s)
        ready = dict(self._poller.poll(int(1000 * self._recovery.limit_wait_s(wait_s))))
        self._adaptive_transport.check()
        stall = self._watchdog.check()
        if stall is not None:
            self._recovery.handle_stall(stall)
        if self._control_server.wake_event.fd in ready:
            self._control_server.wake_event.clear()
        for event in self._control_server.receive_events():
            self._handle_event(event)
        for pidfd in ready.keys() & self._workers_by_pidfd.keys():
            self._handle_death(pidfd)
        for start in self._recovery.take_due_starts():
            self._restart(start)
        for worker in self._scaling.step(self._recovery.era):
            self._watch(worker)
        self._control_server.send_queued()
        for function in self.on_check:
            function()
        listener = self._attach_listener
        if listener is not None and self._attach_fd in ready and not listener.serve():
            self._poller.unregister(self._attach_fd)
            self._attach_listener = None

    def _handle_event(self, event: WorkerEvent) -> None:  # noqa: C901 - one case for each event
        match event:
            case ReadyEvent():
                self._handle_ready(event)
            case FailureEvent() if self._scaling.takes_failure(event):
                pass
            case FailureEvent():
                self._recovery.on(Failed(make_run_error(event), event.generation))
            case ArenaFullEvent() | StaleLeasesEvent():
                self._recovery.on(event)
            case StreamStateEvent():
                self._recovery.record_stream_state(event)
            case DeadLetterEvent():
                self._dead_letters.add(event)
                limit_error = self._dead_letters.make_limit_error()
                if limit_error is not None:
                    self._recovery.fail(limit_error)
            case ProbeSample():
                self.probe_samples.setdefault(event.process, []).append(event)
            case ItemDigestEvent():
                self.item_digests.setdefault(event.process, {})[event.key] = event
            case ReadOnceEvent():
                self._recovery.fail(ReadOnceError())
            case _:
                assert_never(event)

    def _handle_ready(self, event: ReadyEvent) -> None:
        worker = self._worker_pool.workers.get(event.process)
        if worker is None or event.incarnation != worker.incarnation:
            return
        self._recovery.handle_ready(worker)
        self._scaling.handle_ready(worker)
        self.ready_events[event.process] = event
        self.source_identity = self.source_identity or event.source
        if self._worker_pool.is_stopping:
            self._control_server.queue_command(event.process, encode_message(Stop()))

    def _handle_death(self, pidfd: int) -> None:
        worker = self._workers_by_pidfd.pop(pidfd)
        self._poller.unregister(pidfd)
        if self._worker_pool.is_stopping:
            return
        worker.wait(_REAP_TIMEOUT_S)
        for event in self._control_server.receive_events(_FINAL_EVENTS_TIMEOUT_S):  # sent before its death
            self._handle_event(event)
        if not self._scaling.takes_exit(worker, self._recovery.era):
            self._recovery.handle_death(worker)
        worker.close()

    def _restart(self, start: Start) -> None:
        slot = self._worker_pool.workers[start.death.process_index].slot
        try:
            worker = self._worker_pool.start_worker(slot, start.era, start.death.died_at_ns)
        except OSError as error:
            stage = slot.process_plan.first_stage.row
            message = f"stage {stage}, worker {slot.worker} died and could not be restarted: {error}"
            self._recovery.fail(RunError(message, stage=stage, worker=slot.worker))
            return
        if worker is not None:
            self._watch(worker)


_READY_POLL_INTERVAL_S = 0.025
_SOURCE_POLL_INTERVAL_S = 0.002


class Supervisor:
    """The processes of a run. `close` ends them all and closes every descriptor."""

    def __init__(self, plan: Plan, on_output: OutputCallback = forward_output, *, is_traced: bool = False) -> None:
        """Start all workers at once. `on_output` gets their output and logs. `is_traced`: each process has a trace.

        Raises OSError if a resource cannot be created or a worker cannot be started.
        """
        self.plan = plan
        self.started_ns = perf_counter_ns()
        """When the start of the run began. The time until the workers run counts too."""
        with contextlib.ExitStack() as exit_stack:
            self.resources = RunResources(plan, is_traced=is_traced)
            exit_stack.callback(self.resources.close)
            worker_indices = [slot.process_index for slot in self.resources.slots]
            self.dead_letters = DeadLetterStore(plan, *make_letter_counters(self.board, worker_indices))
            self.adaptive_transport = AdaptiveTransport(plan, self.board, self.resources.process_indices_by_group)
            self._control_server = ControlServer(exit_stack)
            output_collector = OutputCollector(on_output)
            exit_stack.callback(output_collector.close)
            self._worker_pool = WorkerPool(
                plan, self.resources, self._control_server.control_socket_fd, output_collector
            )
            exit_stack.callback(self._worker_pool.close)
            self.recovery = RecoveryCoordinator(
                plan, self.resources, self.dead_letters, self.workers, self._control_server.queue_command
            )
            self._scaling = WorkerScaling(
                plan, self.resources, self._worker_pool, self.recovery.on, self._control_server.queue_command
            )
            self._worker_pool.start_all()
            self._event_loop = EventLoop(
                self._control_server,
                self._worker_pool,
                self.recovery,
                self._scaling,
                Watchdog(plan, self.board, self.workers),
                self.adaptive_transport,
                self.dead_letters,
                self._open_attach_listener(exit_stack),
            )
            self._exit_stack = exit_stack.pop_all()

    def _open_attach_listener(self, exit_stack: contextlib.ExitStack) -> AttachListener | None:
        if not self.plan.attach or self.plan.is_probe:
            return None
        listener = open_listener(describe_run(self.plan, self.resources.board_layout), self.resources.board_fd)
        if listener is not None:
            exit_stack.callback(listener.close)
        return listener

    def call_regularly(self, function: Callable[[], None]) -> None:
        """Call `function` on the supervisor's thread several times a second. It must not refer to this object."""
        self._event_loop.on_check.append(function)

    @property
    def workers(self) -> dict[int, WorkerProcess]:
        """The workers by process index. The supervisor's thread adds and removes some."""
        return self._worker_pool.workers

    def request_workers(self, group: int, workers: int, cause: ChangeCause | None = None) -> None:
        """Move a process of the plan to `workers` workers, one at a time, within its slots. From any thread."""
        self._scaling.request(group, workers, cause or ChangeCause())
        self._control_server.wake_event.set()

    def count_workers(self, group: int) -> int:
        """Return the number of workers that a process of the plan has, or will have soon. From any thread."""
        return self._scaling.count(group)

    @property
    def worker_changes(self) -> list[WorkerChange]:
        """The changes of the numbers of workers so far, oldest first."""
        return self._scaling.changes

    @property
    def board(self) -> Board:
        """The board of the run."""
        return self.resources.board

    @property
    def probe_samples(self) -> dict[int, list[ProbeSample]]:
        """The measurements of a probe run, by process index."""
        return self._event_loop.probe_samples

    @property
    def item_digests(self) -> dict[str, dict[Key, ItemDigestEvent]]:
        """The digests of a determinism check, by process name and item."""
        return self._event_loop.item_digests

    def wait_for_epoch_length(self) -> int | None:
        """Return the number of items of an epoch; None if it is unknown.

        Waits until all stages are built, which takes as long as the slowest one loads its model. Raises RunError if the
        run fails earlier.
        """
        ready_events = self._event_loop.ready_events
        while not ready_events.keys() >= {
            slot.process_index for slot in self.resources.slots if slot.is_filled_at_start
        }:
            if self.recovery.failure is not None:
                raise self.recovery.failure  # no local holds it: see `RecoveryCoordinator.resolve_interrupt`
            sleep(_READY_POLL_INTERVAL_S)
        one_per_group = [slot.process_index for slot in self.resources.slots if not slot.worker]
        cardinalities = [cardinality for index in one_per_group for cardinality in ready_events[index].cardinalities]
        return count_outputs(ready_events[0].epoch_items, cardinalities[1:])

    def wait_for_source(self) -> SourceIdentity | None:
        """Return the data of the source when it was first built, after waiting for that; None if the run has failed."""
        while self._event_loop.source_identity is None:
            if self.recovery.failure is not None or self._worker_pool.is_stopping:
                return None
            sleep(_SOURCE_POLL_INTERVAL_S)
        return self._event_loop.source_identity

    def abort_epoch(self, error: RunError) -> None:
        """End the current epoch with `error`, which the iterating caller gets. From any thread."""
        self.recovery.fail(error)

    # ------------------------------------------------------------------ the end

    def stop(self) -> list[str]:
        """Stop all workers: by command, then SIGTERM, then SIGKILL. Returns the names of those that needed a signal."""
        if not self._worker_pool.begin_stop():
            return []
        self.board.publish_end()
        for process_index in list(self.workers):
            self._control_server.queue_command(process_index, encode_message(Stop()))
        slow_workers = terminate_workers(list(self.workers.values()), is_stop_requested=True)
        self._event_loop.stop()
        return slow_workers

    def close(self) -> list[str]:
        """Stop the workers if they still run, then close all resources. Returns the result of `stop`."""
        slow_workers = self.stop()
        self._exit_stack.close()
        return slow_workers
