"""Which columns of a Parquet file get a dictionary of their values. Pure, and by the values alone.

A dictionary makes columns small whose values repeat. Where they do not, the writer gives it up, but only after the part
is nearly written: for vectors of floats that takes four fifths of the time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

_SAMPLED_VALUES: Final = 1024
_MIN_SAMPLED_VALUES: Final = 256
"""A column with fewer values costs little either way."""
_MAX_DISTINCT_RATIO: Final = 0.5
"""If more of the sampled values are distinct, the column gets no dictionary."""


def choose_dictionary_columns(table: pa.Table) -> bool | list[str]:
    """Return the `use_dictionary` with which to write a table: all columns but those of distinct floats.

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
    """Return the Parquet path of a column of floats, or of lists of them at any depth; None for another column."""
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
    """Return the Parquet paths of all columns of a schema, those inside lists and structs too."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    leaves = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return tuple(leaves.column(index).path for index in range(len(leaves)))
