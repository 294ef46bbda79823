"""The shard of a rank: item i of the source's order goes to rank i % world_size.

Pure. The source uses it, in its own process and inline, and the engine where it numbers items.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from stagepipe.core import UsageError

EvenMode = Literal["pad", "drop"]
"""How all ranks get the same number of source items: `pad` repeats the first ones, `drop` leaves out the last ones."""


@dataclass(frozen=True)
class Shard:
    """The shard of one of `world_size` ranks. A rank counts its own items 0, 1, 2 ...: their local index.

    >>> shard = Shard(rank=1, world_size=4, even="pad")
    >>> shard.count_items(6), [shard.to_source_index(index, 6) for index in range(2)]
    (2, [1, 5])
    >>> [Shard(rank, 4).count_items(6) for rank in range(4)], Shard(3, 4, "drop").count_items(6)
    ([2, 2, 1, 1], 1)

    Raises UsageError if `rank` is not in 0..world_size - 1 or `even` is unknown.
    """

    rank: int = 0
    world_size: int = 1
    even: EvenMode | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        numbers = (self.rank, self.world_size)
        are_integers = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
        if not are_integers or not 0 <= self.rank < self.world_size:
            message = (
                f"rank={self.rank!r} of world_size={self.world_size!r}: both must be integers, and the rank from 0 to "
                "world_size - 1; pass torch.distributed.get_rank() and get_world_size()"
            )
            raise UsageError(message)
        if self.even not in (None, "pad", "drop"):
            message = (
                f"even={self.even!r}: must be 'pad' (repeat the first items), 'drop' (leave out the last ones) or None"
            )
            raise UsageError(message)

    def count_items(self, total_items: int) -> int:
        """The number of this rank's items in an epoch of `total_items`."""
        if self.even == "drop":
            return total_items // self.world_size
        padding = self.world_size - 1 if self.even == "pad" else self.world_size - 1 - self.rank
        return (total_items + padding) // self.world_size

    def check_source(self, total_items: int) -> None:
        """Raise UsageError if a source of `total_items` lacks items that were asked for by their number."""

    def to_item_number(self, local_index: int) -> int:
        """The number, in the source's order, of this rank's item `local_index`. Messages name it and seeds use it."""
        return local_index * self.world_size + self.rank

    def to_source_index(self, local_index: int, total_items: int) -> int:
        """The index of this rank's item in a source of `total_items`. Padding wraps around to the first item."""
        return self.to_item_number(local_index) % total_items

    def slice_stream(self, stream: Iterator[Any], start_index: int) -> Iterator[Any]:
        """This rank's items, from its item `start_index` on, of a stream that is at its start."""
        return itertools.islice(stream, self.to_item_number(start_index), None, self.world_size)

    def for_segment(self, segment: int) -> Shard:
        """The shard that numbers the items of a segment. Each rank numbers its own groups of items."""
        del segment
        return self


@dataclass(frozen=True)
class SubsetShard(Shard):
    """Only the source items `items`, numbered and seeded as in a run of all items.

    >>> shard = SubsetShard(items=(3, 8))
    >>> shard.count_items(20), shard.to_item_number(1), shard.to_source_index(1, 20)
    (2, 8, 8)
    >>> "".join(shard.slice_stream(iter("abcdefghij"), 0))
    'di'
    """

    items: tuple[int, ...] = ()

    def count_items(self, total_items: int) -> int:
        """The number of `items` that a source of `total_items` has."""
        return sum(item < total_items for item in self.items)

    def check_source(self, total_items: int) -> None:
        """Raise UsageError unless a source of `total_items` has all `items`."""
        missing = [item for item in self.items if item >= total_items]
        if missing:
            message = (
                f"an epoch of this source has {total_items:,} items, so there is no item {missing[0]:,} to run; give "
                "numbers below that, or the source that they are from"
            )
            raise UsageError(message)

    def to_item_number(self, local_index: int) -> int:
        """The number in the source's order. An index beyond the last item stays as it is."""
        return self.items[local_index] if local_index < len(self.items) else local_index

    def to_source_index(self, local_index: int, total_items: int) -> int:
        """The index of the item in a source of `total_items`."""
        del total_items
        return self.items[local_index]

    def slice_stream(self, stream: Iterator[Any], start_index: int) -> Iterator[Any]:
        """The items from `items[start_index]` on, of a stream that is at its start. UsageError where it ends early."""
        wanted = set(self.items[start_index:])
        stream_items = 0
        for index, value in enumerate(itertools.islice(stream, max(wanted, default=-1) + 1)):
            stream_items = index + 1
            if index in wanted:
                yield value
        if wanted:
            self.check_source(stream_items)

    def for_segment(self, segment: int) -> Shard:
        """Groups of the items are numbered from 0."""
        return UNSHARDED if segment else self


UNSHARDED = Shard()
"""The shard of the only rank, which has all items."""
