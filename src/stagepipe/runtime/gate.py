"""Backpressure: whoever feeds a stretch admits items up to what its order point has consumed plus the window."""

from __future__ import annotations

import select
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns
from typing import NamedTuple

from stagepipe.timing import Board
from stagepipe.transport import Bell, Waiter

_TICK_S = 0.005
MEMORY_SHARE = 0.8
"""Of `memory`, for what is under way; the rest is for what grows on its way."""
_ROOMY_BYTES = 16 << 20
"""Where the window is automatic, small items may be many: as long as they take less than this, which the caches of
today's processors nearly hold."""
_GIVEN_BACK_NS = 100_000_000
"""How long after a seek others may take to give back what they had of the generation before."""
_LOOK_EVERY = 8
_SURE = 8
"""So many waits show what an item takes: in the first, what was consumed is not yet given back."""
_CLEARLY = 2
"""A window that nearly fits is no news: what was consumed and is not given back yet counts as well."""
_SLOW_START = 4
_FORGET = 0.98
"""How fast the memory of an item of the past is forgotten, a look: fifty looks leave a third of it."""


class Stretch(NamedTuple):
    """What is fed: its number, by stage the processes whose arenas hold its items, the whole run's memory in bytes."""

    number: int
    stages: tuple[tuple[int, ...], ...]
    memory_bytes: int


class Gate:
    """The feeder's side. Counts are item numbers of the stretch; bytes are those of all arenas of the run."""

    def __init__(self, board: Board, stretch: Stretch, bells: tuple[Bell, Bell], tick: Callable[[], None]) -> None:
        """`bells` end a wait: the stretch's order point rings one, a seek or the end the other; `tick` runs before."""
        self._board, self._stretch, self._stages, self._tick = board, stretch.number, stretch.stages, tick
        self._limit_bytes = stretch.memory_bytes * MEMORY_SHARE
        self._waiter = Waiter(None, select.EPOLLIN, *bells)
        self._generation = 0
        self.blocked_ns = 0
        self._window = self._roomy = self._consumed = self._live = self._room = self._grown = 0
        self._waits_until_ns = 0
        self._held = self._largest = 0
        self._item_bytes, self._least, self._crowded = 0.0, float("inf"), 0

    def enter(self, generation: int, start: int, window: int, roomy_window: int) -> None:
        """Begin a generation at item `start`."""
        self._generation, self._consumed = generation, start
        self._window, self._roomy = window, roomy_window
        self._live, self._waits_until_ns = int(self._limit_bytes) + 1, perf_counter_ns() + _GIVEN_BACK_NS
        # A slow start: what an item will take is known only when some have come through, now or in an epoch before.
        self._grown = self._room = min(max(_SLOW_START, self._grown), max(window, roomy_window))

    def admits(self, number: int) -> bool:
        """Whether item `number` may enter now. One may always enter an empty stretch, at once or soon after a seek."""
        full = number - self._consumed >= self._room
        if full or not number % _LOOK_EVERY or self._live + _LOOK_EVERY * self._item_bytes > self._limit_bytes:
            self._look(number)
        under_way = number - self._consumed
        if under_way <= 0:
            return self._live <= self._limit_bytes or perf_counter_ns() > self._waits_until_ns
        if under_way >= self._room:
            return False
        # What is under way may not have its memory yet: each will take what those before it took, or a look that comes
        # between two items has seen none; what has been taken at once is known for certain.
        each = max(self._item_bytes, self._largest)
        return max(self._live, self._held + under_way * each) + each <= self._limit_bytes

    def _look(self, number: int) -> None:
        self._live = self._board.live_bytes()
        consumed = self._board.consumed(self._stretch, self._generation)
        if consumed is not None and consumed > self._consumed:
            self._grown = min(self._grown + 2 * (consumed - self._consumed), self._roomy)
            self._consumed = consumed
        self._held, self._largest = self._board.held_bytes(), self._most_bytes()
        under_way = max(number - self._consumed, 1)
        self._item_bytes = max((self._live - self._held) / under_way, self._item_bytes * _FORGET)
        fitting = int(_ROOMY_BYTES / max(self._item_bytes, 1.0))
        self._room = min(max(self._window, min(fitting, self._roomy)), self._grown)

    def _most_bytes(self) -> int:
        """What an item can take at a time: its place in one stage's arena, and in that of the next, which copies it."""
        blocks = [self._board.largest_bytes(stage) for stage in self._stages]
        return max(map(sum, pairwise(blocks)), default=blocks[0])

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
            self._board.publish_held_up(self._stretch, perf_counter_ns())
            # To be woken for a quarter of the room saves wake-ups; what is under way will be consumed in any case.
            wanted = number - self._room + max(self._room // 4, 1)
            self._board.publish_awaited(self._stretch, self._generation, max(wanted, self._consumed + 1))
            self._look(number)
            if not self.admits(number):
                self._tell_if_crowded(number - self._consumed)
                self._waiter.wait(_TICK_S)
                self._tick()
                self._look(number)
            if self.admits(number):
                self._board.publish_awaited(self._stretch, self._generation, None)
                return True
        return False

    def _tell_if_crowded(self, under_way: int) -> None:
        """It is memory that holds items back, and not the window, which would not fit: the supervisor will say so."""
        if not 0 < under_way < min(self._room, self._window):
            return
        each = max((self._live - self._held) / under_way, self._largest)
        self._least, self._crowded = min(self._least, each), self._crowded + 1
        if self._crowded >= _SURE and self._window * self._least > _CLEARLY * self._limit_bytes:
            fitting = max(int(self._limit_bytes / self._least), 1)
            self._board.publish_crowded(self._stretch, int(self._least), fitting)


class Meter:
    """The order point's side: it publishes how many items it has consumed, and wakes a feeder that waits for it.

    Every few items, and before it waits itself (`flush`): each time would cost a microsecond an item.
    """

    def __init__(self, board: Board, stretch: int, bell: Bell) -> None:
        """`bell` is the one that the stretch's feeder listens to."""
        self._board, self._stretch, self._bell = board, stretch, bell
        self._generation = self._count = self._published = self._rung = 0
        self._every = 1

    def enter(self, generation: int, count: int, window: int) -> None:
        """Begin a generation in which all items below `count` are consumed already."""
        self._generation, self._count, self._published, self._rung = generation, count, -1, 0
        self._every = max(window // 8, 1)
        self.flush()

    def publish(self, count: int) -> None:
        """All items below `count` are consumed."""
        self._count = count
        if count - self._published >= self._every:
            self.flush()

    def flush(self) -> None:
        """Tell it now."""
        count = self._count
        if count == self._published:
            return
        self._published = count
        self._board.publish_consumed(self._stretch, self._generation, count)
        awaited = self._board.awaited(self._stretch, self._generation)
        if awaited is not None and count >= awaited != self._rung:
            self._rung = awaited
            self._bell.ring()
