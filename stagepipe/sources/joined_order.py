"""The parts of a joined source, and the order of a mix of them. Computed in the source's process, without I/O.

A mix computes the part of any position, in blocks of about a thousand positions. The cumulated shares, times the number
of positions before a block, give the number of items that each part gets before the block. So the proportions hold
in every block, and no error accumulates. Within a block, the parts come in a random order, drawn from (seed, epoch,
block). So nothing is stored per item, any position is found in constant time, and the length is the same in every
epoch.

A phase may end within a block. The parts of that block are first spread evenly and cut at the end; then the remaining
positions are shuffled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate
from pathlib import PurePath
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import SourceFiles, derive_seed, is_stream
from stagepipe.sources.dataset_source import DatasetIndices
from stagepipe.sources.order import EpochOrder, ShuffledOrder
from stagepipe.sources.record_source import RecordSource, ShuffleMode

_SOURCE_BY_SUFFIX: Final = {
    ".jsonl": "jsonl",
    ".csv": "csv",
    ".txt": "text",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".tar": "webdataset",
    ".npy": "npy",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".zarr": "zarr",
    ".lance": "lance",
}
"""The source of `stagepipe.sources` that reads files with this suffix."""


class SourcePart:
    """A map-style source, and the order in which its records are read.

    `place` is its name in messages: `sources[1]`.
    """

    def __init__(self, source: Any, place: str) -> None:
        """Raises TypeError if the records of the source cannot be read by index."""
        _refuse_other_sources(source, place)
        self.source = source
        self.place = place

    def __len__(self) -> int:
        """Return the number of records, which equals the number of indices."""
        return len(self.source)

    def make_order(self, *, shuffle: ShuffleMode = False) -> EpochOrder:
        """Return a new order of an epoch: the source's own order, or the one that `shuffle` asks for."""
        if isinstance(self.source, RecordSource):
            return self.source.make_order(self.source.shuffle or shuffle)
        return ShuffledOrder(len(self), "dataset") if shuffle else range(len(self))

    def describe_files(self) -> SourceFiles | None:
        """Return the identity of the files; None if unknown."""
        return self.source.describe_files() if isinstance(self.source, RecordSource) else None

    @property
    def has_own_order(self) -> bool:
        """Whether the source has its own shuffle or mix."""
        return not isinstance(self.make_order(), range)

    def get_block_starts(self) -> Sequence[int]:
        """Return the first record of each block; one block if the source has no blocks."""
        starts = self.source.get_block_starts() if isinstance(self.source, RecordSource) else None
        return range(min(1, len(self))) if starts is None else starts

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the records of several indices."""
        get_items: Callable[[list[int]], Any] | None = getattr(self.source, "__getitems__", None)
        return [self.source[index] for index in indices] if get_items is None else list(get_items(list(indices)))


def make_parts(sources: Sequence[Any], label: str) -> list[SourcePart]:
    """Return the parts of a list of sources. Raises ValueError if it is not a list or is empty."""
    if isinstance(sources, str) or not isinstance(sources, list | tuple) or not sources:
        raise ValueError(f"{label}: `sources` is {sources!r}; give a list of {{uses: ..., with: {{...}}}}")
    return [SourcePart(source, f"{label}: sources[{index}]") for index, source in enumerate(sources)]


def derive_part_seed(seed: int, epoch: int, name: str, key: tuple[int, ...] = ()) -> int:
    """Return a seed for an order inside another one. Further seeds can be derived from it."""
    return derive_seed(seed, epoch, name, key) >> 1


class PartOrder:
    """The indices of a part over all passes of an epoch: `order[k]` is the k-th of them.

    Each pass over a shuffled part has a different order. Reading goes forward, or starts again at `begin`.
    """

    def __init__(self, part: SourcePart, number: int, *, shuffle: ShuffleMode = False) -> None:
        """`number` goes into the seed, so that two parts get different orders."""
        self._part = part
        self._number = number
        self._shuffle: ShuffleMode = shuffle
        self._orders: dict[int, EpochOrder] = {0: part.make_order(shuffle=shuffle)}
        self.length = len(self._orders[0])
        self._epoch_and_seed = (0, 0)

    def begin(self, epoch: int, seed: int) -> None:
        """Start an epoch."""
        self._epoch_and_seed = (epoch, seed)
        if not isinstance(self._orders.get(0), range):
            self._orders = {}

    def __getitem__(self, position: int) -> int:
        number, index = divmod(position, self.length)
        order = self._orders.get(number)
        if order is None:
            order = self._orders[number] = self._make_pass(number)
            self._orders.pop(number - 2, None)
        found = order[index]
        return int(found)

    def _make_pass(self, number: int) -> EpochOrder:
        order = self._part.make_order(shuffle=self._shuffle)
        if not isinstance(order, range):
            epoch, seed = self._epoch_and_seed
            order.begin(epoch, derive_part_seed(seed, epoch, "part", (self._number, number)))
        return order


def _refuse_other_sources(source: Any, place: str) -> None:
    kind = type(source).__qualname__
    if isinstance(source, str | bytes | bytearray):
        raise TypeError(_describe_text(source, kind, place))
    if isinstance(source, DatasetIndices):
        raise TypeError(f"{place} is `stagepipe.sources.dataset`; name its dataset itself: {{uses: my_data.Dataset}}")
    if is_stream(source):
        raise TypeError(
            f"{place} is a stream ({kind}), whose items have no indices; give a map-style source, such as the files "
            "that it reads"
        )
    if not (hasattr(type(source), "__len__") and hasattr(type(source), "__getitem__")):
        raise TypeError(f"{place} is {kind}, which has no `__len__` and `__getitem__`; give a map-style source")
    if hasattr(source, "begin") and not isinstance(source, RecordSource):
        raise TypeError(
            f"{place} ({kind}) has `begin`, so its records depend on the epoch; give one that returns the same record "
            "for an index in all epochs"
        )


def _describe_text(text: str | bytes | bytearray, kind: str, place: str) -> str:
    if not isinstance(text, str):
        return f"{place} is of type {kind}; give a source: {{uses: ..., with: {{...}}}}"
    reader = _SOURCE_BY_SUFFIX.get(PurePath(text).suffix.lower())
    if reader is not None:
        hint = f"{{uses: stagepipe.sources.{reader}, with: {{path: {text}}}}}"
    elif "/" not in text and "." in text.strip("."):
        hint = f"{{uses: {text}}}"
    else:
        hint = "{uses: ..., with: {path: ...}}"
    return f"{place} is the string `{text}`; write {hint}"


StopMode = Literal["first_exhausted", "all_exhausted", "each_once"]
"""When a mix ends. See `MixSource`."""

_MIN_BLOCK: Final = 1024
_MAX_BLOCK: Final = 1 << 22

IntArray = NDArray[np.int64]


class Phase:
    """A range of positions with constant shares. `first_counts`: the items taken from each part before the range."""

    def __init__(self, weights: Sequence[Fraction], start: int, first_counts: IntArray) -> None:
        """Parts of weight 0 get no items. Raises ValueError if the weights are too far apart."""
        total = sum(weights, Fraction(0))
        shares = [weight / total for weight in weights]
        self.start = start
        self.first_counts = first_counts
        self._cumulated_shares = list(accumulate(shares))
        # With at least one item of each part per block, no count of a block is negative.
        self.block_size = max(_MIN_BLOCK, *(-(-share.denominator // share.numerator) for share in shares if share))
        if self.block_size > _MAX_BLOCK:
            raise ValueError(f"a weight is less than 1 in {_MAX_BLOCK} of all; remove that source")
        self.length = 0

    def count_before(self, block: int) -> IntArray:
        """Return the number of items of each part before a block of the phase, including earlier phases."""
        position = block * self.block_size
        rounded = [position * share.numerator // share.denominator for share in self._cumulated_shares]
        return np.diff([0, *rounded]).astype(np.int64) + self.first_counts

    def spread(self, block: int) -> IntArray:
        """Return the part of each position of a whole block, with each part spread evenly over it."""
        counts = self.count_before(block + 1) - self.count_before(block)
        parts = np.repeat(np.arange(len(counts)), counts)
        keys = np.concatenate([(np.arange(count) + 0.5) / count for count in counts.tolist() if count])
        return parts[np.argsort(keys, kind="stable")]

    def end_before_first_lack(self, lengths: IntArray) -> None:
        """End the phase before the first position whose part has no item left."""
        block = self._find_block(lambda counts: bool(np.any(counts > lengths)))
        for_each = self._count_within(block)
        is_lacking = np.any(for_each > lengths, axis=1)
        self.length = block * self.block_size + int(np.argmax(is_lacking))

    def end_when_all_are_used(self, lengths: IntArray) -> None:
        """End the phase at the position where every part has been read to its end at least once."""
        block = self._find_block(lambda counts: bool(np.all(counts >= lengths)))
        is_done = np.all(self._count_within(block) >= lengths, axis=1)
        self.length = block * self.block_size + int(np.argmax(is_done)) + 1

    def count_all(self) -> IntArray:
        """Return the number of items of each part before the end of the phase."""
        block, rest = divmod(self.length, self.block_size)
        counts = self.count_before(block)
        return counts + np.bincount(self.spread(block)[:rest], minlength=len(counts)) if rest else counts

    def draw_block(self, block: int, epoch: int, seed: int, number: int) -> IntArray:
        """Return the part of each position of a block, in the random order of an epoch. `number`: of the phase."""
        parts = self.spread(block)[: self.length - block * self.block_size]
        drawn_seed = derive_seed(seed, epoch, "mix", (number, block)) & 0xFFFFFFFF
        # The draws of RandomState never change between versions of NumPy (NEP 19); a saved position relies on it.
        np.random.RandomState(drawn_seed).shuffle(parts)
        return parts

    def _find_block(self, is_reached: Any) -> int:
        """Return the first block whose final counts satisfy `is_reached`: a binary search, as counts never fall."""
        last = 1
        while not is_reached(self.count_before(last)):
            last *= 2
        first = 0
        while first < last - 1:
            middle = (first + last) // 2
            first, last = (first, middle) if is_reached(self.count_before(middle)) else (middle, last)
        return first

    def _count_within(self, block: int) -> IntArray:
        """Return the counts of each part after each position of a block, one row per position."""
        parts = self.spread(block)
        before = self.count_before(block)
        counts = np.zeros((len(parts), len(before)), np.int64)
        counts[np.arange(len(parts)), parts] = 1
        return np.cumsum(counts, axis=0) + before


def make_phases(lengths: Sequence[int], weights: Sequence[Fraction], until: StopMode) -> list[Phase]:
    """Return the phases of a mix of parts of these lengths.

    >>> [phase.length for phase in make_phases([3, 50], [Fraction(1), Fraction(1)], "first_exhausted")]
    [6]
    >>> [phase.length for phase in make_phases([3, 50], [Fraction(1), Fraction(1)], "each_once")]
    [6, 47]
    """
    limits = np.asarray(lengths, np.int64)
    left = list(weights)
    phases: list[Phase] = []
    start, counts = 0, np.zeros(len(lengths), np.int64)
    while any(left):
        phase = Phase(left, start, counts)
        if until == "all_exhausted":
            phase.end_when_all_are_used(limits)
        else:
            phase.end_before_first_lack(limits)
        phases.append(phase)
        if until != "each_once":
            return phases
        start += phase.length
        counts = phase.count_all()
        left = [Fraction(0) if used else weight for used, weight in zip(counts >= limits, left, strict=True)]
    return phases


class _Block:
    """The part of each position of a block, and the number of items of that part before the position."""

    def __init__(self, parts: IntArray, before: IntArray, first: int) -> None:
        """`before`: the items of each part before the block. `first`: the first position of the block in the mix."""
        self.first = first
        self.stop = first + len(parts)
        self.parts: list[int] = parts.tolist()
        counts = np.empty(len(parts), np.int64)
        for number, count in enumerate(before.tolist()):
            positions = np.flatnonzero(parts == number)
            counts[positions] = np.arange(count, count + len(positions))
        self.counts = counts.tolist()


_NO_BLOCK: Final = _Block(np.empty(0, np.int64), np.empty(0, np.int64), 0)


class MixOrder:
    """The indices of a mix, taken from its parts in turn."""

    def __init__(self, phases: Sequence[Phase], orders: Sequence[PartOrder], first_indices: Sequence[int]) -> None:
        """`first_indices` are the indices of the parts' first records."""
        self._phases = phases
        self._orders = orders
        self._first_indices = first_indices
        self._starts = [phase.start for phase in phases]
        self._epoch_and_seed = (0, 0)
        self._block = _NO_BLOCK

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order."""
        self._epoch_and_seed = (epoch, seed)
        self._block = _NO_BLOCK
        for order in self._orders:
            order.begin(epoch, derive_part_seed(seed, epoch, "mix"))

    def __len__(self) -> int:
        return self._phases[-1].start + self._phases[-1].length

    def __getitem__(self, index: int) -> int:
        block = self._block
        if not block.first <= index < block.stop:
            block = self._block = self._draw_block(index)
        position = index - block.first
        part = block.parts[position]
        return self._first_indices[part] + self._orders[part][block.counts[position]]

    def _draw_block(self, index: int) -> _Block:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self._starts, index) - 1
        phase = self._phases[number]
        block = (index - phase.start) // phase.block_size
        epoch, seed = self._epoch_and_seed
        parts = phase.draw_block(block, epoch, seed, number)
        return _Block(parts, phase.count_before(block), phase.start + block * phase.block_size)
