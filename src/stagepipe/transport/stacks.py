"""Many small arrays of one kind in one container travel as one: forty of 1 KB cost twice one of 40 KB, not five times.

Each array that is pickled costs 1.5 us on both sides together, whatever its size. So a plain dict, list or tuple of
small arrays that all have the same shape and dtype is sent as the array that they are when stacked, and its reader gets
the rows of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import EllipsisType
from typing import Any

import numpy as np

_LEAST = 8
"""From so many arrays on it is worth looking whether they are alike."""
_LONG = 256
"""A longer container is looked through only if it begins with an array: a million numbers would take 45 ms."""
_MOST_BYTES = 4096
"""Of one of them. The copy that stacking makes costs less than a descriptor up to about 16 KB; beyond a page an array
is worth being passed on by itself."""
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
"""What may stand beside the arrays: nothing that could hold one of them a second time."""

_DTYPE, _SHAPE, _STRIDES = attrgetter("dtype"), attrgetter("shape"), attrgetter("strides")
"""Mapped over the arrays and counted, all in C: half the time of a loop."""


@dataclass(slots=True)
class Stack:
    """A container on its way: `keys` of a dict, its values with `...` for each array (None: all are), and the rows."""

    keys: tuple[Any, ...] | type
    values: list[Any] | None
    rows: np.ndarray[Any, Any]


def stacked(item: Any) -> Any:
    """`item`, or what travels in its place."""
    cls = type(item)
    if cls is dict:
        values: Sequence[Any] = list(item.values())
    elif cls is list or cls is tuple:
        values = item
    else:
        return item
    if len(values) < _LEAST or (len(values) > _LONG and type(values[0]) is not np.ndarray):
        return item
    arrays = [value for value in values if type(value) is np.ndarray]
    if len(arrays) < _LEAST or not _alike(arrays):
        return item
    others = None
    if len(arrays) < len(values):
        if any(type(value) not in _ATOMS for value in values if type(value) is not np.ndarray):
            return item
        others = [... if type(value) is np.ndarray else value for value in values]
    rows = np.concatenate(arrays).reshape(len(arrays), *arrays[0].shape)
    return Stack(tuple(item) if cls is dict else cls, others, rows)


def _alike(arrays: list[np.ndarray[Any, Any]]) -> bool:
    """Whether they are different arrays of one dtype, shape and order."""
    first, count = arrays[0], len(arrays)
    dtype = first.dtype
    if not first.shape or not 0 < first.nbytes <= _MOST_BYTES or dtype.kind not in "biufc" or dtype.metadata:
        return False
    dtypes, shapes = list(map(_DTYPE, arrays)), list(map(_SHAPE, arrays))
    if dtypes.count(dtype) < count or shapes.count(first.shape) < count or len(set(map(id, arrays))) < count:
        return False
    if first.ndim == 1:
        return True
    strides = list(map(_STRIDES, arrays))
    return bool(first.flags.c_contiguous) and strides.count(first.strides) == count


def reduce_stack(stack: Stack) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The reducer of `Stack`."""
    return rebuild_stack, (stack.keys, stack.values, stack.rows)


def rebuild_stack(
    keys: tuple[Any, ...] | type, values: list[Any | EllipsisType] | None, rows: np.ndarray[Any, Any]
) -> Any:
    """The container that was stacked."""
    arrays = list(rows)
    if values is not None:
        left = iter(arrays)
        arrays = [next(left) if value is ... else value for value in values]
    if isinstance(keys, tuple):
        return dict(zip(keys, arrays, strict=True))
    return keys(arrays) if keys is tuple else arrays
