"""Makes Arrow tables of items, and fits them to a schema. `HuggingFaceSink` writes them for `datasets.load_from_disk`.

The functions import pyarrow when they use it. The dataset has the files of `Dataset.save_to_disk`: Arrow IPC streams,
`state.json` and `dataset_info.json`. A stream is a schema, record batches and an end mark, so the record batches of
several parts form one stream: https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final

import numpy as np

from stagepipe.core import closest_match, import_extra, is_masked_array, read_fields
from stagepipe.sinks.part_sink import PartPlace, PartSink
from stagepipe.sinks.stored_values import has_nulls, read_tensor

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str, bytes, list, dict})
"""Types that Arrow accepts unchanged."""
_PLAIN_LEAVES: Final = _PLAIN_TYPES - {list, dict}
_NESTED_TYPES: Final = frozenset({list, dict})
_LIST_PATTERN: Final = re.compile(r"list<(.+)>")


@contextmanager
def errors_of(sink: str) -> Iterator[None]:
    """Put the name of the sink in front of the messages of TypeError and ValueError."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{sink}: {error}") from error


def make_schema(types: Mapping[str, Any] | pa.Schema) -> pa.Schema:
    """Return the schema with these columns; a type is a name such as `int64` or `list<float32>`, or an Arrow type.

    >>> make_schema({"x": "list<float32>"}).field("x").type
    ListType(list<element: float>)

    Raises ValueError for an unknown type.
    """
    import pyarrow as pa

    if isinstance(types, pa.Schema):
        return types
    return pa.schema([(name, _parse_type(name, given)) for name, given in types.items()])


def _parse_type(column: str, given: Any) -> pa.DataType:
    import pyarrow as pa

    if isinstance(given, pa.DataType):
        return given
    match = _LIST_PATTERN.fullmatch(str(given))
    if match:
        return pa.list_(pa.field("element", _parse_type(column, match[1])))
    try:
        return pa.type_for_alias(str(given))
    except ValueError as error:
        raise ValueError(
            f"schema: column `{column}` has the unknown type {given!r}; write one such as int64, float32, "
            "string, binary, bool or list<float32>"
        ) from error


def make_table(items: Sequence[Any], schema: pa.Schema | None) -> pa.Table:
    """Return a table with a row for each item. Without a schema, the values determine the types.

    Raises TypeError and ValueError, with the field and the row.
    """
    import pyarrow as pa

    rows = [_to_row(row, item) for row, item in enumerate(items)]
    if schema is None and not all(rows):  # a table without columns has no rows
        row = next(row for row, item in enumerate(rows) if not item)
        raise ValueError(f"row {row} of the part has no fields; drop it before the sink, or give a `schema`")
    names = list(dict.fromkeys(name for row in rows for name in row)) if schema is None else schema.names
    if schema is None:
        _refuse_other_names(rows, names)
    else:
        _refuse_other_fields(rows, names)
    columns = [
        _make_column(name, [row.get(name) for row in rows], None if schema is None else schema.field(name).type)
        for name in names
    ]
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields) if schema is None else schema)


def _to_row(row: int, item: Any) -> Mapping[str, Any]:
    fields = read_fields(item)
    if fields is None:
        raise TypeError(
            f"row {row} of the part is {type(item).__name__}; an item must be a dict, whose fields are the columns"
        )
    return fields


def _refuse_other_names(rows: Sequence[Mapping[str, Any]], names: Sequence[Any]) -> None:
    name = next((name for name in names if not isinstance(name, str)), None)
    if name is not None or None in names:
        row = next(row for row, item in enumerate(rows) if name in item)
        raise TypeError(
            f"field {name!r} of row {row} of the part is {type(name).__name__}; column names must be strings"
        )


def _refuse_other_fields(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    known = set(names)
    for row, item in enumerate(rows):
        for name in item:
            if name not in known:
                closest = closest_match(str(name), list(names))
                hint = f"did you mean `{closest}`?" if closest else "add it to `schema`, or drop it before the sink"
                raise ValueError(f"field `{name}` of row {row} of the part is not in `schema`; {hint}")


def _make_column(name: str, values: list[Any], column_type: pa.DataType | None) -> pa.Array:
    import pyarrow as pa

    is_plain = _PLAIN_TYPES.issuperset(map(type, values))
    if not is_plain:
        values = [_to_arrow_value(name, row, value) for row, value in enumerate(values)]
    elif _NESTED_TYPES.intersection(map(type, values)):
        values = [
            _to_arrow_value(name, row, value) if type(value) in _NESTED_TYPES else value
            for row, value in enumerate(values)
        ]
    try:
        if not is_plain and any(isinstance(value, np.ndarray) and value.ndim for value in values):
            column = _make_list_column(values)
            return column if column_type is None or column.type.equals(column_type) else column.cast(column_type)
        return pa.array(values, type=column_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _explain_column_error(name, values, column_type, error) from error


def _to_arrow_value(name: str, row: int, value: Any) -> Any:
    """Return a tensor as an array, a 0-dimensional array as its number, and a masked one as None."""
    kind = type(value)
    if kind in _NESTED_TYPES:
        return _to_nested_value(name, row, value)
    try:
        value = read_tensor(value)
    except TypeError as error:  # for example bfloat16, which NumPy lacks
        raise TypeError(
            f"field `{name}`, row {row} of the part: a tensor of {value.dtype} does not fit a column; convert it "
            "before the sink"
        ) from error
    if not isinstance(value, np.ndarray) or value.ndim:
        return value
    if has_nulls(value):
        return None
    return value.item() if value.dtype.kind == "O" else value[()]


def _to_nested_value(name: str, row: int, value: Any) -> Any:
    """Return a list or dict with arrays that pyarrow accepts: in native byte order, and with None for masked values."""
    parts = value.values() if type(value) is dict else value
    if _PLAIN_LEAVES.issuperset(map(type, parts)):
        return value
    new_parts = [_to_arrow_part(name, row, part) for part in parts]
    return dict(zip(value, new_parts, strict=True)) if type(value) is dict else new_parts


def _to_arrow_part(name: str, row: int, part: Any) -> Any:
    part = _to_arrow_value(name, row, part)
    if not isinstance(part, np.ndarray) or (part.ndim == 1 and part.dtype.isnative and not has_nulls(part)):
        return part
    mask = np.ma.getmaskarray(part) if is_masked_array(part) else np.zeros(len(part), np.bool_)
    if part.ndim > 1:
        return [_to_arrow_part(name, row, entry) for entry in part]
    # NumPy's numbers determine the type of the column.
    return [None if is_null else entry for entry, is_null in zip(np.asarray(part), mask, strict=True)]


def _make_list_column(values: Sequence[Any]) -> pa.Array:
    """Return arrays as lists of their rows, nested for each further axis; None stays null.

    Raises ValueError if they have different numbers of axes.
    """
    import pyarrow as pa

    arrays = [value if value is None or is_masked_array(value) else np.asarray(value) for value in values]
    present = [array for array in arrays if array is not None]
    axes = present[0].ndim
    if any(array.ndim != axes for array in present):
        raise ValueError(f"arrays with {sorted({array.ndim for array in present})} axes")
    _refuse_other_kinds(present)
    flats = present if axes == 1 else [array.reshape(-1) for array in present]
    flat = np.concatenate([np.asarray(array) for array in flats])
    mask = np.concatenate([np.ma.getmaskarray(array) for array in flats]) if any(map(has_nulls, flats)) else None
    column = pa.array(flat.tolist() if flat.dtype.kind in "US" else flat, mask=mask)
    for axis in range(axes - 1, 0, -1):
        lengths = np.concatenate([np.full(int(np.prod(a.shape[:axis])), a.shape[axis]) for a in present])
        column = _make_lists(column, lengths, None)
    lengths = np.array([0 if array is None else array.shape[0] for array in arrays])
    is_null = np.array([array is None for array in arrays])
    return _make_lists(column, lengths, pa.array(is_null) if is_null.any() else None)


def _refuse_other_kinds(arrays: Sequence[np.ndarray]) -> None:
    """Raise ValueError if conversion to the common type would change a value: NumPy turns 1 into "1"."""
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) == 1:
        return
    common = np.result_type(*dtypes)
    for array in arrays:
        is_kind = array.dtype.kind == common.kind or (array.dtype.kind in "iu" and common.kind in "iuf")
        if not is_kind or (common.kind == "f" and array.dtype.kind in "iu" and not _survives(array, common)):
            raise ValueError(f"arrays of {' and '.join(sorted(map(str, dtypes)))}")


def _survives(array: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Whether all whole numbers stay the same as floats."""
    return all(int(value) == int(number) for value, number in zip(array.flat, array.astype(dtype).flat, strict=True))


def _make_lists(values: pa.Array, lengths: np.ndarray, mask: pa.Array | None) -> pa.Array:
    import pyarrow as pa

    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    list_type = pa.list_(pa.field("element", values.type))  # Parquet's own name of the field, so that types are equal
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=list_type, mask=mask)


def _explain_column_error(name: str, values: Sequence[Any], column_type: Any, error: Exception) -> Exception:
    """Return the error of a column, with the first row that does not fit the rows before it."""
    import pyarrow as pa

    row = next((i for i, value in enumerate(values) if not _fits(values[:i], value, column_type)), len(values) - 1)
    found = type(values[row]).__name__
    if isinstance(values[row], np.ndarray):
        found = f"an array of {values[row].dtype} with shape {values[row].shape}"
    reason = str(error).partition("\n")[0] if isinstance(error, pa.ArrowException | ValueError) else ""
    return TypeError(
        f"field `{name}`, row {row} of the part: {found} does not fit the column"
        f"{'' if column_type is None else f' of type {column_type}'}{reason and f' ({reason})'}; convert it before the "
        "sink"
    )


def _fits(before: Sequence[Any], value: Any, column_type: Any) -> bool:
    import pyarrow as pa

    first = next((other for other in before if other is not None), value)
    try:
        if isinstance(value, np.ndarray) or isinstance(first, np.ndarray):
            column = _make_list_column([first, value])
            _ = column if column_type is None else column.cast(column_type)
        else:
            pa.array([first, value], type=column_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def fit_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns and types of `schema`; missing columns become null.

    Raises ValueError, with the field and the row, if a type does not fit.
    """
    import pyarrow as pa

    for name in table.column_names:
        if name not in schema.names:
            row = next((i for i, value in enumerate(table[name]) if value.is_valid), 0)
            raise ValueError(
                f"field `{name}`, row {row} of the part: the first part has no such column, but "
                f"{', '.join(schema.names)}; name all columns in `schema`"
            )
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table[field.name]
        columns.append(column if column.type.equals(field.type) else _cast_column(field, column))
    return pa.Table.from_arrays(columns, schema=schema)


def _cast_column(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    if _is_compatible(column.type, field.type):
        try:
            return column.cast(field.type)
        except pa.ArrowException:
            pass  # a value that does not fit, such as 2**40 into int32
    row = next((i for i, value in enumerate(column) if value.is_valid and not _can_cast(value, field.type)), 0)
    raise ValueError(
        f"field `{field.name}`, row {row} of the part: {_shorten(column[row].as_py())} is {column.type}, but "
        f"the column of the first part is {field.type}; give the type in `schema`, or convert it before the sink"
    )


def _can_cast(value: pa.Scalar, to_type: pa.DataType) -> bool:
    import pyarrow as pa

    try:
        value.cast(to_type)
    except pa.ArrowException:
        return False
    return _is_compatible(value.type, to_type)


def _is_compatible(from_type: pa.DataType, to_type: pa.DataType) -> bool:
    """Whether a type converts without loss: null, whole numbers, whole numbers to floats, lists or structs of them."""
    import pyarrow as pa

    types = pa.types
    if types.is_null(from_type) or from_type.equals(to_type):
        return True
    if types.is_integer(from_type):
        return bool(types.is_integer(to_type) or types.is_floating(to_type))
    if types.is_floating(from_type):
        return bool(types.is_floating(to_type) and from_type.bit_width <= to_type.bit_width)
    if types.is_list(from_type) and types.is_list(to_type):
        return _is_compatible(from_type.value_type, to_type.value_type)
    if types.is_struct(from_type) and types.is_struct(to_type):
        names = [field.name for field in from_type]
        return names == [field.name for field in to_type] and all(
            _is_compatible(inner.type, to_type.field(index).type) for index, inner in enumerate(from_type)
        )
    return False


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."  # noqa: PLR2004 - a value in a message


_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_INFO_NAME: Final = "dataset_info.json"
_STATE_NAME: Final = "state.json"
_FINAL_NAME_PATTERN: Final = re.compile(r"data-\d{5,}-of-\d{5,}\.arrow")
_DEFAULT_SHARD_BYTES: Final = "500MB"  # the default of `save_to_disk`


class HuggingFaceSink(PartSink):
    """Write each item, a dict, as a row of a Hugging Face dataset. In YAML it is `uses: stagepipe.sinks.huggingface`.

    `datasets.load_from_disk(path)` reads it. The shards are called `000000.arrow` ... At the end of the job, they are
    renamed to `data-00000-of-00003.arrow` ..., as by `Dataset.save_to_disk`.

    Args:
        path: the folder, such as `out`, relative to the current directory; it is created if it is missing.
        schema: the type of each column, such as `{x: list<float32>, label: int64, name: string}`, or a
            `pyarrow.Schema`, such as `Features(...).arrow_schema`. Without it, the first part decides: later parts need
            the same columns with compatible types.
        shard_items, shard_bytes, overwrite, part_items, part_bytes: see `PartSink`. `shard_bytes` is 500 MB.

    Arrays, tensors, dicts and dataclasses are written as by `stagepipe.sinks.parquet`.

    Requires pyarrow: `pip install 'pyarrow>=15'`. Raises TypeError and ValueError, with the field and the row.
    """

    appends: ClassVar[bool] = True
    extension: ClassVar[str] = ".arrow"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        schema: Mapping[str, Any] | pa.Schema | None = None,
        shard_items: int | None = None,
        shard_bytes: int | str = _DEFAULT_SHARD_BYTES,
        overwrite: bool = False,
        part_items: int | None = None,
        part_bytes: int | str | None = None,
    ) -> None:
        super().__init__(
            path,
            shard_items=shard_items,
            shard_bytes=shard_bytes,
            overwrite=overwrite,
            part_items=part_items,
            part_bytes=part_bytes,
        )
        import_extra("pyarrow", "parquet", "the sink `huggingface`")
        with errors_of("huggingface"):
            self._schema = None if schema is None else make_schema(schema)

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write the items as a stream of one record batch."""
        with errors_of("huggingface"):
            table = make_table(items, self._schema)
        _write_stream(table, path)

    def prepare_part(self, path: Path, kept: dict[str, Any]) -> None:
        """Convert a part to the columns of the first part, or raise, and keep only the record batch in the file."""
        import pyarrow as pa

        with path.open("rb") as file, pa.ipc.open_stream(file) as reader:
            schema = reader.schema
        expected = keep_schema(schema, kept)
        if not schema.equals(expected):
            with path.open("rb") as file, pa.ipc.open_stream(file) as reader, errors_of("huggingface"):
                table = fit_table(reader.read_all(), expected)
            _write_stream(table, path)
        with pa.OSFile(str(path)) as file:
            pa.ipc.read_message(file)  # the schema
            data = file.read()
        path.write_bytes(data[: -len(_END_OF_STREAM)])

    def begin_shard(self, file: BinaryIO, kept: Mapping[str, Any]) -> None:
        """Write the schema."""
        file.write(_load_schema(kept).serialize())

    def finish_shard(self, file: BinaryIO, parts: Sequence[PartPlace], kept: Mapping[str, Any]) -> None:
        """End the stream."""
        del parts, kept
        file.write(_END_OF_STREAM)

    def name_shard(self, number: int, count: int | None = None) -> str:
        """Return the name that `save_to_disk` would use, once the number of shards is known."""
        return super().name_shard(number) if count is None else f"data-{number:05d}-of-{count:05d}{self.extension}"

    def owns(self, path: Path) -> bool:
        """Whether the file is a shard with its final name or describes the shards."""
        return path.name in {_INFO_NAME, _STATE_NAME} or _FINAL_NAME_PATTERN.fullmatch(path.name) is not None

    def describe(self, shard_count: int, rows: int, kept: Mapping[str, Any]) -> Mapping[str, bytes]:
        """Return the files that `load_from_disk` reads first; it replaces null features and fingerprints itself."""
        del rows, kept
        if not shard_count:
            return {}  # `datasets` cannot read a dataset without a schema
        info = {"citation": "", "description": "", "features": None, "homepage": "", "license": ""}
        state: dict[str, Any] = {
            "_data_files": [{"filename": self.name_shard(number, shard_count)} for number in range(shard_count)],
            "_fingerprint": None,
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": None,
        }
        return {
            name: json.dumps(value, indent=2).encode() for name, value in ((_INFO_NAME, info), (_STATE_NAME, state))
        }


def _write_stream(table: pa.Table, path: Path) -> None:
    import pyarrow as pa

    with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def keep_schema(schema: pa.Schema, kept: dict[str, Any]) -> pa.Schema:
    """Store the schema of the first part; return the stored schema."""
    kept.setdefault("schema", base64.b64encode(schema.serialize()).decode())
    return _load_schema(kept)


def _load_schema(kept: Mapping[str, Any]) -> pa.Schema:
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(kept["schema"])))
