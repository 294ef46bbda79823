"""Backpressure: whoever feeds a stretch admits items up to what its order point has consumed plus the window."""

from __future__ import annotations

import select
from collections.abc import Callable
from time import perf_counter_ns

from stagepipe.timing import Board
from stagepipe.transport import Bell, Waiter

_TICK_S = 0.005
_MEMORY_SHARE = 0.8
_ROOMY_BYTES = 16 << 20
"""Where the window is automatic, small items may be many: as long as all arenas together hold less than this, which the
caches of today's processors nearly do."""
_LOOK_EVERY = 8
_FORGET = 1016
"""In 1024ths: what an item took is half forgotten after 90 looks, which are several windows."""


class Gate:
    """The feeder's side. Counts are item numbers of the stretch; bytes are those of all arenas of the run."""

    def __init__(
        self, board: Board, stretch: int, bells: tuple[Bell, Bell], memory_bytes: int, tick: Callable[[], None]
    ) -> None:
        """`bells` end a wait: the stretch's order point rings one, a seek or the end the other; `tick` runs before."""
        self._board, self._stretch, self._memory_bytes, self._tick = board, stretch, memory_bytes, tick
        self._waiter = Waiter(None, select.EPOLLIN, *bells)
        self._generation = 0
        self.blocked_ns = 0
        self._start = self._window = self._roomy = self._consumed = self._live = self._grown = self._most = 0

    def enter(self, generation: int, start: int, window: int, roomy_window: int) -> None:
        """Begin a generation at item `start`."""
        self._generation, self._start, self._consumed = generation, start, start
        self._window, self._roomy = window, roomy_window
        self._grown = min(2, window)

    def admits(self, number: int) -> bool:
        """Whether item `number` may enter now. One may always enter an empty stretch."""
        if (number >= self._consumed + 1 and number - self._consumed >= self._grown) or not number % _LOOK_EVERY:
            self._look(number)
        under_way = number - self._consumed
        if under_way <= 0:
            return True
        window = self._roomy if max(self._live, under_way * self._most) < _ROOMY_BYTES else self._window
        if under_way >= min(window, self._grown):
            return False
        share = self._live / under_way
        return self._live + share <= self._memory_bytes * _MEMORY_SHARE

    def _look(self, number: int) -> None:
        consumed = self._board.consumed(self._stretch, self._generation)
        if consumed is not None and consumed > self._consumed:
            # A slow start: what an item will take is known only when some have come through.
            self._grown = min(self._grown + 2 * (consumed - self._consumed), self._roomy)
            self._consumed = consumed
        self._live = self._board.live_bytes()
        # What items take is often made stages later, behind a queue of light ones: what they took before counts too.
        self._most = max(self._live // max(number - self._consumed, 1), self._most * _FORGET // 1024)

    def wait(self, number: int, interrupted: Callable[[], bool]) -> bool:
        """Until item `number` is admitted; False if interrupted."""
        if self.admits(number):
            return True
        begin = perf_counter_ns()
        try:
            return self._wait(number, interrupted)
        finally:
            self.blocked_ns += perf_counter_ns() - begin

    def _wait(self, number: int, interrupted: Callable[[], bool]) -> bool:
        while not interrupted():
            self._tick()
            # To be woken a few items early saves wake-ups; all that is under way will be consumed in any case.
            under_way = number - self._consumed
            self._board.publish_awaited(self._stretch, self._generation, self._consumed + max(under_way // 4, 1))
            if not self.admits(number):
                self._waiter.wait(_TICK_S)
            self._look(number)
            if self.admits(number):
                self._board.publish_awaited(self._stretch, self._generation, None)
                return True
        return False


class Meter:
    """The order point's side: it publishes how many items it has consumed, and wakes a feeder that waits for it."""

    def __init__(self, board: Board, stretch: int, bell: Bell) -> None:
        """`bell` is the one that the stretch's feeder listens to."""
        self._board, self._stretch, self._bell = board, stretch, bell

    def publish(self, generation: int, count: int) -> None:
        """All items below `count` are consumed."""
        self._board.publish_consumed(self._stretch, generation, count)
        awaited = self._board.awaited(self._stretch, generation)
        if awaited is not None and count >= awaited:
            self._bell.ring()
