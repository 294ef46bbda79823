"""The rows of an array that may be spread over several files. Read in the workers of the source."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np

from stagepipe.core import empty
from stagepipe.sources.arrays.recently_used import RecentlyUsed
from stagepipe.sources.record_source import name_place

BLOCK_BYTES: Final = 1 << 20
"""A block of rows of an array without chunks: a disk reads it in little more time than one row."""
_MAX_CACHED_BYTES: Final = 256 << 20
"""A block of compressed rows that is larger is not kept: each row is read from the file."""


@dataclass(frozen=True, kw_only=True)
class ArrayFile:
    """An array in a file: what is known without reading its rows."""

    file: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int = 0
    """Rows that are stored, and decompressed, together. 0: each row can be read alone."""

    @property
    def row_bytes(self) -> int:
        """The bytes of a row in memory."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def block_rows(self) -> int:
        """The rows that are quick to read together."""
        return self.chunk_rows or max(1, BLOCK_BYTES // max(1, self.row_bytes))

    @property
    def block_bytes(self) -> int:
        """The bytes of such rows in memory."""
        return self.block_rows * self.row_bytes

    @property
    def is_read_by_chunks(self) -> bool:
        """Whether to read and keep whole chunks."""
        return 0 < self.chunk_rows * self.row_bytes <= _MAX_CACHED_BYTES


class RowArrays:
    """The rows of one array of several files, one file after the other.

    `open_array` returns the array of a file; it may be called again after other files were opened.
    """

    def __init__(
        self, arrays: Sequence[ArrayFile], open_array: Callable[[str], Any], label: str, *, kept_chunks: int
    ) -> None:
        """Raises ValueError for a single number, and for files whose rows differ in shape or dtype."""
        for array in arrays:
            _check_rows(array, arrays[0], label)
        self._arrays = arrays
        self._open_array = open_array
        self._label = label
        self._first_rows = [0, *accumulate(array.shape[0] for array in arrays)]
        self._chunks: RecentlyUsed[Any] = RecentlyUsed(self._read_chunk, kept_chunks)

    def __len__(self) -> int:
        return self._first_rows[-1]

    def describe(self) -> str:
        """Return the number, shape and dtype of the rows, for messages."""
        array = self._arrays[0]
        shape = f", each {'x'.join(map(str, array.shape[1:]))}" if array.shape[1:] else ""
        return f"{len(self)} rows{shape} of {array.dtype}"

    def read_rows(self, indices: Sequence[int]) -> Iterator[Any]:
        """Yield the rows of several indices: views where the file is mapped, otherwise copies."""
        for index in indices:
            number = bisect_right(self._first_rows, index) - 1
            array = self._arrays[number]
            row = index - self._first_rows[number]
            if array.is_read_by_chunks:
                chunk, row = divmod(row, array.chunk_rows)
                yield _copy_row(self._chunks.get((number, chunk))[row])
            else:
                yield self._read(array, row)

    @property
    def block_bytes(self) -> int:
        """The bytes of the largest block."""
        return max(array.block_bytes for array in self._arrays)

    def get_block_starts(self) -> list[int]:
        """Return the first index of each block of each file."""
        return [
            first + start
            for first, array in zip(self._first_rows, self._arrays, strict=False)
            for start in range(0, array.shape[0], array.block_rows)
        ]

    def _read_chunk(self, key: tuple[int, int]) -> Any:
        number, chunk = key
        array = self._arrays[number]
        start = chunk * array.chunk_rows
        return self._read(array, slice(start, start + array.chunk_rows))

    def _read(self, array: ArrayFile, rows: int | slice) -> Any:
        values = self._open_array(array.file)
        try:
            return values[rows]
        except Exception as error:
            place = f"{self._label}: {array.file}: row {rows.start if isinstance(rows, slice) else rows}"
            raise name_place(error, f"{place} cannot be read") from error


def _copy_row(row: Any) -> Any:
    """Copy a row out of a kept chunk, into outgoing shared memory: a stage may write into it."""
    if not isinstance(row, np.ndarray) or row.dtype.hasobject:
        return row
    copied = empty(row.shape, row.dtype)
    copied[...] = row
    return copied


def _check_rows(array: ArrayFile, first: ArrayFile, label: str) -> None:
    if not array.shape:
        raise ValueError(f"{label}: {array.file} holds a single {array.dtype}, which has no rows; name an array")
    if (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
        raise ValueError(
            f"{label}: the rows of {array.file} are {_describe_row(array)}, but those of {first.file} are "
            f"{_describe_row(first)}; give files of equal rows, or a source for each and put them together with "
            "`stagepipe.sources.concat`"
        )


def _describe_row(array: ArrayFile) -> str:
    return f"{array.dtype} of shape {array.shape[1:]}"
