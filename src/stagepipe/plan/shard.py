"""A rank's shard of an epoch: item i of the source's order goes to rank i % world_size. Pure; used where it is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

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

    def part(self, stream: Iterator[Any], own: int) -> Iterator[Any]:
        """Of a stream that is at its start, this rank's items from its item `own` on."""
        return itertools.islice(stream, self.number(own), None, self.world_size)

    def of(self, stretch: int) -> Shard:
        """How what travels in that stretch is called: groups of items have numbers of their own in each rank."""
        del stretch
        return self


@dataclass(frozen=True)
class Chosen(Shard):
    """Some of the source's items alone, called and seeded as in a run of all of them.

    >>> chosen = Chosen(items=(3, 8))
    >>> chosen.count(20), chosen.number(1), chosen.place(1, 20), "".join(chosen.part(iter("abcdefghij"), 0))
    (2, 8, 8, 'di')
    """

    items: tuple[int, ...] = ()

    def count(self, total: int) -> int:
        """How many of them there are."""
        return sum(item < total for item in self.items)

    def number(self, own: int) -> int:
        """The number in the source's order; behind them all, the number itself."""
        return self.items[own] if own < len(self.items) else own

    def place(self, own: int, total: int) -> int:
        """Where the item lies in a source of `total` items."""
        del total
        return self.items[own]

    def part(self, stream: Iterator[Any], own: int) -> Iterator[Any]:
        """Of a stream that is at its start, the items from the one numbered `own` here on."""
        wanted = set(self.items[own:])
        last = max(wanted, default=-1)
        return (value for at, value in enumerate(itertools.islice(stream, last + 1)) if at in wanted)

    def of(self, stretch: int) -> Shard:
        """Groups of them are numbered from 0 on."""
        return WHOLE if stretch else self


WHOLE = Shard()
"""The only rank of a world of one."""
