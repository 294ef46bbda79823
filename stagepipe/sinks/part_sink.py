"""The interfaces of sinks that write in several workers, `PartSink` and `FileTreeSink`, and the parts that they write.

The order point `Parts` groups items into a `Part`, which travels through one writer stage per sink to the calling
process. `write_part` and `write_files` run in the sink's workers, all other methods of a sink in the calling process.

A part travels with its small arrays stacked: pickling an array of 2 kB takes 10 us on both sides together, and sharing
it through a descriptor takes longer. Its share of a stack takes 4 us.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any, BinaryIO, ClassVar, Final, NamedTuple
from uuid import uuid4

import numpy as np

from stagepipe.core import count_bytes, parse_bytes
from stagepipe.transport import ArrayLayout, hold_arrays, measure_arrays, put_arrays, take_arrays

_MAX_ARRAY_BYTES: Final = 16 << 10
"""A larger array is sent on its own, and is not copied if it is already in shared memory."""
_KEY_TYPES: Final = frozenset({str, int})
"""A dict with other keys is not stacked: a layout uses None for the item itself, and a NaN does not equal its copy."""


@dataclass(slots=True)
class PackedItems:
    """`values` are the items, with None in place of each stacked array. `columns` are the columns of `take_arrays`.

    >>> items = [{"id": number, "x": np.full(2, number)} for number in range(8)]
    >>> packed = PackedItems.pack(items)
    >>> packed.values[1], packed.unpack()[1]
    ({'id': 1, 'x': None}, {'id': 1, 'x': array([1, 1])})
    """

    values: list[Any]
    columns: dict[ArrayLayout, tuple[list[int], np.ndarray[Any, Any]]]

    @classmethod
    def pack(cls, items: Sequence[Any]) -> PackedItems:
        """Stack the arrays of `items` without changing the items. An array that two items share is stored twice."""
        if _have_no_arrays(items):
            return cls(list(items), {})
        values, columns = take_arrays([hold_arrays(item) if _has_small_arrays(item) else item for item in items])
        # The bytes become arrays, which travel outside the pickle.
        return cls(
            list(values), {layout: (rows, np.frombuffer(data, np.uint8)) for layout, (rows, data) in columns.items()}
        )

    def unpack(self, *, copies: bool = False) -> list[Any]:
        """Return the items. Their arrays are read-only views of the stacks, or writable copies with `copies`."""
        # The values must not change, because the next sink uses them too.
        items = [value.copy() if type(value) in {dict, list} else value for value in self.values]
        if not copies:
            put_arrays(items, self.columns, readonly=True)
            return items
        for layout, (rows, data) in self.columns.items():
            for row, part in zip(rows, np.split(data, len(rows)), strict=True):
                put_arrays(items, {layout: ([row], part.copy())}, readonly=True)
        return items


def _have_no_arrays(items: Sequence[Any]) -> bool:
    """Whether no item is or contains an array; False if the answer needs a look at each item."""
    types = set(map(type, items))
    if types == {dict}:
        return np.ndarray not in set(map(type, itertools.chain.from_iterable(map(dict.values, items))))
    return types.isdisjoint((np.ndarray, dict, list, tuple))


def _has_small_arrays(item: Any) -> bool:
    """Whether an item has arrays and all of them can be stacked with the arrays of other items."""
    kind = type(item)
    if kind is dict and not _KEY_TYPES.issuperset(map(type, item)):
        return False
    parts = item.values() if kind is dict else item if kind is tuple or kind is list else (item,)
    arrays = [part for part in parts if type(part) is np.ndarray]
    return measure_arrays(arrays) > 0 and all(array.nbytes <= _MAX_ARRAY_BYTES for array in arrays)


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """The output of a sink for one part.

    `file` is the name of the part's file in the sink's folder, or None if no item was for this sink.
    """

    file: str | None
    rows: int
    size_bytes: int


class Part:
    """Consecutive items, and a record of each sink that has written them.

    `sink_count` sinks write the part. The last one drops the items, unless `keeps_items`; `item_count` remains. The
    items are packed when the part is first sent, and stay packed: a sink that sends them on copies no array.
    """

    __slots__ = ("_items", "item_count", "keeps_items", "records", "sink_count")

    def __init__(self, items: Sequence[Any], *, sink_count: int, keeps_items: bool = False) -> None:
        self._items: Sequence[Any] | PackedItems = items
        self.item_count = len(items)
        self.sink_count = sink_count
        self.keeps_items = keeps_items
        self.records: list[PartRecord] = []

    def read_items(self, *, copies: bool = False) -> Sequence[Any]:
        """Return the items. With `copies`, small arrays are copies, which may outlive the part."""
        return self._items.unpack(copies=copies) if isinstance(self._items, PackedItems) else self._items

    def add_record(self, record: PartRecord) -> None:
        """Add the record of the next sink; after the last sink, drop the items."""
        self.records.append(record)
        if len(self.records) == self.sink_count and not self.keeps_items:
            self._items = ()

    def __reduce__(self) -> tuple[Callable[..., Part], tuple[Any, ...]]:
        """Pack the items."""
        items = self._items if isinstance(self._items, PackedItems) else PackedItems.pack(self._items)
        state = (items.values, items.columns, self.item_count, self.sink_count, self.keeps_items, self.records)
        return rebuild_part, state


def rebuild_part(  # noqa: PLR0917 - the arguments of a pickle
    values: list[Any],
    columns: Any,
    item_count: int,
    sink_count: int,
    keeps_items: bool,  # noqa: FBT001
    records: list[PartRecord],
) -> Part:
    """Rebuild a part in the receiving process."""
    part = Part((), sink_count=sink_count, keeps_items=keeps_items)
    part._items = PackedItems(values, columns) if values else ()  # noqa: SLF001 - it completes the new part
    part.item_count = item_count
    part.records = records
    return part


class Parts:
    """Group consecutive items into parts of at most `max_items` items; a part ends when it has `max_bytes` bytes.

    The bounds depend only on the items, and no state is carried over to the next part. So the parts are the same for
    any number of workers, after a crash and after a resume. Arrays stay in the shared memory in which they arrived.
    With `multiple`, all parts but the last have a multiple of this number of items, and may exceed the bounds.

    >>> parts = Parts(max_items=2, max_bytes=100, sink_count=1)
    >>> [parts.add(item, 1) for item in (b"a", b"b")]
    [False, True]
    >>> parts.flush(random.Random(0))[0][0].read_items()
    [b'a', b'b']
    """

    order_point: ClassVar[bool] = True
    is_permutation: ClassVar[bool] = False
    items_per_output: ClassVar[int | str | None] = None
    drop_last: bool = False

    def __init__(
        self, *, max_items: int, max_bytes: int, sink_count: int, keeps_items: bool = False, multiple: int = 1
    ) -> None:
        self._max_items = max_items
        self._multiple = multiple
        self._max_bytes = max_bytes
        self._sink_count = sink_count
        self._keeps_items = keeps_items
        self._items: list[Any] = []
        self._sample_count = 0
        self._byte_count = 0

    def add(self, value: Any, samples: int) -> bool:
        """Add one item; True when the part is complete."""
        self._items.append(value)
        self._sample_count += samples
        self._byte_count += count_bytes(value)
        is_full = len(self._items) >= self._max_items or self._byte_count >= self._max_bytes
        return is_full and len(self._items) % self._multiple == 0

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:  # noqa: ARG002 - a part needs no randomness
        """Return the part, or [] if it is empty."""
        items, samples = self._items, self._sample_count
        self.clear()
        if not items:
            return []
        return [(Part(items, sink_count=self._sink_count, keeps_items=self._keeps_items), samples)]

    def finish(self, rng: random.Random) -> list[tuple[Any, int]]:
        """Return the last part of an epoch."""
        return self.flush(rng)

    def clear(self) -> None:
        """Discard the part, because of a seek."""
        self._items = []
        self._sample_count = 0
        self._byte_count = 0


_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

OWN_PREFIX: Final = ".stagepipe-"
"""Prefix of all files in a sink's folder that are not finished shards: hidden, and ours to delete."""
PART_PREFIX: Final = f"{OWN_PREFIX}part-"
OPEN_PREFIX: Final = f"{OWN_PREFIX}open-"
"""Prefix of an open shard, which a resume continues."""
_DEFAULT_SHARD_BYTES: Final = 256_000_000
_PREFIX_PATTERN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class PartPlace(NamedTuple):
    """The position and size of a part in its shard, in bytes, and its number of items."""

    offset: int
    size: int
    rows: int


def require_local(path: str | os.PathLike[str]) -> Path:
    """Return the path of a sink. Raises ValueError for a URL, which as a Path would be a local folder."""
    if "://" in os.fspath(path):
        hint = "write to a folder of this machine and copy it afterwards, as with `aws s3 cp --recursive`"
        raise ValueError(f"path is {path!r}, a URL; {hint}")
    return Path(path)


class PartSink(ABC):
    """Base class of sinks whose workers write parts, which the calling process combines to shards.

    A part is a file of consecutive items, written by one worker. The calling process takes the parts in item order.
    With `appends`, it appends them to the open shard; otherwise each part is a shard. The shards are therefore the same
    for any number of workers. `docs/how-to/sinks.md` shows a subclass.

    Args:
        path: the folder of the shards, such as `out`, relative to the current directory; it is created if it is
            missing.
        shard_items: maximum number of items per shard, in whole parts.
        shard_bytes: maximum size of a shard in bytes, in whole parts. Default: 256 MB.
        prefix: the prefix of the shards' names: `train-` gives `train-000000.jsonl`.
        overwrite: first delete the shards of an earlier run, and nothing else. Without it, the folder must be empty.
        part_items, part_bytes: maximum number of items per part, and the size in memory at which a part ends. All sinks
            of the pipeline share the parts. Default: 1,024 items and 16 MB.

    Raises ValueError for arguments out of range.
    """

    writes_parts: ClassVar[bool] = True
    """Tells the planner that the sink has workers. It reads this from the source file, without importing it."""
    appends: ClassVar[bool] = False
    """Whether the files of consecutive parts, one after the other, are a file of the format."""
    extension: ClassVar[str] = ""
    """The suffix of the shards' names, such as `.jsonl`."""
    part_multiple: ClassVar[int | str] = 1
    """All parts but the last have a multiple of this number of items; or the name of the argument with that number."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        shard_items: int | None = None,
        shard_bytes: int | str = _DEFAULT_SHARD_BYTES,
        prefix: str = "",
        overwrite: bool = False,
        part_items: int | None = None,
        part_bytes: int | str | None = None,
    ) -> None:
        self.path: Final = require_local(path)
        self.shard_items: Final = _check_count("shard_items", shard_items)
        self.shard_bytes: Final = _parse_size("shard_bytes", shard_bytes)
        self.prefix: Final = prefix
        self.overwrite: Final = overwrite
        self.part_items: Final = _check_count("part_items", part_items)
        self.part_bytes: Final = None if part_bytes is None else _parse_size("part_bytes", part_bytes)
        self.matches: Callable[[Any], object] | None = None
        """Whether an item is for this sink; None: all are."""
        if prefix and not _PREFIX_PATTERN.fullmatch(prefix):
            raise ValueError(
                f"prefix is {prefix!r}; begin with a letter or digit, and use letters, digits, `.`, `_` and `-`"
            )

    def warm_up(self) -> None:  # noqa: B027 - does nothing unless a subclass needs it
        """Import the modules that `write_part` needs; called once in each worker, at its start."""

    @abstractmethod
    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write `items`, at least one, to a new file at `path`; called in a worker.

        After a crash, the same items may be written again to another file, so the content must depend only on them.
        """

    def prepare_part(self, path: Path, kept: dict[str, Any]) -> None:  # noqa: B027 - does nothing unless a subclass needs it
        """Check a part, or rewrite its file, before it joins its shard; called once per part, in order.

        `kept` is a dict of this sink, which the journal stores as JSON for the following parts.
        """

    def begin_shard(self, file: BinaryIO, kept: Mapping[str, Any]) -> None:  # noqa: B027 - does nothing unless a subclass needs it
        """Write the beginning of a shard, before its first part."""

    def finish_shard(self, file: BinaryIO, parts: Sequence[PartPlace], kept: Mapping[str, Any]) -> None:  # noqa: B027 - does nothing unless a subclass needs it
        """Complete a shard of these parts; `file` is open for reading and writing, at its end."""

    def name_shard(self, number: int, count: int | None = None) -> str:  # noqa: ARG002 - for a subclass
        """Return the name of shard `number`, from 0; `count` is the number of shards, or None while it is unknown.

        If the names with `count` differ, the shards are renamed at the end of the job.
        """
        return f"{self.prefix}{number:06d}{self.extension}"

    def owns(self, path: Path) -> bool:  # noqa: ARG002 - for a subclass
        """Whether a run creates this file or folder besides the numbered ones, so that `overwrite` may delete it."""
        return False

    def list_own(self, recorded_names: Collection[str]) -> list[Path]:
        """Return the files that `overwrite` deletes: those in the earlier run's journal, numbered shards, and `owns`.

        The shards end at the first missing number, so `20240101.jsonl` stays.
        """
        names = {*recorded_names, *(path.name for path in self.iter_numbered())}
        return [path for path in self.path.iterdir() if path.name in names or self.owns(path)]

    def iter_numbered(self, first: int = 0) -> Iterator[Path]:
        """Yield the existing shards or subfolders from number `first` on; internal."""
        paths = (self.path / self.name_shard(number) for number in itertools.count(first))
        return itertools.takewhile(Path.exists, paths)

    def describe(self, shard_count: int, rows: int, kept: Mapping[str, Any]) -> Mapping[str, bytes]:  # noqa: ARG002 - for a subclass
        """Return files that describe all shards, by name; called at the end of the job.

        After a crash it may be called again.
        """
        return {}

    def __call__(self, part: Part) -> Part:
        """Write a part to its own file, in a worker. The stage that a pipeline runs; not for users."""
        items = self.select_items(part)
        if not items:
            part.add_record(PartRecord(file=None, rows=0, size_bytes=0))
            return part
        path = self.make_part_path()
        try:
            self.write_part(items, path)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            reason = os.strerror(error.errno)
            raise OSError(
                f"a part cannot be written to {self.path}: {reason}; free disk space, then --resume"
            ) from None
        part.add_record(PartRecord(file=path.name, rows=len(items), size_bytes=_count_bytes(path)))
        return part

    def select_items(self, part: Part) -> Sequence[Any]:
        """Return the items of a part that are for this sink; internal."""
        items = part.read_items()
        return items if self.matches is None else [item for item in items if self.matches(item)]

    def make_part_path(self) -> Path:
        """Return a new path, unlike that of a worker still writing the same part before a seek; internal."""
        return self.path / f"{PART_PREFIX}{uuid4().hex}"


def _parse_size(name: str, value: int | str) -> int:
    try:
        return parse_bytes(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _check_count(name: str, value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"{name} is {value!r}; give a whole number of at least 1")
    return value


def _count_bytes(path: Path) -> int:
    """Return the size of a file, or of the files in a folder, in bytes."""
    return sum(map(_count_bytes, path.iterdir())) if path.is_dir() else path.stat().st_size


class FileTreeSink(PartSink):
    """Base class of sinks whose workers write a folder of files per part, which move to `path`.

    Takes the arguments of `PartSink`. After a kill, files that were moved too early are deleted.
    """

    appends: ClassVar[bool] = True

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write the files of a part into the new folder `path`."""
        path.mkdir()
        self.write_files(items, path)

    @abstractmethod
    def write_files(self, items: Sequence[Any], folder: Path) -> None:
        """Write the files of `items`, at least one, into `folder`; called in a worker.

        After a crash, the same items may be written again to another folder, so the content must depend only on them.
        """

    def may_be_placed(self, name: str) -> bool:
        """Return whether `place_files` may use this file name (without its folder); a resume counts such files."""
        return not name.startswith(".")

    @abstractmethod
    def place_files(self, folder: Path, first_row: int, rows: int, kept: dict[str, Any]) -> Mapping[str, str]:
        """Return the final names of a part's files in `path`, by their names in `folder`; called in order.

        Final names must be unique in a job.

        Args:
            folder: the folder with the part's files.
            first_row: the number of rows in earlier parts.
            rows: the number of rows in this part.
            kept: see `PartSink.prepare_part`.

        Raises ValueError for a part that does not fit.
        """


_MAX_REPETITIONS: Final = 3
_MAX_MEASURED_NS: Final = 50_000_000
"""A part that takes longer is written only once, because its time varies little."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPartRecord(PartRecord):
    """The record of a part with write times in ns: for all rows, and for the first half of them.

    Two sizes separate the time per row from the time per part, because the parts of a probe are small. `item_bytes` is
    the size of the part's items in memory.
    """

    write_ns: int
    half_rows: int
    half_write_ns: int
    item_bytes: int


class MeasuredSink(PartSink):
    """Write the parts of a probe with `sink` to `folder`, and measure it.

    Only `sink.write_part` is called, with a path in `folder`, so the sink's own folder does not change. `folder` keeps
    the last output of each part. A sink whose parts have a `multiple` of items gets only such numbers of items.
    """

    def __init__(self, *, sink: PartSink, folder: str | os.PathLike[str], multiple: int = 1) -> None:
        super().__init__(folder)
        self._sink = sink
        self._multiple = multiple
        self._has_loaded = False
        """Whether a part was written before the first measurement, because the very first write may load libraries."""

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write `items` with the sink."""
        self._sink.write_part(items, path)

    def __call__(self, part: Part) -> Part:
        """Write a part several times, with all of its rows and with half of them, and record the times."""
        items = self.select_items(part)
        half = items[: len(items) // 2 // self._multiple * self._multiple]
        if not self._has_loaded:
            self.remove_part(self._measure(items)[0])
            self._has_loaded = True
        half_path, half_write_ns = self._measure(half)
        self.remove_part(half_path)
        path, write_ns = self._measure(items)
        record = MeasuredPartRecord(
            file=None if path is None else path.name,
            rows=len(items),
            size_bytes=0 if path is None else path.stat().st_size,
            write_ns=write_ns,
            half_rows=len(half),
            half_write_ns=half_write_ns,
            item_bytes=sum(map(count_bytes, part.read_items())),
        )
        part.add_record(record)
        return part

    def _measure(self, items: Sequence[Any]) -> tuple[Path | None, int]:
        """Return the last file and the shortest time, because any attempt may wait for a CPU."""
        path = None
        began_ns = perf_counter_ns()
        durations_ns: list[int] = []
        while items and len(durations_ns) < _MAX_REPETITIONS and perf_counter_ns() - began_ns < _MAX_MEASURED_NS:
            self.remove_part(path)
            path = self.make_part_path()
            started_ns = perf_counter_ns()
            self.write_part(items, path)
            durations_ns.append(perf_counter_ns() - started_ns)
        return path, min(durations_ns, default=0)

    @staticmethod
    def remove_part(path: Path | None) -> None:
        """Remove the file or folder of a part. None: there is none, because no row was written."""
        if path is None:
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
