"""Eras: what is done about the shared memory that a dead worker leased. In the supervisor's process, under its lock.

What the dead one held is known to nobody, so a death begins a new era: from the next seek on, blocks come from a fresh
range of every arena. When all processes have entered it, each has named the older blocks on which it still has leases,
and the rest is punched out. What is named goes when a process says that it needs it no more. Until then all of it
counts as memory in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stagepipe.timing import Board
from stagepipe.transport import extend_arena, punch, span_of

Extent = tuple[int, int, int]
"""(arena, block, bytes) of a lease."""


class Eras:
    """Which era it is, who has entered it, and what of the older ones is still needed."""

    def __init__(self, limit: int, arenas: Mapping[int, int], board: Board) -> None:
        """`arenas` by number: the memfds, which `make_arena` made for `limit` bytes."""
        self.number = 0
        self._limit, self._arenas, self._board = limit, arenas, board
        self._held: dict[int, tuple[int, list[Extent]]] = {}
        self.lent = False
        """Whether other processes hold blocks that name them to nobody: then older eras stay as they are."""

    def begin(self, live_bytes: int) -> None:
        """A process has died; `live_bytes` is what was in use of the era that ends."""
        self.number += 1
        for fd in self._arenas.values():
            extend_arena(fd, self._limit, self.number)
        self._board.past_bytes += live_bytes

    def entered(self, process: int, era: int, leases: list[Extent], processes: Iterable[int]) -> bool:
        """`process` has these leases on older blocks; whether all of `processes` have entered, and the rest is gone."""
        self._held[process] = era, leases
        if any(self._held.get(each, (0,))[0] < self.number for each in processes):
            return False
        if self.lent:
            self._board.past_bytes = 0  # it stays, but nobody will give it back
            return True
        needed = [lease for each in processes for lease in self._held[each][1]]
        self._punch_but(needed)
        self._board.past_bytes = sum(nbytes for _, _, nbytes in set(needed))
        return True

    def left(self, process: int) -> None:
        """`process` is dead: what it said is void."""
        self._held.pop(process, None)

    def _punch_but(self, needed: list[Extent]) -> None:
        end = self.number * span_of(self._limit)
        for arena, fd in self._arenas.items():
            at = 0
            for _, block, nbytes in sorted(extent for extent in needed if extent[0] == arena):
                # Whole pages are given back: those that the lease begins and ends in stay.
                if block > at:
                    punch(fd, at, block - at)
                at = max(at, block + nbytes)
            punch(fd, at, end - at)
