"""`ConcatSource`: sources one after the other. Runs in the source's process and in the workers of `dataset`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from stagepipe.sources.joined.joined_source import JoinedSource
from stagepipe.sources.joined.joined_stream import JoinedStream, has_stream, refuse_shuffle
from stagepipe.sources.joined.source_parts import PartOrder, derive_part_seed
from stagepipe.sources.joined.stream_turns import SequentialTurns
from stagepipe.sources.order import EpochOrder, ShuffledOrder
from stagepipe.sources.record_source import ShuffleMode


class ConcatSource(JoinedSource):
    """Yield the items of several sources, one source after the other.

    In YAML it is `uses: stagepipe.sources.concat`.

    Args:
        sources: a list of sources, such as `[{uses: stagepipe.sources.jsonl, with: {path: a.jsonl}}, {uses:
            stagepipe.sources.jsonl, with: {path: b.jsonl}}]`. A part with `shuffle: true` is shuffled for itself.
        shuffle: shuffle the items of all sources together, in a different order in each epoch, drawn from the
            pipeline's seed and the epoch.

    >>> ConcatSource([["a", "b"], ["c"]])[2]
    'c'

    If a source is a stream, so is the whole: the source's process reads all parts, and the length is not known.

    Raises ValueError for `shuffle` where a source is a stream.
    """

    def __new__(cls, sources: Sequence[Any] = (), *, shuffle: ShuffleMode = False) -> Any:
        """Return a stream if one of the sources is a stream."""
        if not has_stream(sources):
            return super().__new__(cls)
        refuse_shuffle(sources, "concat", shuffle)
        return JoinedStream(sources, "concat", lambda epoch, seed: SequentialTurns(), "each_once")  # noqa: ARG005

    def make_order(self, shuffle: ShuffleMode) -> EpochOrder:
        """Return the order of an epoch."""
        if not any(part.has_own_order for part in self.parts):
            return super().make_order(shuffle)
        if shuffle == "blocks":
            raise ValueError(f"{self.label}: `shuffle: blocks` needs parts without a shuffle or mix of their own")
        orders = [PartOrder(part, number) for number, part in enumerate(self.parts)]
        return ConcatOrder(orders, self.first_indices, shuffle=shuffle)

    def get_block_starts(self) -> Sequence[int]:
        """Return the first record of each block of each part."""
        parts = zip(self.first_indices, self.parts, strict=False)
        return [first + start for first, part in parts for start in part.get_block_starts()]


class ConcatOrder:
    """The orders of several parts, one after the other, or shuffled together."""

    def __init__(self, orders: Sequence[PartOrder], first_indices: Sequence[int], *, shuffle: bool) -> None:
        """`first_indices` are those of the parts' first records."""
        self._orders = orders
        self._first_indices = first_indices
        self._first_positions = [0, *accumulate(order.length for order in orders)]
        self._shuffled = ShuffledOrder(self._first_positions[-1], "concat") if shuffle else None

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order."""
        for order in self._orders:
            order.begin(epoch, derive_part_seed(seed, epoch, "concat"))
        if self._shuffled is not None:
            self._shuffled.begin(epoch, seed)

    def __len__(self) -> int:
        return self._first_positions[-1]

    def __getitem__(self, index: int) -> int:
        position = index if self._shuffled is None else self._shuffled[index]
        if not 0 <= position < len(self):
            raise IndexError(index)
        number = bisect_right(self._first_positions, position) - 1
        return self._first_indices[number] + self._orders[number][position - self._first_positions[number]]
