"""Turns an item into the flat mapping of names to arrays that an npz file holds. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

_HINT = "drop the field, or convert it to an array, before the sink"


def flatten_to_arrays(item: Any, *, sink: str = "npz") -> dict[str, np.ndarray]:
    """Return the arrays of an item. Nested names are joined by `/`; an item that is one array is called `data`.

    Arrays, numbers and strings keep their dtype and shape. torch tensors and PIL images become arrays, `bytes` become
    uint8 arrays, a list of strings or of numbers becomes one array; any other list becomes one array per entry. `sink`
    is the name of the sink, for messages.

    >>> flatten_to_arrays({"x": 1.5, "meta": {"name": "a"}})
    {'x': array(1.5), 'meta/name': array('a', dtype='<U1')}

    Raises TypeError, with the field, for a value that such a file cannot hold. Raises ValueError for two fields of one
    name.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, array in _iter_leaves(item, "", sink):
        if name in arrays:
            raise ValueError(f"{sink}: two fields are called `{name}` once nested names are joined by `/`; rename one")
        arrays[name] = array
    return arrays


def flatten_rows(items: Sequence[Any], *, sink: str) -> list[dict[str, np.ndarray]]:
    """Return the arrays of each item of a part, whose fields will be stacked.

    >>> flatten_rows([{"x": 1}, {"x": 2}], sink="zarr")
    [{'x': array(1)}, {'x': array(2)}]

    Raises ValueError for an item without fields, and for one with other fields than the first; also what
    `flatten_to_arrays` raises.
    """
    rows = [flatten_to_arrays(item, sink=sink) for item in items]
    for row, arrays in enumerate(rows):
        if not arrays:
            raise ValueError(f"{sink}: row {row} of the part has no fields to write; drop it before the sink")
        if arrays.keys() != rows[0].keys():
            raise ValueError(
                f"{sink}: row {row} of the part has the fields {', '.join(arrays)}, the first has "
                f"{', '.join(rows[0])}; give all items the same fields"
            )
    return rows


def _iter_leaves(value: Any, path: str, sink: str) -> Iterator[tuple[str, np.ndarray]]:
    children = _get_children(value)
    if children is None:
        yield path or "data", _to_array(value, path, sink)
        return
    for key, child in children:
        yield from _iter_leaves(child, f"{path}/{key}" if path else str(key), sink)


def _get_children(value: Any) -> list[tuple[Any, Any]] | None:
    """Return the named children of a structure; None for a leaf."""
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple) and not _is_uniform(value):
        return list(enumerate(value))
    return None


def _is_uniform(entries: list[Any] | tuple[Any, ...]) -> bool:
    return all(isinstance(entry, str) for entry in entries) or all(isinstance(entry, Number) for entry in entries)


def _to_array(value: Any, path: str, sink: str) -> np.ndarray:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if hasattr(value, "detach"):  # a tensor, possibly with autograd history or on a GPU
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except TypeError as error:  # for example bfloat16, which NumPy lacks
        raise _make_unsupported_error(value, path, sink) from error
    if array.dtype.kind == "O":
        raise _make_unsupported_error(value, path, sink)
    return array


def _make_unsupported_error(value: Any, path: str, sink: str) -> TypeError:
    type_name = f"{type(value).__name__} of {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
    return TypeError(f"{sink}: `{path or 'item'}` is of type {type_name}, which {sink} cannot hold; {_HINT}")
