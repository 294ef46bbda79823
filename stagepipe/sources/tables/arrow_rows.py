"""`ArrowRows`: the rows of a table of pyarrow, each as a dict. Runs in the workers of the source.

pyarrow's own `to_numpy` imports pandas where it is installed, which takes a second and 60 MB in each worker.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

_DTYPES: Final = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""NumPy's names of the types for which pyarrow has another one."""


class ArrowRows:
    """The rows of a table, each made when it is read.

    A list of numbers without nulls, and a tensor of fixed shape, is a NumPy array on the table's memory, read-only. All
    other values are what pyarrow's `as_py` returns.
    """

    def __init__(self, table: Any) -> None:
        """`table` is a `pyarrow.Table`."""
        self.size_bytes = table.nbytes
        self._columns = [
            (name, column.chunk(0) if column.num_chunks == 1 else column, _choose_converter(column.type))
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: convert(column[row]) for name, column, convert in self._columns}


def _choose_converter(type_: Any) -> Callable[[Any], Any]:
    import pyarrow as pa

    if isinstance(type_, pa.FixedShapeTensorType):
        dtype = _get_dtype(type_.value_type)
        if dtype is None or type_.permutation is not None:
            return _as_py
        return partial(_tensor_to_array, dtype=dtype, shape=type_.shape)
    is_list = pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_)
    dtype = _get_dtype(type_.value_type) if is_list else None
    return _as_py if dtype is None else partial(_list_to_array, dtype=dtype)


def _get_dtype(type_: Any) -> np.dtype[Any] | None:
    """Return NumPy's type of numbers; None for other types."""
    import pyarrow as pa

    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    return np.dtype(_DTYPES.get(str(type_), str(type_))) if is_number else None


def _as_py(scalar: Any) -> Any:
    return scalar.as_py()


def _list_to_array(scalar: Any, dtype: np.dtype[Any]) -> Any:
    values = scalar.values
    return scalar.as_py() if values is None or values.null_count else _to_array(values, dtype)


def _tensor_to_array(scalar: Any, dtype: np.dtype[Any], shape: list[int]) -> Any:
    return _to_array(scalar.value.values, dtype).reshape(shape) if scalar.is_valid else None


def _to_array(values: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the numbers of a `pyarrow.Array` without nulls, on its memory."""
    if not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)
