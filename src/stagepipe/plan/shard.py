"""A rank's shard of an epoch: item i of the source's order goes to rank i % world_size. Pure; used where it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stagepipe.core import UsageError

Even = Literal["pad", "drop"]
"""How all ranks get the same number of source items: the first ones once more, or the last ones not at all."""


@dataclass(frozen=True)
class Shard:
    """The shard of one of `world_size` ranks. A rank numbers its own items 0, 1, 2 ...

    >>> shard = Shard(rank=1, world_size=4, even="pad")
    >>> shard.count(6), [shard.place(number, 6) for number in range(2)]
    (2, [1, 5])
    >>> [Shard(rank, 4).count(6) for rank in range(4)], Shard(3, 4, "drop").count(6)
    ([2, 2, 1, 1], 1)

    Raises UsageError for a rank that is not in the world.
    """

    rank: int = 0
    world_size: int = 1
    even: Even | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        numbers = (self.rank, self.world_size)
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not whole or not 0 <= self.rank < self.world_size:
            message = (
                f"rank={self.rank!r} of world_size={self.world_size!r}: give whole numbers, and a rank from 0 to "
                "world_size - 1, as torch.distributed.get_rank() and get_world_size() have them"
            )
            raise UsageError(message)
        if self.even not in (None, "pad", "drop"):
            message = (
                f"even={self.even!r}; give 'pad' (the first items once more), 'drop' (the last not at all) or None"
            )
            raise UsageError(message)

    def count(self, total: int) -> int:
        """How many of an epoch's `total` items are this rank's."""
        if self.even == "drop":
            return total // self.world_size
        others = self.world_size - 1 if self.even == "pad" else self.world_size - 1 - self.rank
        return (total + others) // self.world_size

    def number(self, own: int) -> int:
        """The number in the source's order of this rank's item `own`: what it is called, and what seeds it."""
        return own * self.world_size + self.rank

    def place(self, own: int, total: int) -> int:
        """Where this rank's item `own` lies in a source of `total` items; padding begins again at the first."""
        return self.number(own) % total


WHOLE = Shard()
"""The only rank of a world of one."""
