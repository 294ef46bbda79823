"""Passes each event of a worker on to the part of the run that it concerns. On the supervisor's thread."""

from __future__ import annotations

from typing import assert_never

from stagepipe.core import Key, ReadOnceError, SourceIdentity
from stagepipe.runtime.dead_letters import DeadLetterStore
from stagepipe.runtime.protocol import (
    ArenaFullEvent,
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
    encode_message,
)
from stagepipe.runtime.supervisor.control_server import ControlServer
from stagepipe.runtime.supervisor.recovery import RecoveryCoordinator
from stagepipe.runtime.supervisor.worker_pool import WorkerPool


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
