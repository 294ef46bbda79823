"""Dispatches the pipeline's items to the ranks of this machine, round by round. Its own thread on the leader.

Only this thread receives from the pipeline and sends to the ranks, so only it touches the process's shared-memory pool.
The leader's own items reach its training thread by a queue; when a tensor dies there, its lease only goes into a deque.
"""

from __future__ import annotations

import fcntl
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import numpy as np

from stagepipe.core import Cursor, RunError, StagepipeError, UsageError, get_error_type
from stagepipe.engine import LocalRun
from stagepipe.plan import EvenMode
from stagepipe.runtime import MemoryHandle
from stagepipe.timing import HISTOGRAM_WORDS, SEND_PHASES, DurationRecorder
from stagepipe.torch.shared_pipeline.epoch_requests import EpochRequests, RankClosedError
from stagepipe.torch.shared_pipeline.messages import EpochRequest, IterationFailed
from stagepipe.torch.shared_pipeline.rounds import Round, make_rounds
from stagepipe.transport import PacketKind, PipeEnds, Sender, TransportRule, WakeEvent, make_packet_pipe

MAX_QUEUED_ITEMS_PER_RANK = 2
"""Items queued per rank, besides the round that is being dispatched. Each keeps its memory."""
_SHARED_MEMORY_MIN_BYTES = 4096
_LEASED_TICK_INTERVAL_S = 0.01
"""Time between ticks while items are leased: released memory goes back to the workers at a tick."""
_IDLE_TICK_INTERVAL_S = 0.25
"""Time between ticks while no item is leased."""


class RankOutput(Protocol):
    """Sends items to one rank."""

    def send(self, iteration: int, round_number: int, cursor: bytes | None, box: list[Any]) -> bool:
        """Send the item in `box`, of round `round_number`. False if the rank does not want it any more."""

    def send_end(self, iteration: int, round_count: int) -> None:
        """Send the end of the epoch."""


class QueueRankOutput:
    """The leader's own output: a queue of (iteration, round number, cursor, box); a box of None ends the epoch."""

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
    """A follower's output: its own packet pipe. What lies in shared memory is passed on without a copy."""

    def __init__(self, memory_handle: MemoryHandle, is_wanted: Callable[[], bool]) -> None:
        """`is_wanted` is called while the pipe is full."""
        self.pipe_ends: PipeEnds = make_packet_pipe(MAX_QUEUED_ITEMS_PER_RANK)
        with suppress(OSError):  # without pipes in packet mode it is a socket, which queues more items
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
        """See `RankOutput`. The cursor goes with the item, because it may be too long for a packet header."""
        return self._sender.send([(cursor, box.pop())], iteration, (round_number,), 1, b"")

    def send_end(self, iteration: int, round_count: int) -> None:
        """See `RankOutput`."""
        self._sender.send_marker(PacketKind.END_OF_SEGMENT, iteration, (round_count,), count=round_count)

    def close(self) -> None:
        """Close the descriptors of this side."""
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
        """Nothing is dispatched before `start`."""
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
        """Start the thread, which calls `on_length` with the epoch's length and `on_failure` for each failed rank."""
        self._on_length = on_length
        self._on_failure = on_failure
        self._thread.start()

    def wake(self) -> None:
        """Interrupt the waits for full pipes: the requests have changed."""
        for output in self.follower_outputs:
            output.wake_event.set()

    def _tick(self) -> float:
        """Do the idle work, and return the seconds until it should run again."""
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
        """Fail the open requests. The leader goes on, so that it can be closed in an orderly way."""
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
        """Dispatch one epoch from the lowest of the ranks' positions on; each rank gets the items that it lacks.

        The leader's own item comes last, in each round and at the end: once it has its item, all other ranks have
        theirs, and it may close.
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
        except UsageError:  # no state can be taken here; `state_dict` then raises the reason
            return None

    # ------------------------------------------------------------------ the end

    def close(self, timeout_s: float) -> bool:
        """Stop the thread, after the requests were stopped or failed. False if it does not end in time."""
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
"""The end of a traceback that a message carries: half of the largest message between ranks."""


def _refuse_mixed_positions(requests: dict[int, EpochRequest]) -> None:
    rounds_done = {rank: request.first_round for rank, request in sorted(requests.items())}
    epoch = min(request.epoch for request in requests.values())
    message = (
        f"the ranks resume epoch {epoch} at different positions (items received, by local rank: {rounds_done}); "
        "with `order` set to `any` the items come in another order than before; save all ranks at the same step"
    )
    raise UsageError(message)
