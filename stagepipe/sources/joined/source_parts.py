"""`SourcePart`: one of the sources that `concat`, `zip` and `mix` put together. Runs where they are built and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, Final

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
"""The source of `stagepipe.sources` that reads files with a suffix."""


class SourcePart:
    """A map-style source, and the order in which it wants to be read.

    `place` names it in messages: `sources[1]`.
    """

    def __init__(self, source: Any, place: str) -> None:
        """Raises TypeError for a source whose records cannot be read by their index."""
        _refuse_other_sources(source, place)
        self.source = source
        self.place = place

    def __len__(self) -> int:
        """Return the number of records, which is that of the indices."""
        return len(self.source)

    def make_order(self, *, shuffle: ShuffleMode = False) -> EpochOrder:
        """Return a new order of an epoch: the source's own, or one that `shuffle` asks for."""
        if isinstance(self.source, RecordSource):
            return self.source.make_order(self.source.shuffle or shuffle)
        return ShuffledOrder(len(self), "dataset") if shuffle else range(len(self))

    def describe_files(self) -> SourceFiles | None:
        """Return what identifies the files; None if that is not known."""
        return self.source.describe_files() if isinstance(self.source, RecordSource) else None

    @property
    def has_own_order(self) -> bool:
        """Whether the source is shuffled, or mixed, without being asked."""
        return not isinstance(self.make_order(), range)

    def get_block_starts(self) -> Sequence[int]:
        """Return the first record of each block; one block if it has none."""
        starts = self.source.get_block_starts() if isinstance(self.source, RecordSource) else None
        return range(min(1, len(self))) if starts is None else starts

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the records of several indices."""
        get_items: Callable[[list[int]], Any] | None = getattr(self.source, "__getitems__", None)
        return [self.source[index] for index in indices] if get_items is None else list(get_items(list(indices)))


def make_parts(sources: Sequence[Any], label: str) -> list[SourcePart]:
    """Return the parts of a list of sources. Raises ValueError for no list or an empty one."""
    if isinstance(sources, str) or not isinstance(sources, list | tuple) or not sources:
        raise ValueError(f"{label}: `sources` is {sources!r}; give a list of {{uses: ..., with: {{...}}}}")
    return [SourcePart(source, f"{label}: sources[{index}]") for index, source in enumerate(sources)]


def derive_part_seed(seed: int, epoch: int, name: str, key: tuple[int, ...] = ()) -> int:
    """Return a seed for an order inside another one: it is itself a seed that others can be derived from."""
    return derive_seed(seed, epoch, name, key) >> 1


class PartOrder:
    """The indices of a part as often as it is read in an epoch: `order[k]` is the k-th of them, over all passes.

    Each pass over a part that is shuffled has another order. Reading goes forward, or starts again at `begin`.
    """

    def __init__(self, part: SourcePart, number: int, *, shuffle: ShuffleMode = False) -> None:
        """`number` goes into the seed, so that two parts differ."""
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
            f"{place} ({kind}) has `begin`, so its records depend on the epoch; give one whose record of an index is "
            "always the same"
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
