"""`RecentlyUsed`: what is costly to open or read, kept for a few keys. Runs where a source is read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class RecentlyUsed(Generic[V]):
    """Values by key, of which the `limit` used last are kept; `make` makes the others again.

    >>> squares = RecentlyUsed(lambda number: number**2, limit=2)
    >>> squares.get(3), squares.get(4)
    (9, 16)
    """

    def __init__(self, make: Callable[[Any], V], limit: int) -> None:
        self._make = make
        self._limit = limit
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable) -> V:
        """Return the value of a key."""
        if key in self._values:
            self._values.move_to_end(key)
        else:
            self._values[key] = self._make(key)
            if len(self._values) > self._limit:
                self._values.popitem(last=False)
        return self._values[key]
