"""Decides what to do when an item does not fit into shared memory. Pure; starts nothing."""

from __future__ import annotations

from enum import Enum, auto

from stagepipe.runtime.flow import SegmentWindows


class ArenaFullDecision(Enum):
    """What follows when an item does not fit into shared memory."""

    SEEK = auto()
    """Process the items in flight again, with smaller windows or with more free memory."""
    SETTLE = auto()
    """Ask again a moment later: items may still be on their way, and the held bytes on the board may be old."""
    FAIL = auto()
    """The item does not fit even alone."""


class ArenaFullPolicy:
    """Halves the windows each time, and fails once they are 1 and nothing has been delivered in between."""

    def __init__(self, windows: SegmentWindows) -> None:
        """`windows` are changed in place."""
        self.windows = windows
        self._items_delivered_before = 0
        self._has_settled = False

    def decide(self, items_delivered: int) -> ArenaFullDecision:
        """Decide. `items_delivered`: the items of the whole run so far."""
        # Smaller windows need less memory, and items delivered since the last time have made room.
        if self.windows.halve() or items_delivered > self._items_delivered_before:
            self._items_delivered_before = items_delivered
            self._has_settled = False
            return ArenaFullDecision.SEEK
        if not self._has_settled:
            self._has_settled = True
            return ArenaFullDecision.SETTLE
        return ArenaFullDecision.FAIL
