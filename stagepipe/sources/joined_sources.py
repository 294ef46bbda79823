"""Sources made of several sources: `ConcatSource`, `ZipSource`, `MixSource`. See `joined_streams` for streams."""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from math import isfinite
from typing import Any, get_args

from stagepipe.core import SourceFiles, closest_match, join_files
from stagepipe.sources.joined_order import (
    MixOrder,
    PartOrder,
    SourcePart,
    StopMode,
    derive_part_seed,
    make_parts,
    make_phases,
)
from stagepipe.sources.joined_streams import JoinedStream, SequentialTurns, WeightedTurns, has_stream, refuse_shuffle
from stagepipe.sources.order import EpochOrder, ShuffledOrder
from stagepipe.sources.record_source import RecordSource, ShuffleMode


class JoinedSource(RecordSource):
    """The records of several sources, numbered one source after the other. A separate order selects them.

    Args:
        sources: map-style sources.
        shuffle: see `RecordSource`.
    """

    def __init__(self, sources: Sequence[Any], *, shuffle: ShuffleMode = False) -> None:
        super().__init__(shuffle=shuffle)
        self.parts = make_parts(sources, self.label)

    @functools.cached_property
    def first_indices(self) -> list[int]:
        """The index of the first record of each part, followed by the number of all records."""
        return [0, *accumulate(len(part) for part in self.parts)]

    def __len__(self) -> int:
        return self.first_indices[-1]

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the records of several indices. Indices of one part are read together."""
        places = [self._locate(index) for index in indices]
        if len({number for number, _ in places}) == 1:
            return self.parts[places[0][0]].read_records([index for _, index in places])
        records: dict[tuple[int, int], Any] = {}
        for number, part in enumerate(self.parts):
            wanted = [place for place in places if place[0] == number]
            read = part.read_records([index for _, index in wanted]) if wanted else []
            records.update(zip(wanted, read, strict=True))
        return [records[place] for place in places]

    def describe_files(self) -> SourceFiles | None:
        """Return the identity of the files of all parts."""
        return join_files([part.describe_files() for part in self.parts])

    def _locate(self, index: int) -> tuple[int, int]:
        number = bisect_right(self.first_indices, index) - 1
        return number, index - self.first_indices[number]


class ConcatSource(JoinedSource):
    """Yield the items of several sources, one source after the other.

    In YAML it is `uses: stagepipe.sources.concat`.

    Args:
        sources: a list of sources, such as `[{uses: stagepipe.sources.jsonl, with: {path: a.jsonl}}, {uses:
            stagepipe.sources.jsonl, with: {path: b.jsonl}}]`. A part with `shuffle: true` is shuffled by itself.
        shuffle: shuffle the items of all sources together, in a different order in each epoch, drawn from the
            pipeline's seed and the epoch.

    >>> ConcatSource([["a", "b"], ["c"]])[2]
    'c'

    If a source is a stream, so is the result: the source's process reads all parts, and the length is unknown.

    Raises ValueError for `shuffle` if a source is a stream.
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
            raise ValueError(f"{self.label}: `shuffle: blocks` needs parts without their own shuffle or mix")
        orders = [PartOrder(part, number) for number, part in enumerate(self.parts)]
        return ConcatOrder(orders, self.first_indices, shuffle=shuffle)

    def get_block_starts(self) -> Sequence[int]:
        """Return the first record of each block of each part."""
        parts = zip(self.first_indices, self.parts, strict=False)
        return [first + start for first, part in parts for start in part.get_block_starts()]


class ConcatOrder:
    """The orders of several parts, one after the other or shuffled together."""

    def __init__(self, orders: Sequence[PartOrder], first_indices: Sequence[int], *, shuffle: bool) -> None:
        """`first_indices` are the indices of the parts' first records."""
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


class ZipSource(RecordSource):
    """Yield the first items of several sources together, then the second ones, and so on.

    In YAML it is `uses: stagepipe.sources.zip`.

    Args:
        sources: a list of map-style sources: an item is a tuple of their items. Or a mapping of them by field,
            such as `{image: {uses: stagepipe.sources.npy, with: {path: images.npy}}, label: {uses:
            stagepipe.sources.npy, with: {path: labels.npy}}}`: an item is a dict.
        strict: raise an error for sources of unequal length. False: stop at the end of the shortest.
        shuffle: shuffle the tuples, in a different order in each epoch, drawn from the pipeline's seed and the epoch.

    >>> ZipSource({"number": [1, 2], "word": ["one", "two"]})[1]
    {'number': 2, 'word': 'two'}

    Raises ValueError for unequal lengths and for a part with its own order (`shuffle`, `mix`), which would break the
    pairs. Raises TypeError for a part that is a stream.
    """

    def __init__(
        self, sources: Sequence[Any] | Mapping[str, Any], *, strict: bool = True, shuffle: ShuffleMode = False
    ) -> None:
        super().__init__(shuffle=shuffle)
        self._strict = strict
        self._fields = list(sources) if isinstance(sources, Mapping) else None
        self._parts = (
            [SourcePart(source, f"{self.label}: sources.{field}") for field, source in sources.items()]
            if isinstance(sources, Mapping) and sources
            else make_parts(sources, self.label)  # type: ignore[arg-type]
        )

    def __len__(self) -> int:
        return self._length

    @functools.cached_property
    def _length(self) -> int:
        for part in self._parts:
            if part.has_own_order:
                raise ValueError(
                    f"{part.place} has its own order, so items that belong together would not come together; "
                    f"remove its `shuffle`, and set `shuffle: true` on `{self.label}`"
                )
        lengths = [len(part) for part in self._parts]
        if self._strict and len(set(lengths)) > 1:
            listed = ", ".join(
                f"{part.place.partition(' ')[2]} {length}" for part, length in zip(self._parts, lengths, strict=True)
            )
            raise ValueError(
                f"{self.label}: the sources differ in length: {listed}; give sources of equal length, or set "
                "`strict: false` to stop at the end of the shortest"
            )
        return min(lengths)

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the tuples or dicts of several indices."""
        rows = zip(*(part.read_records(indices) for part in self._parts), strict=True)
        return list(rows) if self._fields is None else [dict(zip(self._fields, row, strict=True)) for row in rows]

    def describe_files(self) -> SourceFiles | None:
        """Return the identity of the files of all parts."""
        return join_files([part.describe_files() for part in self._parts])

    def get_block_starts(self) -> Sequence[int]:
        """Return the first item of each block of the source with the fewest blocks."""
        count = len(self)
        starts = min((part.get_block_starts() for part in self._parts), key=len)
        return [start for start in starts if start < count]


class MixSource(JoinedSource):
    """Yield the items of several sources in random order, in given proportions.

    In YAML it is `uses: stagepipe.sources.mix`. The order of the sources is drawn from the pipeline's seed and the
    epoch. In each thousand items (or more, if a weight is small) the proportions are exact to within one item per
    source.

    Args:
        sources: a list of sources, such as `[{uses: stagepipe.sources.jsonl, with: {path: a.jsonl}}, {uses:
            stagepipe.sources.jsonl, with: {path: b.jsonl}}]`. A part with `shuffle: true` is shuffled by itself.
        weights: a number for each source, its share relative to the sum. None: equal shares.
        until: `first_exhausted`: an epoch ends when a source has no item left. `all_exhausted`: it ends when every
            source has been read to its end; a source that ends sooner starts again, in a new order if it is shuffled.
            `each_once`: each item comes once; when a source ends, the others take its share.
        shuffle: shuffle each source, in a different order in each epoch. False: keep each source's own order.

    The length is the same in every epoch. Indices are computed, so no memory is used per item.

    If a source is a stream, so is the mix: the source's process reads all parts, the length is unknown, and a source is
    exhausted when it has no more items. A resume continues from the streams' states.

    >>> source = MixSource([["a"] * 6, ["b"] * 50], weights=[0.25, 0.75])
    >>> order = source.make_order(False)
    >>> len(order), sum(source[index] == "a" for index in order)
    (25, 6)

    Raises ValueError for weights that do not match the sources, an unknown `until`, an empty source, or `shuffle` if a
    source is a stream.
    """

    def __new__(
        cls,
        sources: Sequence[Any] = (),
        *,
        weights: Sequence[float] | None = None,
        until: StopMode = "first_exhausted",
        shuffle: ShuffleMode = False,
    ) -> Any:
        """Return a stream if one of the sources is a stream."""
        if not has_stream(sources):
            return super().__new__(cls)
        refuse_shuffle(sources, "mix", shuffle)
        _check_until(until)
        shares = _check_weights(weights, len(sources))
        return JoinedStream(sources, "mix", functools.partial(WeightedTurns, shares), until)

    def __init__(
        self,
        sources: Sequence[Any],
        *,
        weights: Sequence[float] | None = None,
        until: StopMode = "first_exhausted",
        shuffle: ShuffleMode = False,
    ) -> None:
        super().__init__(sources, shuffle=shuffle)
        self._weights = _check_weights(weights, len(self.parts))
        _check_until(until)
        self._until: StopMode = until

    def make_order(self, shuffle: ShuffleMode) -> EpochOrder:
        """Return the order of an epoch."""
        orders = [PartOrder(part, number, shuffle=shuffle) for number, part in enumerate(self.parts)]
        for part, order in zip(self.parts, orders, strict=True):
            if not order.length:
                raise ValueError(f"{part.place} has no items; remove it")
        try:
            phases = make_phases([order.length for order in orders], self._weights, self._until)
        except ValueError as error:
            raise ValueError(f"mix: {error}") from None
        return MixOrder(phases, orders, self.first_indices)


def _check_until(until: str) -> None:
    if until not in get_args(StopMode):
        closest = closest_match(str(until), get_args(StopMode))
        hint = f", did you mean `{closest}`? It is one of" if closest else "; write one of"
        known = ", ".join(f"`{mode}`" for mode in get_args(StopMode))
        raise ValueError(f"mix: until is {until!r}{hint} {known}")


def _check_weights(weights: Sequence[float] | None, count: int) -> list[Fraction]:
    """Return the weights as exact numbers, so that the order is the same on every machine."""
    if weights is None:
        return [Fraction(1)] * count
    if not isinstance(weights, list | tuple) or len(weights) != count:
        found = f"{len(weights)} weights" if isinstance(weights, list | tuple) else f"`weights` is {weights!r}"
        raise ValueError(f"mix: {found} for {count} sources; give a list with one weight for each source, in order")
    for index, weight in enumerate(weights):
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not isfinite(weight) or weight <= 0:
            raise ValueError(
                f"mix: weights[{index}] is {weight!r}; give a number above 0, or remove the source and its weight"
            )
    return [Fraction(str(weight)) for weight in weights]
