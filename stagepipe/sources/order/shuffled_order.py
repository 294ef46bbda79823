"""The order of an epoch, drawn once from (seed, epoch). Runs in the source's process.

Because the whole order is drawn at once, a source can start at any position of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from stagepipe.core import derive_seed


class ShuffledOrder:
    """The numbers 0 ... `count` - 1, in a different order in each epoch.

    >>> order = ShuffledOrder(3, "files")
    >>> order.begin(epoch=0, seed=17)
    >>> sorted(order[index] for index in range(3))
    [0, 1, 2]
    """

    def __init__(self, count: int, seed_name: str) -> None:
        """`seed_name` goes into the seed, so that two sources differ. Before `begin` the order is ascending."""
        self._count = count
        self._seed_name = seed_name
        self._order: Sequence[int] = range(count)
        self._drawn_epoch_and_seed: tuple[int, int] | None = None

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order, unless it is the current one. It depends only on epoch and seed."""
        if self._drawn_epoch_and_seed != (epoch, seed):
            order = list(range(self._count))
            random.Random(derive_seed(seed, epoch, self._seed_name, ())).shuffle(order)
            self._order = order
            self._drawn_epoch_and_seed = (epoch, seed)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        return self._order[index]
