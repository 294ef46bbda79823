"""`ByteRangeSource`: the base of sources whose records are ranges of bytes. Runs where it is built and where it reads.

The process of the source and each worker map the same index; a worker reads the bytes of the records that it is sent.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stagepipe.core import SourceFiles
from stagepipe.sources.record_source import RecordSource, ShuffleMode, name_place
from stagepipe.sources.storage import (
    REMOTE_BLOCK_BYTES,
    Bounds,
    Paths,
    RangeReader,
    RecordIndex,
    StoredFile,
    describe_stored_files,
    find_stored_files,
    load_index,
)

_MAX_MERGED_BYTES: Final = 4 << 20
"""Consecutive records are read together up to this size."""
_MAX_COUNTED_BYTES: Final = 1 << 28
"""Lines up to a bad record are counted in files up to here, in 0.1 s; further on its position in bytes is named."""


class ByteRangeSource(RecordSource):
    """Records that are consecutive ranges of bytes of files.

    A subclass defines `index_kind`, `find_bounds` and `parse`.

    Args:
        path: a path or pattern, or several. `**` matches folders at any depth. A URL is opened by fsspec.
        shuffle: see `RecordSource`. A block is about 1 MiB of records of one file.
        storage_options: for URLs, the options of fsspec's file system.
    """

    index_kind = ""
    """Names how the bounds are found, for the cache."""

    def __init__(
        self,
        path: Paths,
        *,
        shuffle: ShuffleMode = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(shuffle=shuffle)
        self._files = [self.prepare_file(file) for file in find_stored_files(path, self.label, storage_options)]

    @abstractmethod
    def find_bounds(self, file: StoredFile) -> Bounds:
        """Read a file, and return where its records begin, and where the last one ends.

        The file is added to any exception.
        """

    @abstractmethod
    def parse(self, data: bytes, file_number: int) -> Any:
        """Return the record that the bytes hold. The record's file and place are added to any exception."""

    def prepare_file(self, file: StoredFile) -> StoredFile:
        """Return the file to read instead of a file that was found."""
        return file

    @property
    def stored_files(self) -> Sequence[StoredFile]:
        """The files of the records."""
        return self._files

    def __len__(self) -> int:
        return len(self._index)

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the records of several indices. Consecutive ones are read together."""
        places = [self._index.locate(index) for index in indices]
        return [record for run in _merge(places) for record in self._read_run(run)]

    def get_block_starts(self) -> Sequence[int]:
        """Return the first record of each MiB of each file."""
        starts: list[int] = []
        for number, first in enumerate(self._index.first_records[:-1]):
            bounds = self._index.get_file_bounds(number)[:-1]
            if len(bounds):
                cuts = np.arange(bounds[0], bounds[-1] + 1, REMOTE_BLOCK_BYTES)
                starts += np.unique(first + np.searchsorted(bounds, cuts)).tolist()
        return starts

    def describe_files(self) -> SourceFiles:
        """Return what identifies the files."""
        return describe_stored_files(self._files)

    def _read_run(self, run: Sequence[tuple[int, int, int]]) -> Iterator[Any]:
        file = self._files[run[0][0]]
        first = run[0][1]
        data = self._reader.read(file, first, run[-1][2])
        for _, start, stop in run:
            try:
                yield self.parse(data[start - first : stop - first], run[0][0])
            except Exception as error:
                self._reader.check_unchanged(file)
                place = f"{self.label}: {file.name}{self.describe_place(file, start)}"
                raise name_place(error, place) from error

    def describe_place(self, file: StoredFile, start: int) -> str:
        """Return the place of a record in its file, for messages: `:12` for line 12."""
        if start > _MAX_COUNTED_BYTES:
            return f", byte {start}"
        line = self._reader.read(file, 0, start).count(b"\n") + 1
        return f":{line}"

    @functools.cached_property
    def _index(self) -> RecordIndex:
        return load_index(self._files, self.index_kind, self._find_bounds)

    def _find_bounds(self, file: StoredFile) -> Bounds:
        try:
            return self.find_bounds(file)
        except Exception as error:
            file.check_unchanged()
            raise name_place(error, f"{self.label}: {file.name}") from error

    @functools.cached_property
    def _reader(self) -> RangeReader:
        return RangeReader()


def _merge(places: Sequence[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield runs of records that lie one after the other in one file."""
    run: list[tuple[int, int, int]] = []
    for place in places:
        if run and (place[:2] != (run[-1][0], run[-1][2]) or place[2] - run[0][1] > _MAX_MERGED_BYTES):
            yield run
            run = []
        run.append(place)
    if run:
        yield run
