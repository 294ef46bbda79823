"""Small NumPy arrays in plain items: copied when held, stacked by name, dtype and shape, and handed out as rows.

An array's bytes cost a tenth of what its pickle costs, and a row of a stack a quarter of an array of its own. Only
arrays whose dtype one character defines take part: copying and rebuilding them runs no code but NumPy's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

AnyArray = np.ndarray[Any, Any]

_DTYPES = frozenset(map(np.dtype, "?bBhHiIlLqQefdgFDG"))
"""The numbers in native byte order. Equal dtypes may differ in their metadata, which must not be lost."""
_MAX_DIMENSIONS = 4
_ARRAY_BYTES = 52
"""What an array takes beside its bytes, at most: its layout, its item's index, and the dict entry for both."""

ArrayLayout = tuple[Any, str, tuple[int, ...]]
"""Key (str) or position (int) in the item (None: the item is the array), dtype character, shape."""
ArrayColumns = dict[ArrayLayout, tuple[list[int], bytes]]
"""By layout: the positions of the items in the run, and the bytes of their arrays, one after the other."""


class ArrayItem(NamedTuple):
    """A held item: `value` has None in place of each array, `arrays` has their layouts and bytes."""

    value: Any
    arrays: list[tuple[ArrayLayout, bytes]]


def measure_arrays(arrays: Sequence[AnyArray]) -> int:
    """The most bytes that the arrays of an item take in a run; 0 if they cannot share it.

    Each must be contiguous in C order. An array that the item holds twice must arrive as one.
    """
    total = 0
    for array in arrays:
        nbytes = array.nbytes
        dtype = array.dtype
        if (
            not nbytes
            or not 0 < array.ndim <= _MAX_DIMENSIONS
            or dtype not in _DTYPES
            or dtype.metadata is not None
            or not array.flags.c_contiguous
        ):
            return 0
        total += _ARRAY_BYTES + nbytes
    return total if len(arrays) == 1 or len(set(map(id, arrays))) == len(arrays) else 0


def hold_arrays(item: Any) -> ArrayItem:
    """A copy of an item with measured arrays, which its owner may change from now on."""
    kind = type(item)
    if kind is np.ndarray:
        return ArrayItem(None, [((None, item.dtype.char, item.shape), item.tobytes())])
    value: Any = item.copy() if kind is dict else list(item)
    arrays: list[tuple[ArrayLayout, bytes]] = []
    pairs: Iterable[tuple[Any, Any]] = item.items() if kind is dict else enumerate(item)
    for name, part in pairs:
        if type(part) is np.ndarray:
            arrays.append(((name, part.dtype.char, part.shape), part.tobytes()))
            value[name] = None
    return ArrayItem(tuple(value) if kind is tuple else value, arrays)


def take_arrays(held: Sequence[Any]) -> tuple[Sequence[Any], ArrayColumns]:
    """The values of held items, with None in place of each array, and the arrays."""
    values = list(held)
    parts: dict[ArrayLayout, tuple[list[int], list[bytes]]] = {}
    for index, item in enumerate(held):
        if type(item) is ArrayItem:
            values[index] = item.value
            for layout, data in item.arrays:
                column = parts.get(layout)
                if column is None:
                    parts[layout] = ([index], [data])
                else:
                    column[0].append(index)
                    column[1].append(data)
    return values, {layout: (indexes, b"".join(data)) for layout, (indexes, data) in parts.items()}


def put_arrays(values: list[Any], columns: ArrayColumns, *, readonly: bool) -> None:
    """Put the arrays of a run into its values, read-only or writable. The inverse of `take_arrays`."""
    for (name, code, shape), (indexes, data) in columns.items():
        rows = np.ndarray((len(indexes), *shape), code, data if readonly else bytearray(data))
        for index, row in zip(indexes, rows, strict=True):
            value = values[index]
            if name is None:
                values[index] = row
            elif type(value) is tuple:
                values[index] = (*value[:name], row, *value[name + 1 :])
            else:
                value[name] = row
