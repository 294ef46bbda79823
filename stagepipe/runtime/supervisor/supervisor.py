"""The supervisor: owns a run's resources, its workers and the thread that serves them. In the caller's process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import perf_counter_ns, sleep

from stagepipe.core import Key, RunError, SourceIdentity
from stagepipe.plan import Plan
from stagepipe.runtime.attach import AttachListener, describe_run, open_listener
from stagepipe.runtime.dead_letters import DeadLetterStore, make_letter_counters
from stagepipe.runtime.logs import OutputCallback, OutputCollector, forward_output
from stagepipe.runtime.protocol import ItemDigestEvent, ProbeSample, Stop, count_outputs, encode_message
from stagepipe.runtime.supervisor.adaptive_transport import AdaptiveTransport
from stagepipe.runtime.supervisor.control_server import ControlServer
from stagepipe.runtime.supervisor.event_loop import EventLoop
from stagepipe.runtime.supervisor.recovery import RecoveryCoordinator
from stagepipe.runtime.supervisor.run_resources import RunResources
from stagepipe.runtime.supervisor.seek_publisher import SeekPublisher
from stagepipe.runtime.supervisor.watchdog import Watchdog
from stagepipe.runtime.supervisor.worker_events import WorkerEventHandler
from stagepipe.runtime.supervisor.worker_pool import WorkerPool
from stagepipe.runtime.supervisor.worker_process import WorkerProcess, terminate_workers
from stagepipe.timing import Board

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
