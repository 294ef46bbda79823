"""The order of an epoch, drawn once from (seed, epoch), so that a source begins at any place of it at once."""

from __future__ import annotations

import random
from collections.abc import Sequence

from stagepipe.core import seed_of


class ShuffledOrder:
    """The numbers 0 ... `count` - 1, in another order in each epoch.

    >>> order = ShuffledOrder(3, "files")
    >>> order.begin(epoch=0, seed=17)
    >>> sorted(order[at] for at in range(3))
    [0, 1, 2]
    """

    def __init__(self, count: int, name: str) -> None:
        """`name` goes into the seed, so that two sources differ. Before `begin` the order is that of the numbers."""
        self._count, self._name = count, name
        self._order: Sequence[int] = range(count)
        self._drawn: tuple[int, int] | None = None

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order, unless it is the one that is there: the same for the same epoch and seed."""
        if self._drawn != (epoch, seed):
            order = list(range(self._count))
            random.Random(seed_of(seed, epoch, self._name, ())).shuffle(order)
            self._order, self._drawn = order, (epoch, seed)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> int:
        return self._order[at]
