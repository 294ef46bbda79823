"""The supervisor's thread: receives the workers' events, sees their deaths, runs checks, and answers who attaches.

In the caller's process. It works while the caller is busy with an item.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import sleep

import zmq

from stagepipe.core import RunError
from stagepipe.runtime.attach import AttachListener
from stagepipe.runtime.protocol import WorkerEvent, format_error, format_user_traceback
from stagepipe.runtime.supervisor.adaptive_transport import AdaptiveTransport
from stagepipe.runtime.supervisor.control_server import ControlServer
from stagepipe.runtime.supervisor.recovery import RecoveryCoordinator
from stagepipe.runtime.supervisor.restarts import WorkerRestart
from stagepipe.runtime.supervisor.watchdog import Watchdog
from stagepipe.runtime.supervisor.worker_pool import WorkerPool
from stagepipe.runtime.supervisor.worker_process import WorkerProcess

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
