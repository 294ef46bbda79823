"""The supervisor: owns a run's resources and workers, handles their events and deaths, and ends them.

In the caller's process. Its own thread serves the control channel and watches the workers' pidfds, so both continue
while the caller is busy with an item. The thread stores what the consumer must know in `failure`, `arena_full_event`
and `recovery`, then sets `consumer_wake_event`, which ends the consumer's wait.
"""

from __future__ import annotations

import contextlib
import threading
from functools import singledispatchmethod
from time import perf_counter_ns, sleep

import zmq

from stagepipe.core import Cursor, ReadOnceError, RunError, cursor_to_builtins, split_by_segment
from stagepipe.plan import Plan
from stagepipe.runtime.dead_letters import DeadLetterStore, make_letter_counters
from stagepipe.runtime.flow import SegmentWindows
from stagepipe.runtime.logs import OutputCallback, OutputCollector, forward_output
from stagepipe.runtime.protocol import (
    ArenaFullEvent,
    DeadLetterEvent,
    FailureEvent,
    ProbeSample,
    ReadOnceEvent,
    ReadyEvent,
    Seek,
    StaleLeasesEvent,
    Stop,
    WorkerEvent,
    count_outputs,
    encode_message,
    format_error,
    format_user_traceback,
    make_run_error,
)
from stagepipe.runtime.supervisor.adaptive_transport import AdaptiveTransport
from stagepipe.runtime.supervisor.control_server import ControlServer
from stagepipe.runtime.supervisor.recovery import RecoveryCoordinator
from stagepipe.runtime.supervisor.run_resources import RunResources, WorkerSlot
from stagepipe.runtime.supervisor.watchdog import Watchdog
from stagepipe.runtime.supervisor.worker_pool import WorkerPool
from stagepipe.runtime.supervisor.worker_process import WorkerProcess, terminate_workers
from stagepipe.transport import WakeEvent, make_arena_fd, make_byte_pipe

_READY_POLL_INTERVAL_S = 0.025
_ERROR_BACKOFF_S = 0.5
"""Pause after an error of the supervisor's own thread, so that one that repeats does not spin."""
_THREAD_JOIN_TIMEOUT_S = 5.0
_REAP_TIMEOUT_S = 0.2
_FINAL_EVENTS_TIMEOUT_S = 0.02


class Supervisor:
    """The processes of a run. `close` ends them all and closes every descriptor."""

    def __init__(self, plan: Plan, on_output: OutputCallback = forward_output) -> None:
        """Start all workers at once; `ready_events` has those that have built their stages.

        What they print and log goes to `on_output`. Raises OSError if a resource cannot be made or a worker cannot be
        started.
        """
        self.plan = plan
        self.failure: RunError | None = None
        self._failure_generation = 0
        self.arena_full_event: ArenaFullEvent | None = None
        self.probe_samples: dict[int, list[ProbeSample]] = {}  # of a probe run, by process index
        self.ready_events: dict[int, ReadyEvent] = {}
        self.segment_windows = SegmentWindows(plan)
        self.generation = 0
        self._epoch = 0
        self._is_stopping = False
        self._is_thread_ending = False
        self._current_seek: Seek | None = None
        self._lock = threading.Lock()
        self._poller = zmq.Poller()
        self._workers_by_pidfd: dict[int, WorkerProcess] = {}
        self._exit_stack = contextlib.ExitStack()
        try:
            self.consumer_wake_event = self._make_wake_event()
            self._thread_wake_event = self._make_wake_event()
            self.resources = RunResources(plan)
            self._exit_stack.callback(self.resources.close)
            self.board = self.resources.map_board()
            self.adaptive_transport = AdaptiveTransport(plan, self.board, self.resources.process_indices_by_group)
            self.dead_letters = DeadLetterStore(
                plan, *make_letter_counters(self.board, [slot.process_index for slot in self.resources.slots])
            )
            self.recovery = RecoveryCoordinator(plan, self.resources, self.board)
            self._control_server = ControlServer(self._exit_stack)
            output_collector = OutputCollector(on_output)
            self._exit_stack.callback(output_collector.close)
            self._worker_pool = WorkerPool(plan, self.resources, output_collector)
            self._watchdog = Watchdog(plan, self.board, self.workers)
            self._exit_stack.callback(self._worker_pool.close)
            for slot in self.resources.slots:
                self._worker_pool.start_worker(slot, self._control_server.control_socket_fd)
        except BaseException:
            if hasattr(self, "_worker_pool"):
                terminate_workers(self.workers.values(), is_stop_requested=False)
            self._exit_stack.close()
            raise
        self._thread = threading.Thread(target=self._serve, name="stagepipe-supervisor", daemon=True)
        self._thread.start()

    def _make_wake_event(self) -> WakeEvent:
        wake_event = WakeEvent()
        self._exit_stack.callback(wake_event.close)
        return wake_event

    @property
    def workers(self) -> dict[int, WorkerProcess]:
        """The workers by process index."""
        return self._worker_pool.workers

    # ------------------------------------------------------------------ called by the consumer

    def seek(self, cursor: Cursor | None, epoch: int, *, rebuild_stateful: bool = True) -> Seek:
        """Begin a new generation at `cursor`, send it to all ready workers, and return the seek. Does not wait.

        `rebuild_stateful`: stages with `stateful: true` are built again. False only where the seek follows the natural
        end of an epoch.
        """
        cursors = split_by_segment(cursor, len(self.plan.segments))
        with self._lock:
            self.generation += 1
            self.arena_full_event = None
            self.recovery.is_seek_needed = False
            self._epoch = epoch
            if self._failure_generation:  # a stage's error in an earlier generation; permanent failures have 0 and stay
                self.failure = None
                self._failure_generation = 0
            self._current_seek = Seek(
                self.generation,
                epoch,
                [cursor_to_builtins(segment_cursor) or [] for segment_cursor in cursors],
                self.segment_windows.windows,
                self.segment_windows.small_item_windows,
                self.recovery.arena_eras.current_era,
                self.recovery.collect_forced_skips(epoch, cursors),
                self.recovery.collect_unbatched_ranges(epoch),
                rebuild_stateful,
            )
            self.dead_letters.apply_seek(self.generation, epoch, cursors, self._current_seek.forced_skips)
            encoded_seek = encode_message(self._current_seek)
            is_on_board = self.board.publish_seek(self.generation, encoded_seek)
            self.board.generation = self.generation
            for process_index, worker in self.workers.items():
                if worker.is_ready and is_on_board:
                    # A wake event involves two threads fewer than the control channel.
                    self.resources.worker_wake_events[process_index].set()
                elif worker.is_ready:
                    self._control_server.queue_command(process_index, encoded_seek)
        if not is_on_board:
            self._thread_wake_event.set()
        return self._current_seek

    @property
    def _has_failed_permanently(self) -> bool:
        """Whether the run has failed for good. The next seek clears an error of a stage, but not this."""
        return self.failure is not None and not self._failure_generation

    @property
    def is_wait_interrupted(self) -> bool:
        """Whether the consumer must stop waiting for items: the run has failed, or needs a seek."""
        return self.failure is not None or self.arena_full_event is not None or self.recovery.is_seek_needed

    def record_era_entry(self, process_index: int, era: int, leases: list[tuple[int, int, int]]) -> None:
        """Record that a process has entered `era`, with these leases on older blocks. From any thread."""
        with self._lock:
            self.recovery.record_era_entry(process_index, era, leases)

    def add_consumer_arena(self, process_index: int) -> None:
        """Give the caller's process an arena and a release pipe, so that it can send items to processes of its own."""
        with self._lock:
            eras = self.recovery.arena_eras
            eras.has_unreported_leases = True
            self.resources.arena_memfds[process_index] = make_arena_fd(self.plan.memory_bytes, eras.current_era)
            self.resources.release_pipes[process_index] = make_byte_pipe()

    def abort_epoch(self, error: RunError) -> None:
        """End the current epoch with `error`, which the iterating caller gets. From any thread."""
        with self._lock:
            self._record_failure(error, 0)

    def wait_for_epoch_length(self) -> int | None:
        """The number of items of an epoch; None if it is unknown.

        Waits until all stages are built: stages that load a model for a minute make it take a minute. Raises RunError
        if the run fails before.
        """
        while len(self.ready_events) < len(self.workers):
            if self.failure is not None:
                raise self.failure
            sleep(_READY_POLL_INTERVAL_S)
        one_per_group = sorted({slot.worker_group: slot.process_index for slot in self.resources.slots}.values())
        cardinalities = [
            cardinality for index in one_per_group for cardinality in self.ready_events[index].cardinalities
        ]
        return count_outputs(self.ready_events[0].epoch_items, cardinalities[1:])

    def get_starting_stages(self) -> tuple[str, ...]:
        """The names of the stages that have a worker that is not ready yet."""
        return self._worker_pool.starting_stages

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        self._poller.register(self._control_server.socket, zmq.POLLIN)
        self._poller.register(self._thread_wake_event.fd, zmq.POLLIN)
        for worker in self.workers.values():
            self._register_pidfd(worker)
        while not self._is_thread_ending:
            try:
                self._serve_once()
            except Exception as error:  # noqa: BLE001 - any error here must end the run, or the caller waits for ever
                with self._lock:
                    message = f"the supervisor failed: {format_error(error)}"
                    self._record_failure(RunError(message, trace=format_user_traceback(error)), 0)
                sleep(_ERROR_BACKOFF_S)

    def _serve_once(self) -> None:
        wait_s = self.recovery.limit_wait_s(
            min(self.adaptive_transport.time_to_next_check_s, self._watchdog.time_to_next_check_s)
        )
        ready = dict(self._poller.poll(int(1000 * wait_s)))
        self.adaptive_transport.check()
        stall_description = self._watchdog.check()
        if stall_description:
            self._recover_from_stall(stall_description)
        if self._thread_wake_event.fd in ready:
            self._thread_wake_event.clear()
        for event in self._control_server.receive_events():
            self._handle_event(event)
        for pidfd in ready.keys() & self._workers_by_pidfd.keys():
            self._handle_worker_death(pidfd)
        for slot, died_ns in self.recovery.take_due_restarts():
            self._restart_worker(slot, died_ns)
        self._control_server.send_queued()

    def _register_pidfd(self, worker: WorkerProcess) -> None:
        self._workers_by_pidfd[worker.pidfd] = worker
        self._poller.register(worker.pidfd, zmq.POLLIN)

    @singledispatchmethod
    def _handle_event(self, event: WorkerEvent) -> None:
        """Handle an event of a worker, by its type."""
        raise NotImplementedError(event)

    @_handle_event.register
    def _(self, event: ReadyEvent) -> None:
        with self._lock:
            worker = self.workers[event.process]
            if event.incarnation != worker.incarnation:
                return
            worker.is_ready = True
            worker.ready_at_ns = perf_counter_ns()
            self.ready_events[event.process] = event
            if self._is_stopping:
                self._control_server.queue_command(event.process, encode_message(Stop()))
            elif self._current_seek is not None:
                self._control_server.queue_command(event.process, encode_message(self._current_seek))

    @_handle_event.register
    def _(self, event: FailureEvent) -> None:
        with self._lock:
            if event.generation in {0, self.generation}:
                self._record_failure(make_run_error(event), event.generation)

    @_handle_event.register
    def _(self, event: DeadLetterEvent) -> None:
        self.dead_letters.add(event)
        limit_error = self.dead_letters.make_limit_error()
        if limit_error is not None:
            self.abort_epoch(limit_error)

    @_handle_event.register
    def _(self, event: ArenaFullEvent) -> None:
        if event.generation == self.generation:
            self.arena_full_event = event
            self.consumer_wake_event.set()

    @_handle_event.register
    def _(self, event: ProbeSample) -> None:
        self.probe_samples.setdefault(event.process, []).append(event)

    @_handle_event.register
    def _(self, event: StaleLeasesEvent) -> None:
        self.record_era_entry(event.process, event.era, event.leases)

    @_handle_event.register
    def _(self, _: ReadOnceEvent) -> None:
        self.abort_epoch(ReadOnceError())

    def _handle_worker_death(self, pidfd: int) -> None:
        worker = self._workers_by_pidfd.pop(pidfd)
        self._poller.unregister(pidfd)
        if self._is_stopping:
            return
        worker.wait(_REAP_TIMEOUT_S)
        for event in self._control_server.receive_events(_FINAL_EVENTS_TIMEOUT_S):  # what it sent before its death
            self._handle_event(event)
        with self._lock:
            error = None if self._has_failed_permanently else self.recovery.handle_death(worker, self._epoch)
            if error is not None:
                self._record_failure(error, 0)
        worker.close()
        self.consumer_wake_event.set()

    def _restart_worker(self, slot: WorkerSlot, died_ns: int) -> None:
        with self._lock:
            if self._is_stopping or self._has_failed_permanently:
                return
            try:
                self._register_pidfd(
                    self._worker_pool.start_worker(
                        slot, self._control_server.control_socket_fd, self.recovery.arena_eras.current_era, died_ns
                    )
                )
            except OSError as error:
                message = (
                    f"stage {slot.process_plan.name}, worker {slot.worker} died and could not be restarted: {error}"
                )
                self._record_failure(RunError(message, stage=slot.process_plan.name, worker=slot.worker), 0)

    def _recover_from_stall(self, diagnosis: str) -> None:
        """End a stall: the next seek drops the items in flight and processes them again."""
        with self._lock:
            error = self.recovery.handle_stall(diagnosis)
            if error is not None:
                self._record_failure(error, 0)
        self.consumer_wake_event.set()

    def _record_failure(self, error: RunError, generation: int) -> None:
        if self.failure is None or not generation:  # the first error is the cause; keep it over its consequences
            self.failure = self.failure or error
            self._failure_generation = generation
        self.consumer_wake_event.set()

    # ------------------------------------------------------------------ the end

    def stop(self) -> list[str]:
        """Stop all workers: by command, then SIGTERM, then SIGKILL. Returns the names of those that needed a signal."""
        with self._lock:
            if self._is_stopping:
                return []
            self._is_stopping = True
        for process_index in self.workers:
            self._control_server.queue_command(process_index, encode_message(Stop()))
        self._thread_wake_event.set()
        slow_workers = terminate_workers(self.workers.values(), is_stop_requested=True)
        self._is_thread_ending = True
        self._thread_wake_event.set()
        self._thread.join(timeout=_THREAD_JOIN_TIMEOUT_S)
        return slow_workers

    def close(self) -> list[str]:
        """Stop the workers if they still run, then close all resources. Returns what `stop` returns."""
        slow_workers = self.stop()
        self._exit_stack.close()
        return slow_workers
