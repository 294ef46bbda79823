"""The leader: the first rank of a machine. Owns the pipeline, dispatcher and listener, in its training process."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from time import monotonic

from stagepipe.api import Pipeline
from stagepipe.core import RunError, SkipCount, SourceIdentity, StagepipeError
from stagepipe.engine import EpochPosition, LocalRun
from stagepipe.runtime import MemoryHandle
from stagepipe.torch.shared_pipeline.connection import ConnectionListener, RankConnection
from stagepipe.torch.shared_pipeline.dispatcher import Dispatcher, to_failure_message
from stagepipe.torch.shared_pipeline.epoch_requests import EpochRequests
from stagepipe.torch.shared_pipeline.messages import (
    EpochLength,
    EpochRequest,
    Hello,
    IterationFailed,
    JoinRefused,
    LoaderClosed,
    RankMessage,
    Welcome,
)
from stagepipe.torch.shared_pipeline.rank_endpoint import RankItem, to_run_error
from stagepipe.torch.shared_pipeline.rendezvous import RENDEZVOUS_TIMEOUT_S, accept_rank, listening_socket
from stagepipe.torch.shared_pipeline.topology import RankTopology
from stagepipe.transport import Lease

_POLL_INTERVAL_S = 0.1
"""Time between two checks for an error while waiting for an item."""
_HELLO_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 10.0


class Leader:
    """The endpoint of the first rank of a machine. See `RankEndpoint`."""

    def __init__(
        self,
        pipeline: Pipeline,
        topology: RankTopology,
        folder: Path,
        config_description: str,
        timeout_s: float = RENDEZVOUS_TIMEOUT_S,
    ) -> None:
        """Start the pipeline and wait for all ranks. `config_description` must be equal on all of them."""
        self._pipeline = pipeline
        self._topology = topology
        self._config_description = config_description
        self._timeout_s = timeout_s
        self._rank_of_fd: dict[int, int] = {}
        self._closed_ranks: set[int] = set()
        self._iteration_number = 0
        self._iteration_failure: IterationFailed | None = None
        self._length_sent = threading.Event()
        self._is_closed = False
        self._rank_names = [f"rank {topology.leader_rank + local}" for local in range(topology.local_world_size)]
        self._connections: list[RankConnection] = []
        with listening_socket(folder) if topology.local_world_size > 1 else nullcontext() as server:
            try:
                self._run: LocalRun = pipeline._start_local_run()  # noqa: SLF001 - used by this class alone
                self._requests = EpochRequests(self._rank_names, timeout_s)
                memory_handle = self._run.share_memory()
                rank_count = topology.local_world_size
                self._dispatcher = Dispatcher(self._run, memory_handle, self._requests, rank_count, pipeline.shard.even)
            except BaseException as error:
                self._refuse_followers(server, error)
                pipeline.close()
                raise
            try:
                self._connect_ranks(server, memory_handle)
            except BaseException as error:
                self._requests.stop()
                self._dispatcher.close(_STOP_TIMEOUT_S)
                self._refuse_followers(server, error)
                pipeline.close()
                raise

    def _connect_ranks(self, server: socket.socket | None, memory_handle: MemoryHandle) -> None:
        """Connect all ranks, send them what they need, and start dispatching."""
        if server is not None:
            self._accept_followers(server)
        for connection in self._connections:
            output = self._dispatcher.follower_outputs[self._rank_of_fd[connection.fd] - 1]
            _send_welcome(connection, memory_handle, output.pipe_ends.read_fd)
        self._listener = ConnectionListener(self._connections, self._on_message)
        self._dispatcher.start(self._send_length, self._send_failure)

    # ------------------------------------------------------------------ connecting the followers

    def _accept_followers(self, server: socket.socket) -> None:
        deadline_s = monotonic() + self._timeout_s
        missing = set(range(1, self._topology.local_world_size))
        while missing:
            connection = accept_rank(server, deadline_s)
            if connection is None:
                names = ", ".join(self._rank_names[rank] for rank in sorted(missing))
                message = f"{names} did not connect to this machine's pipeline within {self._timeout_s:.0f} s; "
                raise RunError(f"{message}create the same loaders, in the same order, on all ranks")
            self._connections.append(connection)
            rank = self._receive_hello(connection, missing)
            missing.discard(rank)
            self._rank_of_fd[connection.fd] = rank
            self._rank_names[rank] += f" (pid {connection.pid})"

    def _receive_hello(self, connection: RankConnection, missing_ranks: set[int]) -> int:
        with suppress(TimeoutError):
            hello, _ = connection.receive(_HELLO_TIMEOUT_S)
            if isinstance(hello, Hello):
                if hello.local_rank not in missing_ranks:
                    message = f"process {connection.pid} connected as local rank {hello.local_rank}, and only "
                    raise RunError(
                        f"{message}{sorted(missing_ranks)} are missing; give each process its own LOCAL_RANK"
                    )
                if hello.config_description != self._config_description:
                    message = f"{self._rank_names[hello.local_rank]} (pid {connection.pid}) has another config than "
                    raise RunError(f"{message}{self._rank_names[0]}; use one config, seed and limit on all ranks")
                return hello.local_rank
        message = (
            f"process {connection.pid} connected as a rank of this machine and sent no valid first message within "
        )
        raise RunError(f"{message}{_HELLO_TIMEOUT_S:.0f} s; see its output for the cause")

    def _refuse_followers(self, server: socket.socket | None, error: BaseException) -> None:
        """Tell the followers that have connected why the pipeline does not start."""
        with suppress(StagepipeError, OSError):
            while server is not None and (connection := accept_rank(server, monotonic())) is not None:
                self._connections.append(connection)
        reason = f"{self._rank_names[0]}: {type(error).__name__}: {error}"[:_MAX_REASON_CHARS]
        for connection in self._connections:
            connection.send(JoinRefused(reason))
            connection.close()

    # ------------------------------------------------------------------ on the listener and dispatcher threads

    def _on_message(self, connection: RankConnection, message: RankMessage | None) -> None:
        rank = self._rank_of_fd[connection.fd]
        if isinstance(message, EpochRequest):
            self._requests.add(rank, message)
        elif isinstance(message, LoaderClosed):
            self._closed_ranks.add(rank)
            self._requests.close_rank(rank)
        elif message is None and rank not in self._closed_ranks:
            self._on_rank_lost(rank)
        self._dispatcher.wake()

    def _on_rank_lost(self, rank: int) -> None:
        error = RunError(
            f"{self._rank_names[rank]}, which shares this machine's pipeline, ended without closing its loader; "
            "see its output for the cause"
        )
        if self._requests.fail(error):
            for connection in self._connections:
                connection.send(to_failure_message(0, error))
            self._run.cancel_epoch()

    def _send_length(self, items: int | None) -> None:
        message = EpochLength(items, self._run.wait_for_source())  # it is built: its length is known
        for connection in self._connections:
            connection.send(message)
        self._length_sent.set()

    def _send_failure(self, rank: int, failure: IterationFailed) -> None:
        if not rank:
            self._iteration_failure = failure
        for connection in self._connections:
            if self._rank_of_fd[connection.fd] == rank:
                connection.send(failure)

    # ------------------------------------------------------------------ on the training thread

    def begin_iteration(self, position: EpochPosition) -> int:
        """See `RankEndpoint`."""
        self._iteration_number += 1
        self._requests.add(
            0, EpochRequest(self._iteration_number, position.epoch, position.items_yielded, position.cursor)
        )
        self._dispatcher.wake()
        return self._iteration_number

    def receive(self, iteration: int) -> RankItem | None:
        """See `RankEndpoint`."""
        while True:
            if self._requests.failure is not None:
                raise self._requests.failure
            try:
                item_iteration, round_number, cursor, box = self._dispatcher.leader_output.queue.get(
                    timeout=_POLL_INTERVAL_S
                )
            except queue.Empty:
                if self._iteration_failure is not None and self._iteration_failure.iteration == iteration:
                    raise to_run_error(self._iteration_failure) from None
                continue
            if item_iteration == iteration:
                return None if box is None else RankItem(round_number, cursor, box)

    def length(self) -> int | None:
        """See `RankEndpoint`."""
        return self._run.get_epoch_length()

    def wait_for_source(self) -> SourceIdentity | None:
        """See `RankEndpoint`. By then the followers have been told too, so that all ranks can compare it."""
        while not self._length_sent.wait(_POLL_INTERVAL_S):
            if self._requests.failure is not None:
                raise self._requests.failure
            if self._is_closed:
                return None
        return self._run.wait_for_source()

    def count_skips(self, position: EpochPosition) -> SkipCount | None:
        """See `RankEndpoint`."""
        return self._run.dead_letters.count_until(position.epoch, position.cursor)

    def resume_skip_count(self, count: SkipCount) -> None:
        """See `RankEndpoint`."""
        self._run.dead_letters.resume_count(count)

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """See `RankEndpoint`."""
        while True:
            try:
                return self._run.find_lease(address, nbytes)
            except RuntimeError:  # the dispatcher changed the table of leases while this thread read it
                continue

    def stop_dispatch(self) -> None:
        """Stop dispatching and tell the followers."""
        if self._is_closed:
            return
        self._is_closed = True
        self._requests.stop()
        self._dispatcher.close(_STOP_TIMEOUT_S)
        for connection in self._connections:
            connection.send(LoaderClosed())
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def close(self) -> None:
        """See `RankEndpoint`."""
        self.stop_dispatch()
        self._pipeline.close()


_MAX_REASON_CHARS = 8 << 10
"""The part of an error that a refusal carries; it must fit in one message between ranks."""


def _send_welcome(connection: RankConnection, memory_handle: MemoryHandle, pipe_fd: int) -> None:
    arena_numbers = sorted(memory_handle.arena_fds)
    fds: Sequence[int] = [
        pipe_fd,
        *(memory_handle.arena_fds[number] for number in arena_numbers),
        *(memory_handle.release_fds[number] for number in arena_numbers),
    ]
    connection.send(Welcome(arena_numbers, memory_handle.memory_bytes))
    connection.send_descriptors(fds)
