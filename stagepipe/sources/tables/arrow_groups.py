"""`ArrowGroupSource`: the base of sources whose records are rows of groups that are read whole.

Runs where a source is built, and in the workers of `dataset`, which keep the groups that they read last.
"""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from stagepipe.core import SourceFiles, import_extra
from stagepipe.sources.columns import check_columns, check_unique_columns
from stagepipe.sources.order import EpochOrder
from stagepipe.sources.record_source import RecordSource, ShuffleMode, name_place
from stagepipe.sources.storage import (
    Bounds,
    Paths,
    RecordIndex,
    StoredFile,
    describe_stored_files,
    find_stored_files,
    load_index,
)
from stagepipe.sources.tables.arrow_rows import ArrowRows

MAX_KEPT_BYTES: Final = 256 << 20
"""Groups that a worker keeps, in addition to those that `shuffle: blocks` mixes."""
_MAX_OPEN_FILES: Final = 16
_log = logging.getLogger("stagepipe")


class ArrowGroupSource(RecordSource):
    """Rows of tables that pyarrow reads in groups. A subclass defines how a file is opened, and a group read.

    Args:
        path: a path or pattern, or several. `**` matches folders at any depth. A URL is opened by fsspec.
        columns: the columns to read. None: all.
        shuffle: see `RecordSource`. A block is a group.
        storage_options: for URLs, the options of fsspec's file system.
    """

    index_kind = ""
    """Names the format, for the cache of the index."""
    reads_single_rows = False
    """Whether a row can be read without its group."""

    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | None = None,
        shuffle: ShuffleMode = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(shuffle=shuffle)
        import_extra("pyarrow", "parquet", f"stagepipe.sources.{self.label}")
        self._files = find_stored_files(path, self.label, storage_options)
        self._columns = None if columns is None else list(columns)
        if columns is not None:
            self._open_file(0)

    @abstractmethod
    def open_content(self, file: StoredFile) -> Any:
        """Open a file. Raises pyarrow's errors if it has another format."""

    @abstractmethod
    def get_column_names(self, content: Any) -> list[str]:
        """Return the names of the columns of an open file."""

    @abstractmethod
    def count_rows(self, content: Any) -> list[int]:
        """Return the number of rows of each group of an open file."""

    @abstractmethod
    def read_group(self, content: Any, group: int, columns: list[str] | None) -> Any:
        """Return a group of an open file as a `pyarrow.Table`."""

    @property
    def stored_files(self) -> Sequence[StoredFile]:
        """The files of the records."""
        return self._files

    def __len__(self) -> int:
        return self._first_rows[-1]

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the rows of several indices. A group is read once for a run of rows in it."""
        records: list[Any] = []
        group, rows = -1, None
        for index in indices:
            wanted = bisect_right(self._first_rows, index) - 1
            if rows is None or wanted != group:
                group, rows = wanted, self._get_group(wanted)
            row = index - self._first_rows[group]
            try:
                records.append(rows[row])
            except Exception as error:
                file_number = bisect_right(self._index.first_records, group) - 1
                number = group - self._index.first_records[file_number]
                place = f"{self.label}: {self._files[file_number].name}: row {row} of row group {number}"
                raise name_place(error, place) from error
        return records

    def describe_files(self) -> SourceFiles:
        """Return what identifies the files."""
        return describe_stored_files(self._files)

    def get_block_starts(self) -> Sequence[int]:
        """Return the first row of each group that has rows."""
        return np.unique(self._first_rows[:-1]).tolist() if len(self) else [0]

    def make_order(self, shuffle: ShuffleMode) -> EpochOrder:
        """Return the order of an epoch. A full shuffle of groups that do not fit into memory is slow, and warned of."""
        size = sum(file.size for file in self._files)
        if shuffle is True and size > MAX_KEPT_BYTES and not self.reads_single_rows:
            _log.warning(
                "%s: `shuffle: true` of %d MB reads a whole group of rows for almost every row; `shuffle: blocks` "
                "shuffles the groups, and the rows of %d groups together",
                self.label,
                size // 1_000_000,
                self.blocks_in_a_shuffle,
            )
        return super().make_order(shuffle)

    def _get_group(self, group: int) -> ArrowRows:
        rows = self._groups.get(group)
        if rows is not None:
            self._groups.move_to_end(group)
            return rows
        file_number = bisect_right(self._index.first_records, group) - 1
        content = self._open_file(file_number)
        number = group - self._index.first_records[file_number]
        try:
            table = self.read_group(content, number, self._columns)
        except Exception as error:
            self._files[file_number].check_unchanged()
            place = f"{self.label}: {self._files[file_number].name}: row group {number}"
            raise name_place(error, f"{place} cannot be read") from error
        rows = self._groups[group] = ArrowRows(table)
        min_kept = self.blocks_in_a_shuffle if self.shuffle else 1
        while len(self._groups) > min_kept and sum(kept.size_bytes for kept in self._groups.values()) > MAX_KEPT_BYTES:
            self._groups.popitem(last=False)
        return rows

    def _open_file(self, file_number: int) -> Any:
        content = self._contents.get(file_number)
        if content is None:
            file = self._files[file_number]
            content = self._open(file)
            names = self.get_column_names(content)
            check_columns(self._columns or (), names, f"{self.label}: {file.name}")
            check_unique_columns(self._columns, names, f"{self.label}: {file.name}")
            self._contents[file_number] = content
            if len(self._contents) > _MAX_OPEN_FILES:
                self._contents.popitem(last=False)
        return content

    def _open(self, file: StoredFile) -> Any:
        import pyarrow as pa

        try:
            content = self.open_content(file)
        except pa.ArrowInvalid as error:
            file.check_unchanged()
            raise ValueError(f"{self.label}: {file.name}: not a whole {self.label} file: {error}") from error
        except OSError as error:  # pyarrow's own, whose traceback says no more
            raise OSError(f"{self.label}: {file.name}: cannot be opened: {error}") from error
        file.check_unchanged()
        return content

    def _find_bounds(self, file: StoredFile) -> Bounds:
        return np.concatenate([[0], np.cumsum(self.count_rows(self._open(file)), dtype=np.int64)])

    @functools.cached_property
    def _index(self) -> RecordIndex:
        """The groups of the files, as records of one or more rows."""
        return load_index(self._files, self.index_kind, self._find_bounds)

    @functools.cached_property
    def _first_rows(self) -> list[int]:
        """The first row of each group, and the number of rows."""
        firsts = [0]
        for file_number in range(len(self._files)):
            bounds = self._index.get_file_bounds(file_number)
            firsts += (bounds[1:] + firsts[-1]).tolist()
        return firsts

    @functools.cached_property
    def _groups(self) -> OrderedDict[int, ArrowRows]:
        return OrderedDict()

    @functools.cached_property
    def _contents(self) -> OrderedDict[int, Any]:
        return OrderedDict()
