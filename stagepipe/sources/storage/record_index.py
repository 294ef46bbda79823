"""`RecordIndex`: where each record of many files begins and ends. Runs where a source is built and where it is read.

Built once by reading the files, and kept in the user's cache folder, so that all processes and later runs map the same
8 bytes a record.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stagepipe.sources.storage.source_cache import open_cached_array
from stagepipe.sources.storage.stored_files import StoredFile

Bounds = NDArray[np.int64]
"""Where the records of one file begin, ascending, and where the last one ends."""

_MIN_CACHED_BYTES: Final = 4 << 20
"""The index of files that are smaller together is made in each process: that takes milliseconds."""
_FORMAT_VERSION: Final = 1


class RecordIndex:
    """The bounds of the records of several files, and how many there are.

    >>> index = RecordIndex.join([np.array([0, 4, 9]), np.array([2, 7])])
    >>> len(index), index.locate(1), index.locate(2)
    (3, (0, 4, 9), (1, 2, 7))
    """

    def __init__(self, packed: NDArray[np.int64]) -> None:
        """`packed`: the number of files, the first record of each file, the number of records, and all bounds."""
        file_count = int(packed[0])
        self.first_records: list[int] = packed[1 : file_count + 2].tolist()
        self._bounds = packed[file_count + 2 :]

    @classmethod
    def join(cls, parts: Iterable[Bounds]) -> RecordIndex:
        """Return the index of files with these bounds, in this order."""
        return cls(_pack(list(parts)))

    def __len__(self) -> int:
        return self.first_records[-1]

    def locate(self, record: int) -> tuple[int, int, int]:
        """Return the number of the record's file, and where it begins and ends there."""
        file_number = bisect_right(self.first_records, record) - 1
        position = record + file_number  # a file has one more bound than records
        return file_number, int(self._bounds[position]), int(self._bounds[position + 1])

    def get_file_bounds(self, file_number: int) -> Bounds:
        """Return the bounds of the records of a file."""
        first, last = self.first_records[file_number], self.first_records[file_number + 1]
        return self._bounds[first + file_number : last + file_number + 1]


def load_index(files: Sequence[StoredFile], kind: str, find_bounds: Callable[[StoredFile], Bounds]) -> RecordIndex:
    """Return the index of files, from the cache if it has been built before.

    `kind` names how records are found, such as "lines". `find_bounds` reads a file and returns its bounds.
    """

    def build() -> NDArray[np.int64]:
        return _pack([find_bounds(file) for file in files])

    if sum(file.size for file in files) < _MIN_CACHED_BYTES:
        return RecordIndex(build())
    described = [(file.name if file.file_system else file.path, file.size, file.version) for file in files]
    key = hashlib.sha256(repr((_FORMAT_VERSION, kind, described)).encode()).hexdigest()[:32]
    return RecordIndex(open_cached_array(key, build))


def _pack(parts: Sequence[Bounds]) -> NDArray[np.int64]:
    counts = [max(0, len(part) - 1) for part in parts]
    first_records = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    bounds = [part if len(part) else np.zeros(1, np.int64) for part in parts]
    return np.concatenate([[len(parts)], first_records, *bounds]).astype(np.int64, copy=False)
