"""`ParquetSink`: writes dict items as rows of Parquet shards. Encodes in workers; joins shards without decoding.

The bytes of the parts' files are concatenated, followed by a common footer. A footer contains the offset of each column
chunk. In a shard, the offsets of a part are increased by the part's own offset; the footers of the parts remain between
them, and readers ignore them. The footer is a struct of Thrift's compact protocol:
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md, with the fields of
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.

A dictionary of a column's values makes the column small if they repeat. If they do not, the writer drops the dictionary
only after most of the part is written: for vectors of floats, this takes four fifths of the time. So the sink looks at
the values before it writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final, Literal

import numpy as np

from stagepipe.core import import_extra
from stagepipe.sinks.arrow_sinks import errors_of, fit_table, keep_schema, make_schema, make_table
from stagepipe.sinks.part_sink import PartPlace, PartSink

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC: Final = b"PAR1"
_BOOL_TRUE: Final = 1
_BOOL_FALSE: Final = 2
_BYTE: Final = 3
_INTEGERS: Final = (4, 5, 6)
_DOUBLE: Final = 7
_BINARY: Final = 8
_LISTS: Final = (9, 10)
_MAP: Final = 11
_STRUCT: Final = 12
_LONG_LIST: Final = 15

_ROW_COUNT: Final = 3
_ROW_GROUPS: Final = 4
_COLUMNS: Final = 1
_GROUP_OFFSET: Final = 5
_GROUP_ORDINAL: Final = 7
_MAX_ORDINAL: Final = 2**15 - 1
_CHUNK_OFFSETS: Final = (2, 4, 6)
"""Fields of a ColumnChunk: the chunk, its offset index, its column index."""
_CHUNK_METADATA: Final = 3
_PAGE_OFFSETS: Final = (9, 10, 11, 14)
"""Fields of a ColumnMetaData: data, index and dictionary pages, bloom filter."""

ThriftStruct = dict[int, tuple[int, Any]]
"""Type and value of each field. The value of a list is (type of its elements, elements)."""


def read_footer(file: BinaryIO, end: int) -> ThriftStruct:
    """Return the footer of the Parquet file that ends at offset `end`. Raises ValueError if there is none."""
    file.seek(end - 8)
    tail = file.read(8)
    if tail[4:] != MAGIC:
        raise ValueError(f"no Parquet file ends at byte {end:,}")
    length = int.from_bytes(tail[:4], "little")
    file.seek(end - 8 - length)
    return _Reader(file.read(length)).read_struct()


def write_footer(file: BinaryIO, footer: ThriftStruct) -> None:
    """Write a footer at the current position."""
    data = bytearray()
    _write_struct(data, footer)
    file.write(data + len(data).to_bytes(4, "little") + MAGIC)


def join_footers(footers: Iterable[ThriftStruct], offsets: Sequence[int]) -> ThriftStruct:
    """Return the footer of files that start at `offsets` of one file. It changes all footers, and reuses the first."""
    joined: ThriftStruct = {}
    for footer, offset in zip(footers, offsets, strict=True):
        groups = footer[_ROW_GROUPS][1][1]
        for group in groups:
            _move_row_group(group, offset)
        if not joined:
            joined = footer
            continue
        joined[_ROW_GROUPS][1][1].extend(groups)
        joined[_ROW_COUNT] = (joined[_ROW_COUNT][0], joined[_ROW_COUNT][1] + footer[_ROW_COUNT][1])
    for ordinal, group in enumerate(joined[_ROW_GROUPS][1][1]):
        if _GROUP_ORDINAL in group:
            group[_GROUP_ORDINAL] = (group[_GROUP_ORDINAL][0], min(ordinal, _MAX_ORDINAL))
    return joined


def _move_row_group(group: ThriftStruct, offset: int) -> None:
    _move(group, (_GROUP_OFFSET,), offset)
    for chunk in group[_COLUMNS][1][1]:
        _move(chunk, _CHUNK_OFFSETS, offset)
        _move(chunk[_CHUNK_METADATA][1], _PAGE_OFFSETS, offset)


def _move(fields: ThriftStruct, names: Iterable[int], offset: int) -> None:
    for name in names:
        if name in fields and fields[name][1]:  # 0: not set
            fields[name] = (fields[name][0], fields[name][1] + offset)


class _Reader:
    """Reads Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def _byte(self) -> int:
        value = self._data[self._position]
        self._position += 1
        return value

    def _take(self, count: int) -> bytes:
        start = self._position
        self._position += count
        return self._data[start : self._position]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the last byte has no continuation bit
                return value
            shift += 7

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def read_struct(self) -> ThriftStruct:
        fields: ThriftStruct = {}
        name = 0
        while header := self._byte():
            kind = header & 15
            name = name + (header >> 4) if header >> 4 else self._integer()
            is_bool = kind in {_BOOL_TRUE, _BOOL_FALSE}
            fields[name] = (kind, kind == _BOOL_TRUE if is_bool else self._read(kind))
        return fields

    def _read(self, kind: int) -> Any:  # noqa: PLR0911 - one per type
        if kind in _INTEGERS:
            return self._integer()
        if kind == _BINARY:
            return self._take(self._varint())
        if kind in _LISTS:
            header = self._byte()
            count = self._varint() if header >> 4 == _LONG_LIST else header >> 4
            return header & 15, [self._read(header & 15) for _ in range(count)]
        if kind == _STRUCT:
            return self.read_struct()
        if kind in {_BOOL_TRUE, _BOOL_FALSE, _BYTE}:
            return self._byte()
        if kind == _DOUBLE:
            return self._take(8)
        if kind == _MAP:
            count = self._varint()
            kinds = self._byte() if count else 0
            return kinds, [(self._read(kinds >> 4), self._read(kinds & 15)) for _ in range(count)]
        raise ValueError(f"unknown Thrift type {kind} in a Parquet footer")


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:  # noqa: PLR2004 - seven bits per byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _write_integer(out: bytearray, value: int) -> None:
    _write_varint(out, (value << 1) ^ (value >> 63))


def _write_struct(out: bytearray, fields: ThriftStruct) -> None:
    last = 0
    for name, (kind, value) in sorted(fields.items()):
        if 0 < name - last < _LONG_LIST + 1:
            out.append((name - last) << 4 | kind)
        else:
            out.append(kind)
            _write_integer(out, name)
        last = name
        if kind not in {_BOOL_TRUE, _BOOL_FALSE}:
            _WRITERS[kind](out, value)
    out.append(0)


def _write_binary(out: bytearray, value: bytes) -> None:
    _write_varint(out, len(value))
    out += value


def _write_list(out: bytearray, value: tuple[int, list[Any]]) -> None:
    kind, elements = value
    out.append(min(len(elements), _LONG_LIST) << 4 | kind)
    if len(elements) >= _LONG_LIST:
        _write_varint(out, len(elements))
    for element in elements:
        _WRITERS[kind](out, element)


def _write_map(out: bytearray, value: tuple[int, list[tuple[Any, Any]]]) -> None:
    kinds, pairs = value
    _write_varint(out, len(pairs))
    if pairs:
        out.append(kinds)
    for key, inner in pairs:
        _WRITERS[kinds >> 4](out, key)
        _WRITERS[kinds & 15](out, inner)


def _write_double(out: bytearray, value: bytes) -> None:
    out += value


_WRITERS: Final[dict[int, Callable[[bytearray, Any], None]]] = {
    **dict.fromkeys((_BOOL_TRUE, _BOOL_FALSE, _BYTE), bytearray.append),
    **dict.fromkeys(_INTEGERS, _write_integer),
    _DOUBLE: _write_double,
    _BINARY: _write_binary,
    **dict.fromkeys(_LISTS, _write_list),
    _MAP: _write_map,
    _STRUCT: _write_struct,
}


_SAMPLED_VALUES: Final = 1024
_MIN_SAMPLED_VALUES: Final = 256
"""A column with fewer values is cheap with and without a dictionary."""
_MAX_DISTINCT_RATIO: Final = 0.5
"""If a larger share of the sampled values is distinct, the column gets no dictionary."""


def choose_dictionary_columns(table: pa.Table) -> bool | list[str]:
    """Return the `use_dictionary` for writing a table: all columns except floats with mostly distinct values.

    >>> import pyarrow as pa
    >>> choose_dictionary_columns(pa.table({"id": range(1000), "x": np.arange(1000) / 7}))
    ['id']
    """
    without = {
        path
        for name, column in zip(table.column_names, table.columns, strict=True)
        if (path := _find_float_path(name, column.type)) is not None and _has_distinct_values(column)
    }
    return [path for path in _list_leaf_paths(table.schema) if path not in without] if without else True


def _find_float_path(name: str, column_type: pa.DataType) -> str | None:
    """Return the Parquet path of a column of floats, or of lists of floats at any depth; None for other columns."""
    import pyarrow as pa

    path = name
    while _is_list(column_type):
        path += ".list.element"
        column_type = column_type.value_type
    return path if pa.types.is_float32(column_type) or pa.types.is_float64(column_type) else None


def _has_distinct_values(column: pa.ChunkedArray) -> bool:
    values = column.combine_chunks()
    while _is_list(values.type):
        values = values.flatten()
    sample = values.to_numpy(zero_copy_only=False)[:: max(len(values) // _SAMPLED_VALUES, 1)]
    return len(sample) >= _MIN_SAMPLED_VALUES and len(np.unique(sample)) > _MAX_DISTINCT_RATIO * len(sample)


def _is_list(column_type: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_list(column_type) or types.is_large_list(column_type) or types.is_fixed_size_list(column_type))


@lru_cache(maxsize=8)
def _list_leaf_paths(schema: pa.Schema) -> tuple[str, ...]:
    """Return the Parquet paths of all columns of a schema, including columns inside lists and structs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return tuple(leaves.column(index).path for index in range(len(leaves)))


class ParquetSink(PartSink):
    """Write each item, a dict, as a row of `path/000000.parquet` ... In YAML it is `uses: stagepipe.sinks.parquet`.

    Arrays and tensors become lists, nested per axis. Dicts become structs. Dataclasses are rows too. A row group is one
    part. Columns are dictionary-encoded, except floats with few repeated values.

    Args:
        path: see `PartSink`.
        options: the other arguments of `PartSink`.
        schema: the type of each column, such as `{x: list<float32>, label: int64, name: string}`, or a
            `pyarrow.Schema`. Without it, the first part decides: later parts need the same columns with compatible
            types.
        compression: `snappy`, `zstd`, `gzip`, `lz4`, `brotli` or `none`.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "part"
    >>> ParquetSink("out", schema={"x": "list<float32>"}).write_part([{"x": [1, 2]}, {"x": [3]}], path)
    >>> import pyarrow.parquet
    >>> pyarrow.parquet.read_table(path)["x"].to_pylist()
    [[1.0, 2.0], [3.0]]

    Requires pyarrow: `pip install 'pyarrow>=15'`. Raises TypeError and ValueError, with the field and the row.
    """

    appends: ClassVar[bool] = True
    extension: ClassVar[str] = ".parquet"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Mapping[str, Any] | pa.Schema | None = None,
        compression: Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none"] = "snappy",
        **options: Any,
    ) -> None:
        super().__init__(path, **options)
        import_extra("pyarrow", "parquet", "the sink `parquet`")
        with errors_of("parquet"):
            self._schema = None if schema is None else make_schema(schema)
        self._compression = compression

    def warm_up(self) -> None:
        """See `PartSink`; the first table imports pandas, if installed (1.5 s of CPU)."""
        import pyarrow.parquet

        pyarrow.table({"": [0]})

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write the items as one row group."""
        with errors_of("parquet"):
            table = make_table(items, self._schema)
        self._write_table(table, path)

    def _write_table(self, table: pa.Table, path: Path) -> None:
        import pyarrow.parquet as pq

        pq.write_table(
            table,
            path,
            compression=self._compression,
            row_group_size=max(table.num_rows, 1),
            use_dictionary=choose_dictionary_columns(table),
        )

    def prepare_part(self, path: Path, kept: dict[str, Any]) -> None:
        """Convert a part to the columns of the first part, or raise."""
        import pyarrow.parquet as pq

        schema = pq.read_schema(path)
        expected = keep_schema(schema, kept)
        if not schema.equals(expected):
            with errors_of("parquet"):
                table = fit_table(pq.read_table(path), expected)
            self._write_table(table, path)

    def finish_shard(self, file: BinaryIO, parts: Sequence[PartPlace], kept: Mapping[str, Any]) -> None:
        """Write the common footer."""
        del kept
        end = file.tell()
        footers = [read_footer(file, part.offset + part.size) for part in parts]
        file.seek(end)
        write_footer(file, join_footers(footers, [part.offset for part in parts]))
