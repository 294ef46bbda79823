"""Sources whose records are rows of tables, each a dict: `ParquetSource`, `ArrowSource`, `LanceSource`.

`ArrowGroupSource` is the base of the sources that read whole groups of rows; workers keep the last groups. `ArrowRows`
converts the rows to dicts without pyarrow's own `to_numpy`, which imports pandas if it is installed: that takes a
second and 60 MB in each worker.
"""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from stagepipe.core import SourceFiles, describe_files, import_extra
from stagepipe.sources.order import EpochOrder
from stagepipe.sources.record_source import (
    RecordSource,
    ShuffleMode,
    check_columns,
    check_unique_columns,
    describe_rows,
    name_place,
)
from stagepipe.sources.remote_requests import RemoteContent
from stagepipe.sources.source_cache import Bounds, RecordIndex, load_index
from stagepipe.sources.stored_files import (
    Paths,
    StoredFile,
    find_stored_files,
    find_stores,
)

_DTYPES: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""NumPy's names of types that have a different name in pyarrow."""


class ArrowRows:
    """The rows of a table, each converted when it is read.

    A list of numbers without nulls, and a tensor of fixed shape, becomes a read-only NumPy array on the table's memory.
    A tensor has its logical shape: its permutation is applied. A tensor of booleans is a copy, because Arrow packs them
    in bits; a tensor with nulls or of other values, such as dates, becomes nested lists. All other values are converted
    by pyarrow's `as_py`.
    """

    def __init__(self, table: Any, *, arrays_of_lists: bool = True) -> None:
        """`table` is a `pyarrow.Table`. Without `arrays_of_lists`, lists of numbers stay lists."""
        self.size_bytes = table.nbytes
        self._columns = [
            (
                name,
                column.chunk(0) if column.num_chunks == 1 else column,
                _choose_converter(column.type, arrays_of_lists=arrays_of_lists),
            )
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: convert(column[row]) for name, column, convert in self._columns}


def _choose_converter(type_: Any, *, arrays_of_lists: bool) -> Callable[[Any], Any]:
    import pyarrow as pa

    if isinstance(type_, pa.FixedShapeTensorType):
        return partial(_convert_tensor, type_=type_, dtype=_get_dtype(type_.value_type))
    if _has_tensor(type_):
        return partial(_convert_nested, arrays_of_lists=arrays_of_lists)
    dtype = _get_dtype(type_.value_type) if arrays_of_lists and _is_list(type_) else None
    return _as_py if dtype is None else partial(_list_to_array, dtype=dtype)


def _is_list(type_: Any) -> bool:
    import pyarrow as pa

    names = ("ListType", "LargeListType", "FixedSizeListType", "ListViewType", "LargeListViewType")
    return isinstance(type_, tuple(getattr(pa, name) for name in names if hasattr(pa, name)))


def _has_tensor(type_: Any) -> bool:
    """Whether a nested type contains a tensor."""
    import pyarrow as pa

    if isinstance(type_, pa.FixedShapeTensorType):
        return True
    return any(_has_tensor(type_.field(number).type) for number in range(type_.num_fields))


def _convert_nested(scalar: Any, *, arrays_of_lists: bool) -> Any:
    """Return a struct, a list or a map that contains a tensor."""
    import pyarrow as pa

    if not scalar.is_valid:
        return None
    if pa.types.is_struct(scalar.type):
        values = [(field.name, scalar[field.name]) for field in scalar.type]
        return {name: _convert(value, arrays_of_lists=arrays_of_lists) for name, value in values}
    entries = [_convert(value, arrays_of_lists=arrays_of_lists) for value in scalar.values]
    return [tuple(entry.values()) for entry in entries] if pa.types.is_map(scalar.type) else entries


def _convert(scalar: Any, *, arrays_of_lists: bool) -> Any:
    return _choose_converter(scalar.type, arrays_of_lists=arrays_of_lists)(scalar)


def _get_dtype(type_: Any) -> np.dtype[Any] | None:
    """Return NumPy's type for numbers; None for other types."""
    import pyarrow as pa

    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    return np.dtype(_DTYPES.get(str(type_), str(type_))) if is_number else None


def _as_py(scalar: Any) -> Any:
    return scalar.as_py()


def _list_to_array(scalar: Any, dtype: np.dtype[Any]) -> Any:
    values = scalar.values
    return scalar.as_py() if values is None or values.null_count else _to_array(values, dtype)


def _convert_tensor(scalar: Any, *, type_: Any, dtype: np.dtype[Any] | None) -> Any:
    """Return a tensor as an array, or as nested lists if NumPy lacks its type or it has nulls. A null becomes None."""
    if not scalar.is_valid:
        return None
    values = scalar.value.values
    is_array = not values.null_count
    if is_array and dtype is not None:
        array = _to_array(values, dtype)
    else:
        is_array = is_array and str(type_.value_type) == "bool"
        array = np.empty(len(values), np.bool_ if is_array else object)
        array[:] = values.to_pylist()
    array = array.reshape(type_.shape)
    if type_.permutation is not None:
        array = array.transpose(type_.permutation)
    return array if is_array else array.tolist()


def _to_array(values: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the numbers of a `pyarrow.Array` without nulls as a view of its memory."""
    if not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)


MAX_KEPT_BYTES: Final = 256 << 20
"""Memory for the groups that a worker keeps; with `shuffle: blocks`, it keeps at least the mixed groups."""
_MAX_OPEN_FILES: Final = 16
_log = logging.getLogger("stagepipe")


class ArrowGroupSource(RecordSource):
    """Rows of tables that pyarrow reads in groups. A subclass defines how to open a file and how to read a group.

    Args:
        path: a path or pattern, or several. `**` matches folders at any depth. A URL is opened by fsspec.
        columns: the columns to read. None: all.
        shuffle: see `RecordSource`. A block is a group.
        storage_options: for URLs, the options of fsspec's file system.
    """

    draws_nothing: ClassVar = True
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
            self._get_content(0)

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
        """Return the rows of several indices. A group is read once for consecutive rows in it."""
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

    def get_block_starts(self) -> Sequence[int]:
        """Return the first row of each group that has rows."""
        return np.unique(self._first_rows[:-1]).tolist() if len(self) else [0]

    def make_order(self, shuffle: ShuffleMode) -> EpochOrder:
        """Return the order of an epoch. Warn about a full shuffle of groups that exceed the memory, which is slow."""
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
        content = self._get_content(file_number)
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
        file = self._files[file_number]
        content = self._open(file)
        names = self.get_column_names(content)
        check_columns(self._columns or (), names, f"{self.label}: {file.name}")
        check_unique_columns(self._columns, names, f"{self.label}: {file.name}")
        return content

    def _open(self, file: StoredFile) -> Any:
        import pyarrow as pa

        try:
            content = self.open_content(file)
        except pa.ArrowInvalid as error:
            file.check_unchanged()
            raise ValueError(f"{self.label}: {file.name}: not a whole {self.label} file: {error}") from error
        except OSError as error:  # pyarrow's own error, whose traceback adds nothing
            raise OSError(f"{self.label}: {file.name}: cannot be opened: {error}") from error
        file.check_unchanged()
        return content

    def _find_bounds(self, file: StoredFile) -> Bounds:
        return np.concatenate([[0], np.cumsum(self.count_rows(self._open(file)), dtype=np.int64)])

    @functools.cached_property
    def _index(self) -> RecordIndex:
        """The groups of the files; each group counts as a record with one or more rows."""
        return load_index(self._files, self.index_kind, self._find_bounds)

    @functools.cached_property
    def _first_rows(self) -> list[int]:
        """The first row of each group, followed by the number of rows."""
        firsts = [0]
        for file_number in range(len(self._files)):
            bounds = self._index.get_file_bounds(file_number)
            firsts += (bounds[1:] + firsts[-1]).tolist()
        return firsts

    @functools.cached_property
    def _groups(self) -> OrderedDict[int, ArrowRows]:
        return OrderedDict()

    @functools.cached_property
    def _get_content(self) -> Callable[[int], Any]:
        return functools.lru_cache(_MAX_OPEN_FILES)(self._open_file)


class ParquetSource(ArrowGroupSource):
    """Yield a dict for each row of Parquet files, in file and row order.

    In YAML it is `uses: stagepipe.sources.parquet`; needs pyarrow (`pip install 'pyarrow>=15'`).

    Files are read in row groups; each worker keeps up to 256 MiB of the last ones. Values are Python objects, lists of
    numbers NumPy arrays.

    Args:
        path: one or several paths or patterns: `"data/**/*.parquet"`. fsspec opens URLs (`s3://...`).
        columns: the columns to read; others are not decoded. None: all.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. True: any order of
            rows, fast only if a worker can keep all row groups. `"blocks"`: shuffle the row groups, and the rows of
            four of them, so that a worker reads each row group once.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> ParquetSource("rows.parquet", columns=["label"])[0]  # doctest: +SKIP
    {'label': 1}

    Raises ValueError if no file matches or a column does not exist, and UsageError without pyarrow.
    """

    index_kind = "parquet"

    def open_content(self, file: StoredFile) -> Any:
        """Open a file and read its footer."""
        import pyarrow.parquet as pq

        if file.file_system is None:
            return pq.ParquetFile(file.path, memory_map=True)
        return pq.ParquetFile(RemoteContent(file), pre_buffer=True)

    def get_column_names(self, content: Any) -> list[str]:
        """Return the names of the columns."""
        return list(content.schema_arrow.names)

    def count_rows(self, content: Any) -> list[int]:
        """Return the number of rows of each row group."""
        metadata = content.metadata
        return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def read_group(self, content: Any, group: int, columns: list[str] | None) -> Any:
        """Read a row group. In one thread: the stage has workers."""
        return content.read_row_group(group, columns=columns, use_threads=False)


class ArrowSource(ArrowGroupSource):
    """Yield a dict for each row of Arrow IPC files, in file and row order.

    In YAML it is `uses: stagepipe.sources.arrow`; needs pyarrow (`pip install 'pyarrow>=15'`).

    Reads the IPC file format (also called Feather) and the stream format, which Hugging Face's datasets writes. Local
    files are memory-mapped, and single rows are read if they are not compressed. Values are Python objects, lists of
    numbers NumPy arrays.

    Args:
        path: one or several paths or patterns: `"data/*.arrow"`. fsspec opens URLs (`s3://...`), and reads files of the
            stream format whole.
        columns: the columns to read. None: all.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch. `"blocks"` shuffles
            the record batches, and the rows of four of them; faster for compressed files and URLs.
        storage_options: for URLs, the options of fsspec's file system, such as `{anon: true}`.

    >>> ArrowSource("rows.arrow", columns=["label"])[0]  # doctest: +SKIP
    {'label': 1}

    Raises ValueError if no file matches or a column does not exist, and UsageError without pyarrow.
    """

    index_kind = "arrow"
    reads_single_rows = True

    def open_content(self, file: StoredFile) -> Any:
        """Open a file: a reader of its batches, or for the stream format its batches."""
        import pyarrow as pa

        def open_again() -> Any:
            return (
                pa.memory_map(file.path) if file.file_system is None else pa.PythonFile(RemoteContent(file), mode="r")
            )

        with open_again() as content:
            is_file_format = content.read(6) == b"ARROW1"
        if is_file_format:
            return pa.ipc.open_file(open_again())
        return pa.ipc.open_stream(open_again()).read_all()

    def get_column_names(self, content: Any) -> list[str]:
        """Return the names of the columns."""
        return list(content.schema.names)

    def count_rows(self, content: Any) -> list[int]:
        """Return the number of rows of each record batch."""
        import pyarrow as pa

        if isinstance(content, pa.Table):
            return [batch.num_rows for batch in content.to_batches()]
        return [content.get_batch(number).num_rows for number in range(content.num_record_batches)]

    def read_group(self, content: Any, group: int, columns: list[str] | None) -> Any:
        """Read a record batch."""
        import pyarrow as pa

        is_stream = isinstance(content, pa.Table)
        batch = content.to_batches()[group] if is_stream else content.get_batch(group)
        table = pa.Table.from_batches([batch])
        return table if columns is None else table.select(columns)


class LanceSource(RecordSource):
    """Yield each row of a Lance dataset as a dict of Python values, with fixed-shape tensors as NumPy arrays.

    In YAML it is `uses: stagepipe.sources.lance`. To read many rows per call, set `batch: {size: 64}` on the source.

    Args:
        path: the folder of the dataset, such as `train.lance`, or a URL that Lance opens (`s3://...`).
        columns: the columns to read. None: all.
        version: the version of the dataset. None: the newest, in each process, when the source is built. Set it if the
            dataset may change during a run.
        shuffle: use a different order in each epoch, drawn from the pipeline's seed and the epoch.
        storage_options: options of Lance's object store, for URLs.

    Requires pylance: `pip install 'pylance>=0.20'`.

    >>> LanceSource("train.lance", columns=["text"])[0]  # doctest: +SKIP
    {'text': 'one'}

    Raises ValueError without a dataset and for an unknown column, with the known ones.
    """

    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        shuffle: ShuffleMode = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(shuffle=shuffle)
        import_extra("lance", "lance", "the source `lance`")
        stores = find_stores(path, "lance")
        if len(stores) > 1:
            named = ", ".join(stores[:3])
            hint = "name one, or join a source of each with `stagepipe.sources.concat`"
            raise ValueError(f"lance: {path!r} are {len(stores)} datasets: {named}; {hint}")
        self._path = stores[0]
        self._columns = None if columns is None else list(columns)
        self._version = version
        self._storage_options = None if storage_options is None else dict(storage_options)

    @functools.cached_property
    def _count(self) -> int:
        return int(self._dataset.count_rows())

    def __len__(self) -> int:
        return self._count

    def describe_files(self) -> SourceFiles:
        """Return the version of the dataset in place of a size: a new version may order the rows in another way."""
        return describe_files([Path(self._path).name], [int(self._dataset.version)], [""])

    def read_records(self, indices: Sequence[int]) -> list[Any]:
        """Return the rows of several indices, with one read."""
        dataset = self._dataset
        try:
            rows = ArrowRows(dataset.take(list(indices), columns=self._columns), arrays_of_lists=False)
            return [rows[number] for number in range(len(indices))]
        except Exception as error:
            raise name_place(error, f"lance: {self._path}: {describe_rows(indices)}") from error

    @functools.cached_property
    def _dataset(self) -> Any:
        lance = import_extra("lance", "lance", "the source `lance`")
        try:
            dataset = lance.dataset(self._path, version=self._version, storage_options=self._storage_options)
        except (ValueError, OSError) as error:
            raise ValueError(f"lance: {self._path}: {error}; give the folder of a Lance dataset") from error
        check_columns(self._columns or (), dataset.schema.names, f"lance: {self._path}")
        return dataset
