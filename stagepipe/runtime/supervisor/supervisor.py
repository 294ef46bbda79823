"""The Supervisor of a run: it owns the parts of a run from start to end, and runs its thread.

In the caller's process. The thread works while the caller is busy with an item: it passes each event of a worker on to
the part that it concerns, reaps the dead, and makes the checks that are due.

Any thread may queue commands, which wakes the supervisor's thread. Only that thread sends them and receives events: a
ZeroMQ socket belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import monotonic, perf_counter_ns, sleep
from typing import assert_never

import zmq

from stagepipe.core import Key, ReadOnceError, RunError, SourceIdentity
from stagepipe.plan import Plan
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
    StaleLeasesEvent,
    Stop,
    StreamStateEvent,
    WorkerEvent,
    count_outputs,
    decode_event,
    encode_message,
    format_error,
    format_user_traceback,
)
from stagepipe.runtime.supervisor.adaptive_transport import AdaptiveTransport
from stagepipe.runtime.supervisor.recovery import RecoveryCoordinator, SeekPublisher, WorkerRestart
from stagepipe.runtime.supervisor.watchdog import Watchdog
from stagepipe.runtime.supervisor.workers import RunResources, WorkerPool, WorkerProcess, terminate_workers
from stagepipe.timing import Board
from stagepipe.transport import WakeEvent

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
        """Send all queued commands. Commands to workers that are gone are dropped."""
        while self._outbox:
            process_index, encoded_command = self._outbox.popleft()
            with contextlib.suppress(zmq.Again):
                self.socket.send_multipart((str(process_index).encode(), encoded_command), zmq.NOBLOCK)

    def receive_events(self, timeout_s: float = 0.0) -> Iterator[WorkerEvent]:
        """The events that have arrived, or arrive within `timeout_s`."""
        deadline = monotonic() + timeout_s
        for _ in range(_MAX_EVENTS_PER_READ):  # a flood of events must not starve the supervisor's other work
            if not self.socket.poll(max(int(1000 * (deadline - monotonic())), 0)):
                return
            yield decode_event(self.socket.recv_multipart()[1])


class WorkerEventHandler:
    """Handles events by their type. It keeps those that others ask for later."""

    def __init__(
        self,
        recovery: RecoveryCoordinator,
        dead_letters: DeadLetterStore,
        worker_pool: WorkerPool,
        control_server: ControlServer,
    ) -> None:
        """`control_server` sends a stop to a worker that becomes ready at the end of the run."""
        self._recovery = recovery
        self._dead_letters = dead_letters
        self._worker_pool = worker_pool
        self._control_server = control_server
        self.ready_events: dict[int, ReadyEvent] = {}
        """The newest of each worker that has been ready, by process index."""
        self.source_identity: SourceIdentity | None = None
        """What the source read when it was first built: a successor may find changed files."""
        self.probe_samples: dict[int, list[ProbeSample]] = {}
        """What a probe run has measured, by process index."""
        self.item_digests: dict[str, dict[Key, ItemDigestEvent]] = {}
        """What a determinism check has recorded, by process name and item."""

    def handle(self, event: WorkerEvent) -> None:
        """Handle an event."""
        match event:
            case ReadyEvent():
                self._handle_ready(event)
            case FailureEvent():
                self._recovery.handle_failure(event)
            case ArenaFullEvent():
                self._recovery.handle_arena_full(event)
            case StaleLeasesEvent():
                self._recovery.record_era_entry(event.process, event.era, event.leases)
            case StreamStateEvent():
                self._recovery.record_stream_state(event)
            case DeadLetterEvent():
                self._handle_dead_letter(event)
            case ProbeSample():
                self.probe_samples.setdefault(event.process, []).append(event)
            case ItemDigestEvent():
                self.item_digests.setdefault(event.process, {})[event.key] = event
            case ReadOnceEvent():
                self._recovery.fail(ReadOnceError())
            case _:
                assert_never(event)

    def _handle_ready(self, event: ReadyEvent) -> None:
        worker = self._worker_pool.workers[event.process]
        if event.incarnation != worker.incarnation:
            return
        self._recovery.handle_ready(worker)
        self.ready_events[event.process] = event
        self.source_identity = self.source_identity or event.source
        if self._worker_pool.is_stopping:
            self._control_server.queue_command(event.process, encode_message(Stop()))

    def _handle_dead_letter(self, event: DeadLetterEvent) -> None:
        self._dead_letters.add(event)
        limit_error = self._dead_letters.make_limit_error()
        if limit_error is not None:
            self._recovery.fail(limit_error)


_ERROR_BACKOFF_S = 0.5
"""Pause after an error of the thread itself, so that one that repeats does not spin."""
_THREAD_JOIN_TIMEOUT_S = 5.0
_REAP_TIMEOUT_S = 0.2
_FINAL_EVENTS_TIMEOUT_S = 0.02


class EventLoop:
    """Waits for events, deaths and due checks, one at a time, until `stop`."""

    def __init__(  # noqa: PLR0917 - the parts of the supervisor that its thread drives
        self,
        control_server: ControlServer,
        worker_pool: WorkerPool,
        recovery: RecoveryCoordinator,
        watchdog: Watchdog,
        adaptive_transport: AdaptiveTransport,
        handle_event: Callable[[WorkerEvent], None],
        attach_listener: AttachListener | None,
    ) -> None:
        """Start the thread. All workers have been started."""
        self._control_server = control_server
        self._worker_pool = worker_pool
        self._recovery = recovery
        self._watchdog = watchdog
        self._adaptive_transport = adaptive_transport
        self._handle_event = handle_event
        self._attach_listener = attach_listener
        self.on_check: Callable[[], None] | None = None
        """Called several times a second, and with each event."""
        self._poller = zmq.Poller()
        self._workers_by_pidfd: dict[int, WorkerProcess] = {}
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="stagepipe-supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. The commands that are queued are sent before."""
        self._is_ending = True
        self._control_server.wake_event.set()
        self._thread.join(timeout=_THREAD_JOIN_TIMEOUT_S)

    # ------------------------------------------------------------------ on the thread

    def _run(self) -> None:
        self._poller.register(self._control_server.socket, zmq.POLLIN)
        self._poller.register(self._control_server.wake_event.fd, zmq.POLLIN)
        if self._attach_listener is not None:
            self._poller.register(self._attach_listener.fd, zmq.POLLIN)
        for worker in self._worker_pool.workers.values():
            self._watch(worker)
        while not self._is_ending:
            try:
                self._run_once()
            except Exception as error:  # noqa: BLE001 - any error here must end the run, or the caller waits for ever
                message = f"the supervisor failed: {format_error(error)}"
                self._recovery.fail(RunError(message, trace=format_user_traceback(error)))
                sleep(_ERROR_BACKOFF_S)

    def _watch(self, worker: WorkerProcess) -> None:
        self._workers_by_pidfd[worker.pidfd] = worker
        self._poller.register(worker.pidfd, zmq.POLLIN)

    def _run_once(self) -> None:
        wait_s = min(self._adaptive_transport.time_to_next_check_s, self._watchdog.time_to_next_check_s)
        ready = dict(self._poller.poll(int(1000 * self._recovery.restarts.limit_wait_s(wait_s))))
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
        for restart in self._recovery.take_due_restarts():
            self._restart(restart)
        self._control_server.send_queued()
        if self.on_check is not None:
            self.on_check()
        self._serve_attaching(ready)

    def _serve_attaching(self, ready: Mapping[int, int]) -> None:
        listener = self._attach_listener
        if listener is None or listener.fd not in ready:
            return
        fd = listener.fd
        if not listener.serve():
            self._poller.unregister(fd)
            self._attach_listener = None

    def _handle_death(self, pidfd: int) -> None:
        worker = self._workers_by_pidfd.pop(pidfd)
        self._poller.unregister(pidfd)
        if self._worker_pool.is_stopping:
            return
        worker.wait(_REAP_TIMEOUT_S)
        for event in self._control_server.receive_events(_FINAL_EVENTS_TIMEOUT_S):  # what it sent before its death
            self._handle_event(event)
        self._recovery.handle_death(worker)
        worker.close()

    def _restart(self, restart: WorkerRestart) -> None:
        slot = restart.slot
        try:
            worker = self._worker_pool.restart_worker(slot, self._recovery.era, restart.death.died_at_ns)
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
        """Start all workers at once. What they print and log goes to `on_output`. `is_traced`: each has a trace.

        Raises OSError if a resource cannot be made or a worker cannot be started.
        """
        self.plan = plan
        self.started_ns = perf_counter_ns()
        """When the start of the run began: the time until its workers run counts."""
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
            self.recovery = RecoveryCoordinator(plan, self.resources, self.dead_letters, self._make_publisher())
            self._event_handler = WorkerEventHandler(
                self.recovery, self.dead_letters, self._worker_pool, self._control_server
            )
            self._worker_pool.start_all()
            self._event_loop = EventLoop(
                self._control_server,
                self._worker_pool,
                self.recovery,
                Watchdog(plan, self.board, self.workers),
                self.adaptive_transport,
                self._event_handler.handle,
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
        self._event_loop.on_check = function

    def _make_publisher(self) -> SeekPublisher:
        return SeekPublisher(
            self.board, self.resources.worker_wake_events, self.workers, self._control_server.queue_command
        )

    @property
    def workers(self) -> dict[int, WorkerProcess]:
        """The workers by process index."""
        return self._worker_pool.workers

    @property
    def board(self) -> Board:
        """The board of the run."""
        return self.resources.board

    @property
    def probe_samples(self) -> dict[int, list[ProbeSample]]:
        """What a probe run has measured, by process index."""
        return self._event_handler.probe_samples

    @property
    def item_digests(self) -> dict[str, dict[Key, ItemDigestEvent]]:
        """What a determinism check has recorded, by process name and item."""
        return self._event_handler.item_digests

    def wait_for_epoch_length(self) -> int | None:
        """The number of items of an epoch; None if it is unknown.

        Waits until all stages are built: stages that load a model for a minute make it take a minute. Raises RunError
        if the run fails before.
        """
        ready_events = self._event_handler.ready_events
        while len(ready_events) < len(self.workers):
            if self.recovery.failure is not None:
                raise self.recovery.failure  # no local holds it: see `RecoveryCoordinator.resolve_interrupt`
            sleep(_READY_POLL_INTERVAL_S)
        one_per_group = sorted({slot.worker_group: slot.process_index for slot in self.resources.slots}.values())
        cardinalities = [cardinality for index in one_per_group for cardinality in ready_events[index].cardinalities]
        return count_outputs(ready_events[0].epoch_items, cardinalities[1:])

    def wait_for_source(self) -> SourceIdentity | None:
        """Return what the source read when it was first built, which this waits for; None if the run has failed."""
        while self._event_handler.source_identity is None:
            if self.recovery.failure is not None or self._worker_pool.is_stopping:
                return None
            sleep(_SOURCE_POLL_INTERVAL_S)
        return self._event_handler.source_identity

    def abort_epoch(self, error: RunError) -> None:
        """End the current epoch with `error`, which the iterating caller gets. From any thread."""
        self.recovery.fail(error)

    # ------------------------------------------------------------------ the end

    def stop(self) -> list[str]:
        """Stop all workers: by command, then SIGTERM, then SIGKILL. Returns the names of those that needed a signal."""
        if not self._worker_pool.begin_stop():
            return []
        self.board.publish_end()
        for process_index in self.workers:
            self._control_server.queue_command(process_index, encode_message(Stop()))
        slow_workers = terminate_workers(self.workers.values(), is_stop_requested=True)
        self._event_loop.stop()
        return slow_workers

    def close(self) -> list[str]:
        """Stop the workers if they still run, then close all resources. Returns what `stop` returns."""
        slow_workers = self.stop()
        self._exit_stack.close()
        return slow_workers
