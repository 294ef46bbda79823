"""NumPy arrays in an item become torch tensors over the same memory. In the training process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

_KINDS = frozenset("biufc")
"""Kinds of dtypes (`numpy.dtype.kind`) that tensors have: bool, int, uint, float, complex."""


def to_tensors(item: Any) -> Any:
    """The item with a tensor in the place of every NumPy array and NumPy number, to any depth; all else is as it was.

    A tensor lies over the array's own memory (same shape, same dtype, writable) and keeps it alive. Arrays without a
    tensor's dtype (texts, objects, dates, structured, long double) stay arrays, and so do subclasses of ndarray.
    Python's numbers stay numbers. dicts, lists and dataclasses that can be written to are changed in place: the item
    is its receiver's own.

    >>> to_tensors({"x": np.zeros(2, np.float32), "name": "a"})
    {'x': tensor([0., 0.]), 'name': 'a'}
    """
    return replaced(item, _tensor)


def replaced(item: Any, leaf: Callable[[Any], Any]) -> Any:
    """The item with `leaf(value)` in the place of every value that is no dict, list, tuple or dataclass."""
    kind = type(item)
    if kind is dict or kind is list:
        for key, value in item.items() if kind is dict else enumerate(item):
            item[key] = replaced(value, leaf)
        return item
    if isinstance(item, tuple):
        values = [replaced(value, leaf) for value in item]
        return item._make(values) if hasattr(item, "_make") else kind(values)
    if isinstance(item, Mapping):
        return _mapping(item, leaf)
    if isinstance(item, list):
        return kind(replaced(value, leaf) for value in item)
    if is_dataclass(item) and not isinstance(item, type) and not isinstance(item, torch.Tensor):
        for field in fields(item):
            value = getattr(item, field.name)
            new = replaced(value, leaf)
            if new is not value:
                object.__setattr__(item, field.name, new)  # frozen ones too: nobody else has this instance
        return item
    return leaf(item)


def _mapping(item: Mapping[Any, Any], leaf: Callable[[Any], Any]) -> Any:
    """A mapping of another type (an OrderedDict, a BatchEncoding) stays of its type where it can be written to."""
    new = {key: replaced(value, leaf) for key, value in item.items()}
    if not hasattr(item, "__setitem__"):
        return new
    for key, value in new.items():
        item[key] = value
    return item


def _tensor(value: Any) -> Any:
    if type(value) is np.ndarray:
        if value.dtype.kind not in _KINDS or (value.dtype.itemsize > _LARGEST.get(value.dtype.kind, 8)):
            return value
        return torch.from_numpy(_suited(value))
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return torch.as_tensor(value)
    return value


_LARGEST = {"c": 16}
"""Bytes of the largest item of a kind that a tensor has, where that is not 8."""


def _suited(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, or a copy of one that torch does not take as it lies.

    Of the other byte order, read-only (a stage in this process may still hold it), or with strides below zero.
    """
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        return array.copy()
    return array
