"""An item as the flat mapping of names to arrays that an npz file holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any

import numpy as np

_MEND = "drop the field, or make it an array, before the sink"


def arrays_of(item: Any) -> dict[str, np.ndarray]:
    """The arrays of an item, nested names joined by `/`; an item that is one array is called `data`.

    Arrays, numbers and strings are kept; torch tensors and PIL images become arrays, `bytes` uint8 arrays, a list of
    strings one array of text, a list of numbers one array; other lists give an array an entry.

    >>> arrays_of({"x": 1.5, "meta": {"name": "a"}})
    {'x': array(1.5), 'meta/name': array('a', dtype='<U1')}

    Raises TypeError, with the field, for what an npz file cannot hold; ValueError for two fields of one name.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, array in _leaves(item, ""):
        if name in arrays:
            raise ValueError(f"npz: two fields are called `{name}` once nested names are joined by `/`; rename one")
        arrays[name] = array
    return arrays


def _leaves(value: Any, path: str) -> Iterator[tuple[str, np.ndarray]]:
    parts = _parts(value)
    if parts is None:
        yield path or "data", _array(value, path)
        return
    for key, part in parts:
        yield from _leaves(part, f"{path}/{key}" if path else str(key))


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """The named parts of a structure, None for a leaf."""
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, list | tuple) and not _is_uniform(value):
        return list(enumerate(value))
    return None


def _is_uniform(entries: list[Any] | tuple[Any, ...]) -> bool:
    return all(isinstance(e, str) for e in entries) or all(isinstance(e, Number) for e in entries)


def _array(value: Any, path: str) -> np.ndarray:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if hasattr(value, "detach"):  # a tensor, perhaps with history, perhaps on a GPU
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except TypeError as error:  # bfloat16, which NumPy has not
        raise _refused(value, path) from error
    if array.dtype.kind == "O":
        raise _refused(value, path)
    return array


def _refused(value: Any, path: str) -> TypeError:
    kind = f"{type(value).__name__} of {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
    return TypeError(f"npz: `{path or 'item'}` is a {kind}, which an npz file cannot hold; {_MEND}")
