"""The dealer: deals the pipeline's items out, round by round, to the ranks of this machine. A thread of the first rank.

It alone receives from the pipeline and sends to the ranks, so it alone touches the process's `Memory`. The first rank's
own items go to its training loop by a queue; when a tensor dies there, that only lands in a deque.
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

from stagepipe.core import Cursor, RunError, StagepipeError, UsageError, cursor_from_plain, cursor_to_plain
from stagepipe.engine import LocalRun
from stagepipe.plan import Even
from stagepipe.runtime.consumer import Lent
from stagepipe.timing import SEND_PHASES, Recorder
from stagepipe.timing.histogram import WORDS
from stagepipe.torch.node.messages import Ask, Failed
from stagepipe.torch.node.rounds import Round, rounds
from stagepipe.torch.node.table import ClosedError, Table
from stagepipe.transport import Bell, Kind, PipeEnds, Policy, Sender, make_pipe

AHEAD = 2
"""Items that wait for each rank beside the round in the dealer's hand: each keeps its memory."""
_THRESHOLD_BYTES = 4096
_TICK_S, _IDLE_S = 0.01, 0.25


class Place(Protocol):
    """Where a rank's items go."""

    def send(self, ask: int, number: int, cursor: bytes | None, box: list[Any]) -> bool:
        """Deal item `number`, the only one in `box`; False if it is not wanted any more."""

    def end(self, ask: int, total: int) -> None:
        """The epoch is over."""


class OwnPlace:
    """The first rank's own: a queue to its training loop. Entries: ask, number, cursor, box; None for the end."""

    def __init__(self, wanted: Callable[[], bool], tick: Callable[[], float]) -> None:
        """`wanted` and `tick` are asked and run while the queue is full."""
        self.queue: queue.Queue[tuple[int, int, bytes | None, list[Any] | None]] = queue.Queue(AHEAD)
        self._wanted, self._tick = wanted, tick

    def send(self, ask: int, number: int, cursor: bytes | None, box: list[Any] | None) -> bool:
        """See `Place`."""
        own = None if box is None else [box.pop()]
        while self._wanted():
            with suppress(queue.Full):
                self.queue.put((ask, number, cursor, own), timeout=self._tick())
                return True
        return False

    def end(self, ask: int, total: int) -> None:
        """See `Place`."""
        self.send(ask, total, None, None)


class PipePlace:
    """Another rank's: a packet pipe of its own. What lies in shared memory is passed on where it lies."""

    def __init__(self, lent: Lent, wanted: Callable[[], bool]) -> None:
        """`wanted` is asked while the pipe is full."""
        self.ends: PipeEnds = make_pipe(AHEAD)
        with suppress(OSError):  # where pipes in packet mode are sockets, more items wait
            fcntl.fcntl(self.ends.write_fd, fcntl.F_SETPIPE_SZ, AHEAD * 4096)
        self.bell = Bell()
        rows = Recorder(np.zeros(len(SEND_PHASES) * WORDS, np.uint64), len(SEND_PHASES))
        policy = Policy(_THRESHOLD_BYTES)
        self._sender = Sender(self.ends.write_fd, lent.memory, policy, self.bell, lambda: not wanted(), rows, lent.tick)

    def send(self, ask: int, number: int, cursor: bytes | None, box: list[Any]) -> bool:
        """See `Place`. The cursor goes with the item: it may be longer than a packet's head allows."""
        return self._sender.send([(cursor, box.pop())], ask, (number,), 1, b"")

    def end(self, ask: int, total: int) -> None:
        """See `Place`."""
        self._sender.tell(Kind.END, ask, (total,), count=total)

    def close(self) -> None:
        """Close this side's descriptors."""
        self._sender.close()
        self.bell.close()
        self.ends.close()


class Dealer:
    """Serves what the `Table` asks for, until that is over."""

    def __init__(self, run: LocalRun, lent: Lent, table: Table, ranks: int, even: Even | None) -> None:
        """Nothing is dealt before `start`."""
        self._run, self._lent, self._table, self._ranks, self._even = run, lent, table, ranks, even
        self.own = OwnPlace(lambda: table.wants(0), self._tick)
        self.others: list[PipePlace] = []
        for rank in range(1, ranks):
            self.others.append(PipePlace(lent, self._wanted_by(rank)))
        self._places: list[Place] = [self.own, *self.others]
        self._tell_failed: Callable[[int, Failed], object]
        self._tell_length: Callable[[int | None], object]
        self._thread = threading.Thread(target=self._serve, name="stagepipe-dealer", daemon=True)

    def _wanted_by(self, rank: int) -> Callable[[], bool]:
        return lambda: self._table.wants(rank)

    def start(self, tell_length: Callable[[int | None], object], tell_failed: Callable[[int, Failed], object]) -> None:
        """Begin; they are told an epoch's length, and of each rank's iteration that ends with an error."""
        self._tell_length, self._tell_failed = tell_length, tell_failed
        self._thread.start()

    def wake(self) -> None:
        """End the waits: something has changed at the table."""
        for place in self.others:
            place.bell.ring()

    def _tick(self) -> float:
        """What idle time is for; and how long until it wants to run again."""
        self._lent.tick()
        return _TICK_S if self._lent.memory.leased else _IDLE_S

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        try:
            self._tell_length(self._run.length())
            while True:
                try:
                    asks = self._table.gather(self._tick)
                except ClosedError as error:
                    self._refuse(error)
                    continue
                if asks is None:
                    return
                self._answer(asks)
        except Exception as error:  # noqa: BLE001 - whatever it is, no rank may wait for it for ever
            self._end(error)

    def _end(self, error: Exception) -> None:
        """Nobody gets anything any more."""
        if self._table.over:
            return
        if not isinstance(error, RunError):
            told = RunError(f"the dealer of this machine's items failed: {type(error).__name__}: {error}")
            told.__cause__ = error
            error = told
        self._table.fail(error)
        for rank in range(self._ranks):
            self._tell_failed(rank, failed(0, error))

    def _refuse(self, error: RunError) -> None:
        """What was asked for so far cannot be dealt; the owner may go on to be closed in order."""
        for rank in range(self._ranks):
            ask = self._table.give_up(rank)
            if ask is not None:
                self._tell_failed(rank, failed(ask.number, error))

    def _answer(self, asks: dict[int, Ask]) -> None:
        try:
            self._deal(asks)
        except StagepipeError as error:
            if self._table.over:
                return
            for rank, ask in asks.items():
                if self._table.wants(rank):
                    self._tell_failed(rank, failed(ask.number, error))

    def _deal(self, asks: dict[int, Ask]) -> None:
        """One epoch, from the lowest of the ranks' places on; each gets what it has not had.

        The owner's own comes last, of a round and at the end: when it has its item, all others have theirs, and it may
        close.
        """
        first = min(asks.values(), key=lambda ask: ask.rounds)
        if self._run.plan.any_order and any(ask.rounds != first.rounds for ask in asks.values()):
            _refuse_different_places(asks)
        number, wants = first.rounds, self._table.wants
        items = self._run.epoch(first.epoch, cursor_from_plain(first.cursor))
        for dealt in rounds(items, self._ranks, self._even, self._cursor):
            self._deal_round(number, dealt, asks)
            number += 1
            if not any(wants(rank) for rank in asks):
                return
        for rank, ask in sorted(asks.items(), reverse=True):
            if wants(rank):
                self._places[rank].end(ask.number, number)

    def _deal_round(self, number: int, dealt: Round, asks: dict[int, Ask]) -> None:
        cursor = None if dealt.cursor is None else msgspec.msgpack.encode(cursor_to_plain(dealt.cursor))
        for rank in (*range(1, len(dealt.boxes)), 0):
            ask = asks.get(rank)
            if ask is not None and number >= ask.rounds and self._table.wants(rank):
                self._places[rank].send(ask.number, number, cursor, dealt.boxes[rank])
            dealt.boxes[rank].clear()

    def _cursor(self) -> Cursor | None:
        try:
            return self._run.committed
        except UsageError:  # a place that cannot be told; whoever takes a state there is told why
            return None

    # ------------------------------------------------------------------ the end

    def close(self, timeout_s: float) -> bool:
        """End the thread; the table says that it is over. False if it does not end."""
        self.wake()
        self._run.cut()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        for place in self.others:
            place.close()
        return True


def failed(ask: int, error: StagepipeError) -> Failed:
    """An error as a message."""
    if isinstance(error, RunError):
        return Failed(ask, error.message, error.stage, error.worker, error.item, error.trace[-_TRACE:])
    return Failed(ask, str(error))


_TRACE = 32 << 10


def _refuse_different_places(asks: dict[int, Ask]) -> None:
    had = {rank: ask.rounds for rank, ask in sorted(asks.items())}
    message = (
        f"the ranks stand at different places of epoch {min(ask.epoch for ask in asks.values())} (items had, by local "
        f"rank: {had}), and with `order: any` what comes next is not what came then; save all ranks at the same step"
    )
    raise UsageError(message)
