"""Joins Parquet files into one without decoding them: their bytes one after the other, then a common footer. Pure.

The footer of a Parquet file says at which offset each column chunk begins. In a shard the offsets of a part move by the
part's own offset; the footers of the parts stay between them, unread. The footer is a struct of Thrift's compact
protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md, and its fields are those of
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, Final

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
"""Of a ColumnChunk: the chunk, its offset index, its column index."""
_CHUNK_METADATA: Final = 3
_PAGE_OFFSETS: Final = (9, 10, 11, 14)
"""Of a ColumnMetaData: data, index and dictionary pages, bloom filter."""

ThriftStruct = dict[int, tuple[int, Any]]
"""By field: its type and value. A list is (type of its elements, elements)."""


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
    """Return the footer of files that lie at `offsets` of one file. It is made of the first, and changes them all."""
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

    def _read(self, kind: int) -> Any:  # noqa: PLR0911 - one a type
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
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
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
