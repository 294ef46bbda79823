"""`RecordSource`: the base of sources that read records from files, and the common parts of their messages.

A record source is a map-style dataset: a number of records, each read by its index. The config loader wraps
`source: {uses: stagepipe.sources.jsonl}` in `stagepipe.sources.dataset` (`stagepipe.config.dataset_source`). So the
source's process sends indices, the workers of the source read the records, and shuffles, resumes and ranks work as for
every dataset.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, Literal

from stagepipe.core import SourceFiles, SourceIdentity, closest_match
from stagepipe.sources.order import BlockShuffledOrder, EpochOrder, ShuffledOrder
from stagepipe.sources.stored_files import StoredFile, describe_stored_files

ShuffleMode = bool | Literal["blocks"]
"""False: the order of the files. True: any order of the records. "blocks": shuffled blocks, and records within them."""


def name_place(error: Exception, place: str) -> Exception:
    """Return the error of an unreadable record: OSError or ValueError, with its file and place.

    >>> name_place(EOFError("no data"), "npy: a.npy: row 3")
    ValueError('npy: a.npy: row 3: EOFError: no data')
    """
    if type(error) in (OSError, ValueError):
        return type(error)(f"{place}: {error}")
    make_error = OSError if isinstance(error, OSError) else ValueError
    return make_error(f"{place}: {describe_error(error)}")


def describe_rows(indices: Sequence[int]) -> str:
    """Return the rows that were read together, for messages.

    >>> describe_rows([3]), describe_rows([3, 5, 4])
    ('row 3', 'a row of 3 to 5')
    """
    return f"row {indices[0]}" if len(indices) == 1 else f"a row of {min(indices)} to {max(indices)}"


def describe_error(error: Exception) -> str:
    """Return the class and the text of an error; only the text of a ValueError."""
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}".rstrip(": ")


class RecordSource(ABC):
    """Base class of sources whose records are read by index, in the order of the files.

    A subclass defines `__len__` and `read_records` and passes `shuffle` to this class. Keep open files in attributes of
    `functools.cached_property`, which are not pickled.

    Args:
        shuffle: the order of an epoch, as `make_order` defines it. It does not change the meaning of an index.

    >>> class Squares(RecordSource):
    ...     def __len__(self):
    ...         return 3
    ...
    ...     def read_records(self, indices):
    ...         return [index * index for index in indices]
    >>> list(Squares())
    [0, 1, 4]
    """

    is_record_source: ClassVar = True
    draws_nothing: ClassVar = False
    """Whether reading runs only our own code, gives two requests for a record two objects, and draws no numbers: then
    several records are read with one call, although each item has its own seed."""
    blocks_in_a_shuffle: ClassVar = 4
    """How many blocks `shuffle: blocks` mixes with each other. A worker keeps at least as many in memory."""

    def __init__(self, *, shuffle: ShuffleMode = False) -> None:
        if shuffle not in (True, False, "blocks"):
            raise ValueError(f"{self.label}: shuffle is {shuffle!r}; give true, false or `blocks`")
        self.shuffle: ShuffleMode = shuffle

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the records of several indices, each from 0 to `len(self)` - 1, in the order given."""

    @property
    def stored_files(self) -> Sequence[StoredFile] | None:
        """The files of all records; None if something else determines the content of the records."""
        return None

    def get_block_starts(self) -> Sequence[int] | None:
        """Return the first index of each block of records that is fast to read at once; None without blocks."""
        return None

    def make_order(self, shuffle: ShuffleMode) -> EpochOrder:
        """Return the order of an epoch as indices of records; a subclass may define its own."""
        if shuffle == "blocks":
            starts = self.get_block_starts()
            if starts is None:
                raise ValueError(f"{self.label}: it has no blocks to shuffle; write `shuffle: true`")
            return BlockShuffledOrder(starts, len(self), "dataset", blocks_together=self.blocks_in_a_shuffle)
        return ShuffledOrder(len(self), "dataset") if shuffle else range(len(self))

    def describe_files(self) -> SourceFiles | None:
        """Return the identity of the files, for the states of a run; None if unknown."""
        return None if self.stored_files is None else describe_stored_files(self.stored_files)

    def get_source_identity(self) -> SourceIdentity:
        """Return the number of records and the files."""
        return SourceIdentity(len(self), self.describe_files())

    @property
    def label(self) -> str:
        """The name of the source in messages: `jsonl` for `JsonlSource`."""
        return type(self).__name__.removesuffix("Source").lower()

    def __getitem__(self, index: int) -> Any:
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"{self.label}: index {index} of {count} records")
        return self.read_records([index % count])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return self.read_records(indices)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out everything that is built on first use: open files, indexes and cached records."""
        lazy = {
            name for name in self.__dict__ if isinstance(getattr(type(self), name, None), functools.cached_property)
        }
        return {name: value for name, value in self.__dict__.items() if name not in lazy}


_MAX_SHOWN: int = 20


def check_columns(wanted: Iterable[str], known: Collection[str], place: str) -> None:
    """Raise ValueError if a wanted column does not exist.

    >>> check_columns(["lable"], ["image", "label"], "parquet: a.parquet")
    Traceback (most recent call last):
    ValueError: parquet: a.parquet has no column `lable`; did you mean `label`? It has image, label
    """
    for name in wanted:
        if name not in known:
            closest = closest_match(name, sorted(known))
            hint = f"did you mean `{closest}`? It has" if closest else "it has"
            shown = ", ".join(list(known)[:_MAX_SHOWN])
            more = f" and {len(known) - _MAX_SHOWN} more" if len(known) > _MAX_SHOWN else ""
            raise ValueError(f"{place} has no column `{name}`; {hint} {shown}{more}")


def check_unique_columns(wanted: Sequence[str] | None, known: Sequence[str], place: str) -> None:
    """Raise ValueError if two of the columns to read have the same name: a row would keep only one of their values.

    >>> check_unique_columns(["b"], ["a", "a", "b"], "csv: a.csv")
    >>> check_unique_columns(None, ["a", "a", "b"], "csv: a.csv")
    Traceback (most recent call last):
    ValueError: csv: a.csv: two columns have the name `a`; rename one, or name the others in `columns`
    """
    seen: set[str] = set()
    for name in known:
        if name in seen and (wanted is None or name in wanted):
            hint = "rename one, or name the others in `columns`"
            raise ValueError(f"{place}: two columns have the name `{name}`; {hint}")
        seen.add(name)
