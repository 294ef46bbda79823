"""A follower: any rank of a machine but the first. It reads items from a packet pipe, in its training process."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from time import monotonic

import numpy as np

from stagepipe.core import RunError, SkipCount, SourceIdentity, TransportError
from stagepipe.engine import EpochPosition
from stagepipe.plan import SINK_NAME
from stagepipe.runtime import HeldMemoryLimit
from stagepipe.timing import HISTOGRAM_WORDS, RECEIVE_PHASES, DurationRecorder
from stagepipe.torch.rank_connection import (
    RENDEZVOUS_TIMEOUT_S,
    ConnectionListener,
    DescriptorBatch,
    EpochLength,
    EpochRequest,
    Hello,
    IterationFailed,
    JoinRefused,
    LoaderClosed,
    RankConnection,
    RankItem,
    RankMessage,
    Welcome,
    connect_to_leader,
    to_run_error,
)
from stagepipe.torch.ranks import RankTopology
from stagepipe.transport import Lease, PacketKind, Receiver, SharedMemoryPool, WakeEvent, open_transports

_POLL_INTERVAL_S = 0.1
"""Time between two checks for an error while waiting for a message."""
_HELD_MEMORY_DIVISOR = 6
"""All followers together may hold a sixth of the pipeline's memory before they get copies; the leader a third."""


class Follower:
    """The endpoint of a rank that is not the first of its machine. See `RankEndpoint`."""

    def __init__(
        self, topology: RankTopology, folder: Path, config_description: str, timeout_s: float = RENDEZVOUS_TIMEOUT_S
    ) -> None:
        """Connect to the leader, which owns the pipeline. `config_description` must be equal on all ranks."""
        self._leader_name = f"rank {topology.leader_rank}"
        self._fds: list[int] = []
        connection = connect_to_leader(folder, monotonic() + timeout_s)
        if connection is None:
            message = (
                f"{self._leader_name}, which owns this machine's pipeline, did not start it within {timeout_s:.0f} s; "
            )
            raise RunError(f"{message}create the same loaders, in the same order, on all ranks")
        self._connection = connection
        self._leader_name = f"{self._leader_name} (pid {connection.pid})"
        try:
            welcome = self._receive_welcome(Hello(topology.local_rank, config_description), monotonic() + timeout_s)
        except BaseException:
            self._close_descriptors()
            raise
        arena_numbers, arena_count = welcome.arena_numbers, len(welcome.arena_numbers)
        arena_fds = dict(zip(arena_numbers, self._fds[1 : 1 + arena_count], strict=True))
        release_fds = dict(zip(arena_numbers, self._fds[1 + arena_count :], strict=True))
        self._memory = SharedMemoryPool(None, arena_fds, release_fds, writable=True, limit_bytes=welcome.memory_bytes)
        self._memory.attach_transports(open_transports(welcome.transports))
        self._wake_event = WakeEvent()
        recorder = DurationRecorder(np.zeros(len(RECEIVE_PHASES) * HISTOGRAM_WORDS, np.uint64), len(RECEIVE_PHASES))
        self._receiver = Receiver(
            self._fds[0], self._memory, self._wake_event, lambda: self._is_interrupted, recorder, readonly=False
        )
        self._held_memory = HeldMemoryLimit(
            self._memory, welcome.memory_bytes / (_HELD_MEMORY_DIVISOR * (topology.local_world_size - 1))
        )
        self._iteration_number = 0
        self._epoch_length: EpochLength | None = None
        self._iteration_failure: IterationFailed | None = None
        self._fatal_error: RunError | None = None
        self._leader_closed = False
        self._is_closed = False
        self._status_changed = threading.Event()
        self._listener = ConnectionListener([connection], self._on_message)

    def _receive_welcome(self, hello: Hello, deadline_s: float) -> Welcome:
        self._connection.send(hello)
        welcome: Welcome | None = None
        while True:
            try:
                message, fds = self._connection.receive(max(deadline_s - monotonic(), _POLL_INTERVAL_S))
            except TimeoutError as error:
                text = f"{self._leader_name} did not start this machine's pipeline in time; check what it waits for"
                raise RunError(text) from error
            self._fds += fds
            if isinstance(message, JoinRefused):
                raise RunError(message.reason)
            if message is None:
                raise RunError(
                    f"{self._leader_name}, which owns this machine's pipeline, ended before it had started it; "
                    "see its output for the cause"
                )
            if isinstance(message, Welcome):
                welcome = message
            if isinstance(message, DescriptorBatch) and welcome is not None and not message.descriptors_left:
                return welcome

    # ------------------------------------------------------------------ on the listener thread

    def _on_message(self, _: RankConnection, message: RankMessage | None) -> None:
        if isinstance(message, EpochLength):
            self._epoch_length = message
        elif isinstance(message, IterationFailed) and message.iteration:
            self._iteration_failure = message
        elif isinstance(message, IterationFailed):
            self._fatal_error = to_run_error(message)
        elif isinstance(message, LoaderClosed):
            self._leader_closed = True
        elif message is None and not self._leader_closed:
            self._fatal_error = self._fatal_error or RunError(
                f"{self._leader_name}, which owns this machine's pipeline, ended without closing its loader; "
                "see its output for the cause"
            )
        self._status_changed.set()
        self._wake_event.set()

    @property
    def _is_interrupted(self) -> bool:
        """Whether no further packet will come for the current iteration."""
        failure = self._iteration_failure
        return (
            self._fatal_error is not None
            or self._leader_closed
            or (failure is not None and failure.iteration == self._iteration_number)
        )

    def _raise_if_ended(self, iteration: int) -> None:
        """Raise the error that ended the iteration, if it has ended."""
        if self._fatal_error is not None:
            raise self._fatal_error
        if self._iteration_failure is not None and self._iteration_failure.iteration == iteration:
            raise to_run_error(self._iteration_failure)
        if self._leader_closed:
            message = f"{self._leader_name}, which owns this machine's pipeline, has closed its loader, and all items "
            raise RunError(
                f"{message}that it had sent were yielded; iterate over the loader the same number of times on all ranks"
            )

    # ------------------------------------------------------------------ on the training thread

    def begin_iteration(self, position: EpochPosition) -> int:
        """See `RankEndpoint`."""
        self._iteration_number += 1
        self._connection.send(
            EpochRequest(self._iteration_number, position.epoch, position.items_yielded, position.cursor)
        )
        return self._iteration_number

    def receive(self, iteration: int) -> RankItem | None:
        """See `RankEndpoint`."""
        while True:
            if self._fatal_error is not None:
                raise self._fatal_error
            self._receiver.copy_all = self._held_memory.check()
            try:
                received = self._receiver.receive(iteration)
            except TransportError as error:
                raise RunError(f"{SINK_NAME}: {error}", stage=SINK_NAME, worker=0) from error
            if received is None:
                self._raise_if_ended(iteration)
                continue
            if received.kind == PacketKind.END_OF_SEGMENT:
                self._memory.flush_releases()
                return None
            cursor, item = received.value
            received.value, box = None, [item]
            del item
            return RankItem(received.key[0], cursor, box)

    def length(self) -> int | None:
        """See `RankEndpoint`."""
        return self._wait_for_length().items

    def wait_for_source(self) -> SourceIdentity | None:
        """See `RankEndpoint`."""
        if self._is_closed and self._epoch_length is None:
            return None
        return self._wait_for_length().source

    def _wait_for_length(self) -> EpochLength:
        while self._epoch_length is None:
            self._raise_if_ended(-1)
            self._status_changed.clear()
            if self._epoch_length is None:
                self._status_changed.wait(_POLL_INTERVAL_S)
        return self._epoch_length

    def count_skips(self, position: EpochPosition) -> SkipCount | None:  # noqa: ARG002 - the leader's
        """See `RankEndpoint`."""
        return None

    def resume_skip_count(self, count: SkipCount) -> None:
        """See `RankEndpoint`."""

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """See `RankEndpoint`."""
        return self._memory.find_lease(address, nbytes)

    def close(self) -> None:
        """See `RankEndpoint`. Received tensors stay valid."""
        if self._is_closed:
            return
        self._is_closed = True
        self._memory.flush_releases()
        self._connection.send(LoaderClosed())
        self._listener.close()
        self._receiver.close()
        self._wake_event.close()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        self._connection.close()
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds = []
