"""`StreamStates`: the states that a source's stream has reported in an epoch. In the caller's process.

The coordinator calls it with its lock held.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from stagepipe.core import StreamState

_MAX_STATES: Final = 128
"""At 20 states per second, the last 6 s of reading are kept whole, and what is older more and more sparsely."""


class StreamStates:
    """Finds the newest state of a stream at or before an item.

    >>> states = StreamStates()
    >>> states.add(0, 4, (4, "a")), states.add(0, 9, (9, "b"))
    (None, None)
    >>> states.find(0, 8), states.find(0, 3), states.find(1, 8)
    ((4, 'a'), None, None)
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._items: list[int] = []
        self._states: list[StreamState] = []

    @property
    def is_empty(self) -> bool:
        """Whether no state was reported in the newest epoch that reported any."""
        return not self._items

    def add(self, epoch: int, item: int, state: StreamState) -> None:
        """Add the state before item `item` of this rank. States of an earlier epoch are dropped.

        In an epoch a stream yields the same items each time, so a state stays valid after a seek.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._items.clear()
            self._states.clear()
        index = bisect_right(self._items, item)
        if index and self._items[index - 1] == item:
            return
        self._items.insert(index, item)
        self._states.insert(index, state)
        if len(self._items) > _MAX_STATES:
            del self._items[1:-1:2]
            del self._states[1:-1:2]

    def find(self, epoch: int, item: int) -> StreamState | None:
        """Return the state that is nearest before item `item`; None if there is none."""
        index = bisect_right(self._items, item) if epoch == self._epoch else 0
        return self._states[index - 1] if index else None
