"""`Shuffle`: permutes blocks of items by the epoch's seed. An order point; runs in its own process."""

from __future__ import annotations

import random
from typing import Any, ClassVar, Final

from stagepipe.stages.order_point import OrderPointStage, check_size


class Shuffle(OrderPointStage):
    """Collect a block of `size` items and yield it in random order, block after block.

    Unlike a sliding buffer, a block can be repeated from its first item and the seed alone, so a crash or a resume does
    not change the order. The last block of an epoch may be shorter. Each item is yielded exactly once, unchanged.

    Args:
        size: items in a block, such as `1000`; all of them are in memory at once.

    >>> shuffle = Shuffle(size=3)
    >>> [shuffle.add(value, 1) for value in "abc"]
    [False, False, True]
    >>> sorted(shuffle.flush(random.Random(0)))
    [('a', 1), ('b', 1), ('c', 1)]

    Raises ValueError if `size` is not a whole number of at least 1.
    """

    is_permutation: ClassVar[bool] = True
    items_per_output: ClassVar[int | str | None] = 1

    def __init__(self, size: int) -> None:
        self.size: Final = check_size(size, "Shuffle")
        self.clear()

    def add(self, value: Any, samples: int) -> bool:
        """Add one item to the block; True when the block is full."""
        self._block.append((value, samples))
        return len(self._block) == self.size

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:
        """Return the block, permuted, and drop every reference to it."""
        block = self._block
        self.clear()
        rng.shuffle(block)
        return block

    def clear(self) -> None:
        """Discard the current block."""
        self._block: list[tuple[Any, int]] = []
