"""`Shuffle`: block by block, in an order drawn from the epoch's seed. An order point; runs in its own process."""

from __future__ import annotations

import random
from typing import Any, ClassVar, Final

from stagepipe.stages.grouping import checked_size


class Shuffle:
    """Collect `size` items and give them out in an order of `rng`; then the next block.

    A block, unlike a sliding buffer, can be made again from its first item and the seed alone, so that a crash or a
    resume changes nothing. An epoch's last block may be shorter.

    >>> shuffle = Shuffle(size=3)
    >>> [shuffle.add(value, 1) for value in "abc"]
    [False, False, True]
    >>> sorted(shuffle.flush(random.Random(0)))
    [('a', 1), ('b', 1), ('c', 1)]
    """

    order_point: ClassVar[bool] = True
    keeps_items: ClassVar[bool] = True

    def __init__(self, size: int) -> None:
        self.size: Final = checked_size(size, "Shuffle")
        self.clear()

    def add(self, value: Any, samples: int) -> bool:
        """Keep one item; True when the block is full."""
        self._block.append((value, samples))
        return len(self._block) == self.size

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:
        """The block, permuted; this object then holds none of it."""
        block = self._block
        self.clear()
        rng.shuffle(block)
        return block

    def finish(self, rng: random.Random) -> list[tuple[Any, int]]:
        """The last block, permuted."""
        return self.flush(rng)

    def clear(self) -> None:
        """Forget the block begun."""
        self._block: list[tuple[Any, int]] = []
