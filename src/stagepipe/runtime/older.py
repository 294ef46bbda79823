"""What a process still has of older eras. In workers and in the caller's process, on the thread that leases."""

from __future__ import annotations

from collections.abc import Callable

from stagepipe.transport import Memory

Tell = Callable[[int, list[tuple[int, int, int]]], None]
"""Takes an era that was entered, and the leases (arena, block, bytes) on blocks of older ones."""


class Older:
    """Enters eras, and says what is still leased of those before, until it is nothing."""

    def __init__(self, memory: Memory, era: int, tell: Tell) -> None:
        """`era` is the one in which `memory` is."""
        self._memory, self._tell = memory, tell
        self.era, self._count = era, 0

    def enter(self, era: int) -> bool:
        """Take blocks from that era's range; whether it is another than before."""
        if era == self.era:
            return False
        self.era, self._count = era, -1  # in every era it is said anew
        self._memory.begin(era)
        return True

    def name(self) -> None:
        """Say what there is, if it is another number than the time before."""
        leases = self._memory.of_the_past()
        if len(leases) != self._count or not leases:
            self._count = len(leases)
            self._tell(self.era, leases)

    def look(self) -> None:
        """The same while there is something; costs nothing where there is not."""
        if self._count:
            self.name()
