"""An order that shuffles blocks of consecutive records, drawn once from (seed, epoch). Runs in the source's process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import derive_seed


class BlockShuffledOrder:
    """The numbers 0 ... `count` - 1, so that only a few blocks of them are read at a time.

    The blocks are shuffled; each run of `blocks_together` of them is mixed. A record is therefore never further from
    the records of its block than these blocks are long. Takes 8 bytes a record.

    >>> order = BlockShuffledOrder([0, 3], 5, "dataset", blocks_together=1)
    >>> order.begin(epoch=0, seed=17)
    >>> numbers = [order[index] for index in range(5)]
    >>> sorted(numbers), set(numbers[:2]) == {3, 4} or set(numbers[:3]) == {0, 1, 2}
    ([0, 1, 2, 3, 4], True)
    """

    def __init__(self, starts: Sequence[int], count: int, seed_name: str, *, blocks_together: int) -> None:
        """`starts` are the first numbers of the blocks, ascending from 0. Before `begin` the order is ascending."""
        self._bounds = np.append(np.asarray(starts, np.int64), count)
        self._seed_name = seed_name
        self._blocks_together = blocks_together
        self._order: NDArray[np.int64] | range = range(count)
        self._drawn_epoch_and_seed: tuple[int, int] | None = None

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order, unless it is the current one. It depends only on epoch and seed."""
        if self._drawn_epoch_and_seed == (epoch, seed):
            return
        drawn_seed = derive_seed(seed, epoch, self._seed_name, ()) & 0xFFFFFFFF
        # The draws of RandomState never change between versions of NumPy (NEP 19); a saved position relies on it.
        random = np.random.RandomState(drawn_seed)
        blocks = random.permutation(len(self._bounds) - 1)
        order = np.empty(len(self._order), np.int64)
        filled = 0
        for first in range(0, len(blocks), self._blocks_together):
            together = blocks[first : first + self._blocks_together]
            numbers = np.concatenate([np.arange(self._bounds[block], self._bounds[block + 1]) for block in together])
            random.shuffle(numbers)
            order[filled : filled + len(numbers)] = numbers
            filled += len(numbers)
        self._order = order
        self._drawn_epoch_and_seed = (epoch, seed)

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> int:
        return int(self._order[index])
