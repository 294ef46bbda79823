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

    A list of numbers without nulls, and a tensor of fixed shape, is a NumPy array on the table's memory, read-only. A
    tensor has its logical shape: its permutation is applied. One of truth values is a copy, because Arrow packs them in
    bits; one with nulls, or of other values such as dates, is nested lists. All other values are what pyarrow's `as_py`
    returns.
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
    """Whether a nested type has a tensor inside."""
    import pyarrow as pa

    if isinstance(type_, pa.FixedShapeTensorType):
        return True
    return any(_has_tensor(type_.field(number).type) for number in range(type_.num_fields))


def _convert_nested(scalar: Any, *, arrays_of_lists: bool) -> Any:
    """Return a struct, a list or a map of which a part is a tensor."""
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
    """Return NumPy's type of numbers; None for other types."""
    import pyarrow as pa

    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    return np.dtype(_DTYPES.get(str(type_), str(type_))) if is_number else None


def _as_py(scalar: Any) -> Any:
    return scalar.as_py()


def _list_to_array(scalar: Any, dtype: np.dtype[Any]) -> Any:
    values = scalar.values
    return scalar.as_py() if values is None or values.null_count else _to_array(values, dtype)


def _convert_tensor(scalar: Any, *, type_: Any, dtype: np.dtype[Any] | None) -> Any:
    """Return a tensor as an array, or as nested lists if NumPy lacks its type or it has nulls; a null as None."""
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
    """Return the numbers of a `pyarrow.Array` without nulls, on its memory."""
    if not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(values.buffers()[1], dtype, len(values), values.offset * dtype.itemsize)
