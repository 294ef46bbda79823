"""The leader: the first rank of a machine. It owns the pipeline, dispatcher and listener, in its training process.

The dispatcher sends the pipeline's items to the ranks of this machine, in rounds of one item per rank. It dispatches
only complete rounds, so no rank receives an item without a match on the other ranks. The listener thread and the
training thread record the epoch requests of the ranks, and the dispatcher's thread reads them.

Only the dispatcher's thread receives from the pipeline and sends to the ranks, so only it uses the process's
shared-memory pool. The leader's own items go to its training thread through a queue. When a tensor dies there, its
lease only goes into a deque.
"""

from __future__ import annotations

import copy
import fcntl
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import msgspec
import numpy as np

from stagepipe.api import Pipeline
from stagepipe.core import Cursor, RunError, SkipCount, SourceIdentity, StagepipeError, UsageError, get_error_type
from stagepipe.engine import EpochPosition, LocalRun
from stagepipe.plan import EvenMode
from stagepipe.runtime import MemoryHandle
from stagepipe.timing import HISTOGRAM_WORDS, SEND_PHASES, DurationRecorder
from stagepipe.torch.rank_connection import (
    RENDEZVOUS_TIMEOUT_S,
    ConnectionListener,
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
    accept_rank,
    listening_socket,
    to_run_error,
)
from stagepipe.torch.ranks import RankTopology
from stagepipe.transport import Lease, PacketKind, PipeEnds, Sender, TransportRule, WakeEvent, make_packet_pipe


@dataclass
class Round:
    """One item per rank, and the cursor after all of them.

    Each box is a list that holds only the item. The reader pops it, so that no other reference remains.
    """

    boxes: list[list[Any]]
    cursor: Cursor | None


def make_rounds(
    items: Iterable[Any], rank_count: int, even: EvenMode | None, get_cursor: Callable[[], Cursor | None]
) -> Iterator[Round]:
    """Yield rounds: item k goes to rank k % rank_count. `even` controls an incomplete last round.

    `"drop"` leaves it out, `"pad"` repeats its items for the ranks without one, and None yields it as it is.
    `get_cursor` is called after the last item of each round.

    >>> [round_.boxes for round_ in make_rounds(range(5), 3, "pad", lambda: None)]
    [[[0], [1], [2]], [[3], [4], [3]]]
    """
    boxes: list[list[Any]] = []
    for item in items:
        boxes.append([item])
        del item  # the box has the only reference
        if len(boxes) == rank_count:
            yield Round(boxes, get_cursor())
            boxes = []
    if not boxes or even == "drop":
        return
    if even == "pad":
        item_count = len(boxes)
        # Copies, because each rank may write to its item.
        boxes += [[copy.deepcopy(boxes[rank % item_count][0])] for rank in range(item_count, rank_count)]
    yield Round(boxes, get_cursor())


class EpochRequests:
    """The open epoch requests, the closed ranks, and the error that ended dispatching."""

    def __init__(self, rank_names: list[str], timeout_s: float) -> None:
        """`rank_names` are for messages. A rank waits up to `timeout_s` for the others to start an epoch."""
        self._rank_names = rank_names
        self._timeout_s = timeout_s
        self._condition = threading.Condition()
        self._requests: dict[int, EpochRequest] = {}
        self._requested_at_s: dict[int, float] = {}
        self._closed_ranks: set[int] = set()
        self.failure: RunError | None = None
        self.is_stopping = False

    def add(self, rank: int, request: EpochRequest) -> None:
        """Record that `rank` starts an iteration."""
        with self._condition:
            self._requests[rank] = request
            self._requested_at_s[rank] = monotonic()
            self._condition.notify_all()

    def close_rank(self, rank: int) -> None:
        """Record that `rank` has closed its loader."""
        with self._condition:
            self._closed_ranks.add(rank)
            self._requests.pop(rank, None)
            self._condition.notify_all()

    def fail(self, error: RunError) -> bool:
        """End dispatching with an error. Return False if it has failed before; the first error stays."""
        with self._condition:
            is_first = self.failure is None
            self.failure = self.failure or error
            self._condition.notify_all()
        return is_first

    def stop(self) -> None:
        """End dispatching because the leader closes."""
        with self._condition:
            self.is_stopping = True
            self._condition.notify_all()

    # ------------------------------------------------------------------ for the dispatcher

    @property
    def is_over(self) -> bool:
        """Whether dispatching has ended for all ranks."""
        return self.is_stopping or self.failure is not None

    def wants_items(self, rank: int) -> bool:
        """Return whether `rank` still wants items of the iteration that is being dispatched."""
        return rank not in self._requests and rank not in self._closed_ranks and not self.is_over

    def wait_for_all(self, tick: Callable[[], float]) -> dict[int, EpochRequest] | None:
        """Wait until every rank has requested an epoch, and take the requests for the lowest epoch.

        Ranks that request a later epoch have received all of this one and keep waiting. Returns None once dispatching
        has ended. Meanwhile it calls `tick`, which returns the seconds until its next call.

        Raises RunError with the missing ranks if a rank has waited too long, and RankClosedError if one has closed its
        loader.
        """
        began_s = monotonic()
        while True:
            pause_s = tick()
            with self._condition:
                if self.is_over:
                    return None
                if len(self._requests) == len(self._rank_names):
                    epoch = min(request.epoch for request in self._requests.values())
                    requests = {rank: request for rank, request in self._requests.items() if request.epoch == epoch}
                    for rank in requests:
                        del self._requests[rank]
                    return requests
                self._raise_if_stalled(began_s)
                self._condition.wait(pause_s)

    def withdraw(self, rank: int) -> EpochRequest | None:
        """Take the request of `rank` without serving it."""
        with self._condition:
            return self._requests.pop(rank, None)

    def _raise_if_stalled(self, began_s: float) -> None:
        waiting = sorted(self._requests)
        if not waiting:
            return
        epoch = min(self._requests[rank].epoch for rank in waiting)
        waiting_names = self._format_ranks(waiting)
        if self._closed_ranks:
            closed_names = self._format_ranks(sorted(self._closed_ranks))
            raise RankClosedError(
                f"{closed_names}: the loader is closed, and {waiting_names} starts epoch {epoch}; "
                "iterate over the loader the same number of times on all ranks"
            )
        if monotonic() - max(began_s, min(self._requested_at_s[rank] for rank in waiting)) > self._timeout_s:
            missing = self._format_ranks([rank for rank in range(len(self._rank_names)) if rank not in self._requests])
            raise RunError(
                f"{missing}: epoch {epoch} was not started within {self._timeout_s:.0f} s, and {waiting_names} waited "
                "for it; iterate over the loader the same number of times on all ranks"
            )

    def _format_ranks(self, ranks: list[int]) -> str:
        return ", ".join(self._rank_names[rank] for rank in ranks)


class RankClosedError(RunError):
    """A rank requests an epoch, but another rank has closed its loader."""


MAX_QUEUED_ITEMS_PER_RANK = 2
"""Queued items per rank, in addition to the round that is being dispatched. Each one keeps its memory."""
_SHARED_MEMORY_MIN_BYTES = 4096
_LEASED_TICK_INTERVAL_S = 0.01
"""Time between ticks while items are leased. At a tick, released memory goes back to the workers."""
_IDLE_TICK_INTERVAL_S = 0.25
"""Time between ticks while no item is leased."""


class RankOutput(Protocol):
    """Sends items to one rank."""

    def send(self, iteration: int, round_number: int, cursor: bytes | None, box: list[Any]) -> bool:
        """Send the item in `box`, of round `round_number`. Return False if the rank no longer wants it."""

    def send_end(self, iteration: int, round_count: int) -> None:
        """Send the end of the epoch."""


class QueueRankOutput:
    """The leader's own output: a queue of (iteration, round number, cursor, box). A box of None ends the epoch."""

    def __init__(self, is_wanted: Callable[[], bool], tick: Callable[[], float]) -> None:
        """`is_wanted` and `tick` are called while the queue is full."""
        self.queue: queue.Queue[tuple[int, int, bytes | None, list[Any] | None]] = queue.Queue(
            MAX_QUEUED_ITEMS_PER_RANK
        )
        self._is_wanted = is_wanted
        self._tick = tick

    def send(self, iteration: int, round_number: int, cursor: bytes | None, box: list[Any] | None) -> bool:
        """See `RankOutput`. A box of None ends the epoch."""
        own_box = None if box is None else [box.pop()]
        while self._is_wanted():
            with suppress(queue.Full):
                self.queue.put((iteration, round_number, cursor, own_box), timeout=self._tick())
                return True
        return False

    def send_end(self, iteration: int, round_count: int) -> None:
        """See `RankOutput`."""
        self.send(iteration, round_count, None, None)


class PipeRankOutput:
    """A follower's output: its own packet pipe. Data in shared memory is passed on without a copy."""

    def __init__(self, memory_handle: MemoryHandle, is_wanted: Callable[[], bool]) -> None:
        """`is_wanted` is called while the pipe is full."""
        self.pipe_ends: PipeEnds = make_packet_pipe(MAX_QUEUED_ITEMS_PER_RANK)
        with suppress(OSError):  # without pipes in packet mode, this is a socket, which queues more items
            fcntl.fcntl(self.pipe_ends.write_fd, fcntl.F_SETPIPE_SZ, MAX_QUEUED_ITEMS_PER_RANK * 4096)
        self.wake_event = WakeEvent()
        recorder = DurationRecorder(np.zeros(len(SEND_PHASES) * HISTOGRAM_WORDS, np.uint64), len(SEND_PHASES))
        rule = TransportRule(threshold_bytes=_SHARED_MEMORY_MIN_BYTES)
        self._sender = Sender(
            self.pipe_ends.write_fd,
            memory_handle.memory,
            rule,
            self.wake_event,
            lambda: not is_wanted(),
            recorder,
            memory_handle.on_tick,
        )

    def send(self, iteration: int, round_number: int, cursor: bytes | None, box: list[Any]) -> bool:
        """See `RankOutput`. The cursor travels with the item, because it may be too long for a packet header."""
        return self._sender.send([(cursor, box.pop())], iteration, (round_number,), 1, b"")

    def send_end(self, iteration: int, round_count: int) -> None:
        """See `RankOutput`."""
        self._sender.send_marker(PacketKind.END_OF_SEGMENT, iteration, (round_count,), count=round_count)

    def close(self) -> None:
        """Close this side's descriptors."""
        self._sender.close()
        self.wake_event.close()
        self.pipe_ends.close()


class Dispatcher:
    """Serves the `EpochRequests` until dispatching ends."""

    def __init__(
        self,
        run: LocalRun,
        memory_handle: MemoryHandle,
        requests: EpochRequests,
        rank_count: int,
        even: EvenMode | None,
    ) -> None:
        """Create the outputs. Dispatching begins with `start`."""
        self._run = run
        self._memory_handle = memory_handle
        self._requests = requests
        self._rank_count = rank_count
        self._even = even
        self.leader_output = QueueRankOutput(lambda: requests.wants_items(0), self._tick)
        self.follower_outputs: list[PipeRankOutput] = []
        for rank in range(1, rank_count):
            self.follower_outputs.append(PipeRankOutput(memory_handle, self._make_is_wanted(rank)))
        self._outputs: list[RankOutput] = [self.leader_output, *self.follower_outputs]
        self._on_failure: Callable[[int, IterationFailed], object]
        self._on_length: Callable[[int | None], object]
        self._thread = threading.Thread(target=self._serve, name="stagepipe-dispatcher", daemon=True)

    def _make_is_wanted(self, rank: int) -> Callable[[], bool]:
        return lambda: self._requests.wants_items(rank)

    def start(
        self, on_length: Callable[[int | None], object], on_failure: Callable[[int, IterationFailed], object]
    ) -> None:
        """Start the thread. It calls `on_length` with the epoch's length, and `on_failure` for each failed rank."""
        self._on_length = on_length
        self._on_failure = on_failure
        self._thread.start()

    def wake(self) -> None:
        """Interrupt waits for full pipes, because the requests have changed."""
        for output in self.follower_outputs:
            output.wake_event.set()

    def _tick(self) -> float:
        """Do the idle work, and return the seconds until the next call."""
        self._memory_handle.on_tick()
        return _LEASED_TICK_INTERVAL_S if self._memory_handle.memory.lease_count else _IDLE_TICK_INTERVAL_S

    # ------------------------------------------------------------------ on the dispatcher thread

    def _serve(self) -> None:
        try:
            self._on_length(self._run.get_epoch_length())
            while True:
                try:
                    requests = self._requests.wait_for_all(self._tick)
                except RankClosedError as error:
                    self._refuse_requests(error)
                    continue
                if requests is None:
                    return
                self._serve_requests(requests)
        except Exception as error:  # noqa: BLE001 - on any error the ranks must stop waiting
            self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        """End dispatching and all iterations of all ranks."""
        if self._requests.is_over:
            return
        if not isinstance(error, RunError):
            wrapped_error = RunError(
                f"the thread that sends items to this machine's ranks failed: {type(error).__name__}: {error}"
            )
            wrapped_error.__cause__ = error
            error = wrapped_error
        self._requests.fail(error)
        for rank in range(self._rank_count):
            self._on_failure(rank, to_failure_message(0, error))

    def _refuse_requests(self, error: RunError) -> None:
        """Fail the open requests. The leader continues, so that it can be closed normally."""
        for rank in range(self._rank_count):
            request = self._requests.withdraw(rank)
            if request is not None:
                self._on_failure(rank, to_failure_message(request.iteration, error))

    def _serve_requests(self, requests: dict[int, EpochRequest]) -> None:
        try:
            self._dispatch_epoch(requests)
        except StagepipeError as error:
            if self._requests.is_over:
                return
            for rank, request in requests.items():
                if self._requests.wants_items(rank):
                    self._on_failure(rank, to_failure_message(request.iteration, error))

    def _dispatch_epoch(self, requests: dict[int, EpochRequest]) -> None:
        """Dispatch one epoch from the lowest position of all ranks. Each rank gets only the items that it lacks.

        The leader's own item comes last, in each round and at the end. Once it has its item, all other ranks have
        theirs, so it may close.
        """
        lowest_request = min(requests.values(), key=lambda request: request.first_round)
        first_round = lowest_request.first_round
        if self._run.plan.any_order and any(request.first_round != first_round for request in requests.values()):
            _refuse_mixed_positions(requests)
        round_number = first_round
        wants_items = self._requests.wants_items
        items = self._run.iter_epoch(lowest_request.epoch, lowest_request.cursor)
        for round_ in make_rounds(items, self._rank_count, self._even, self._get_cursor):
            self._dispatch_round(round_number, round_, requests)
            round_number += 1
            if not any(wants_items(rank) for rank in requests):
                return
        for rank, request in sorted(requests.items(), reverse=True):
            if wants_items(rank):
                self._outputs[rank].send_end(request.iteration, round_number)

    def _dispatch_round(self, round_number: int, round_: Round, requests: dict[int, EpochRequest]) -> None:
        cursor = None if round_.cursor is None else msgspec.msgpack.encode(round_.cursor)
        for rank in (*range(1, len(round_.boxes)), 0):
            request = requests.get(rank)
            if request is not None and round_number >= request.first_round and self._requests.wants_items(rank):
                self._outputs[rank].send(request.iteration, round_number, cursor, round_.boxes[rank])
            round_.boxes[rank].clear()

    def _get_cursor(self) -> Cursor | None:
        try:
            return self._run.committed_cursor
        except UsageError:  # there is no state at this position; `state_dict` then raises the reason
            return None

    # ------------------------------------------------------------------ the end

    def close(self, timeout_s: float) -> bool:
        """Stop the thread, after the requests were stopped or failed. Return False if it does not end in time."""
        self.wake()
        self._run.cancel_epoch()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        for output in self.follower_outputs:
            output.close()
        return True


def to_failure_message(iteration: int, error: StagepipeError) -> IterationFailed:
    """Convert an error to a message for a rank."""
    if isinstance(error, RunError):
        return IterationFailed(
            iteration=iteration,
            message=error.message,
            stage=error.stage,
            worker=error.worker,
            item=error.item,
            trace=error.trace[-_MAX_TRACEBACK_CHARS:],
            error_type=get_error_type(error),
        )
    return IterationFailed(iteration=iteration, message=str(error))


_MAX_TRACEBACK_CHARS = 32 << 10
"""Maximum characters from the end of a traceback in a message: half of the largest message between ranks."""


def _refuse_mixed_positions(requests: dict[int, EpochRequest]) -> None:
    rounds_done = {rank: request.first_round for rank, request in sorted(requests.items())}
    epoch = min(request.epoch for request in requests.values())
    raise UsageError(
        f"the ranks resume epoch {epoch} at different positions (items received, by local rank: {rounds_done}); "
        "with `order` set to `any` the items come in a different order than before; save all ranks at the same step"
    )


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
                self._run: LocalRun = pipeline._start_local_run()  # noqa: SLF001 - only this class uses it
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
        """Connect all ranks, send them their descriptors, and start dispatching."""
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
        """Tell the connected followers why the pipeline does not start."""
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
        message = EpochLength(items, self._run.wait_for_source())  # the source is built, since its length is known
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
        """See `RankEndpoint`. Waits until the followers have the identity too, so that all ranks can compare it."""
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
"""Maximum characters of an error in a refusal, which must fit in one message between ranks."""


def _send_welcome(connection: RankConnection, memory_handle: MemoryHandle, pipe_fd: int) -> None:
    arena_numbers = sorted(memory_handle.arena_fds)
    fds: Sequence[int] = [
        pipe_fd,
        *(memory_handle.arena_fds[number] for number in arena_numbers),
        *(memory_handle.release_fds[number] for number in arena_numbers),
    ]
    connection.send(Welcome(arena_numbers, memory_handle.memory_bytes, memory_handle.transports))
    connection.send_descriptors(fds)
