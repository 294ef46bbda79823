"""Turns the NumPy arrays of an item into torch tensors over the same memory. Runs in the training process."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from stagepipe.core import read_fields

_TENSOR_DTYPE_KINDS = frozenset("biufc")
"""Dtype kinds (`numpy.dtype.kind`) that tensors support: bool, int, uint, float, complex."""


def to_tensors(item: Any) -> Any:
    """Replace every NumPy array and NumPy number of an item by a tensor, at any depth; leave all else as it is.

    A tensor shares the array's memory (same shape, same dtype, writable) and keeps it alive. Arrays and numbers whose
    dtype torch does not have (strings, objects, dates, structured, long double) stay what they are, and so do
    subclasses of ndarray and Python's numbers. Mutable dicts, lists and dataclasses are changed in place: the receiver
    owns the item.

    >>> to_tensors({"x": np.zeros(2, np.float32), "name": "a"})
    {'x': tensor([0., 0.]), 'name': 'a'}

    Raises TypeError, with the field, for a value that cannot be converted, such as a tuple of a class whose
    constructor takes other arguments.
    """
    try:
        return map_leaves(item, _to_tensor)
    except (TypeError, ValueError, RuntimeError) as error:
        path = _find_path(item)
        place = f"the field `{path}`" if path else "the item"
        raise TypeError(
            f"Loader: {place} cannot be converted to tensors: {error}; convert it in a stage before"
        ) from error


def _find_path(item: Any) -> str:
    """Return the path of the value in `item` that cannot be converted, such as `views.left`; "" if it is the item."""
    named = read_fields(item)
    if named is None:
        named = dict(enumerate(item)) if isinstance(item, list | tuple) else {}
    for name, child in named.items():
        try:
            map_leaves(child, _to_tensor)
        except (TypeError, ValueError, RuntimeError):
            inner = _find_path(child)
            return f"{name}.{inner}" if inner else str(name)
    return ""


def map_leaves(item: Any, convert: Callable[[Any], Any]) -> Any:
    """Replace every value that is not a dict, list, tuple or dataclass by `convert(value)`."""
    kind = type(item)
    if kind is dict or isinstance(item, list):
        for key, value in item.items() if kind is dict else enumerate(item):
            item[key] = map_leaves(value, convert)
        return item
    if isinstance(item, tuple):
        values = [map_leaves(value, convert) for value in item]
        if all(map(operator.is_, values, item)):  # a class of tuples may have another constructor
            return item
        return item._make(values) if hasattr(item, "_make") else kind(values)
    if isinstance(item, Mapping):
        return _map_mapping_leaves(item, convert)
    if is_dataclass(item) and not isinstance(item, type) and not isinstance(item, torch.Tensor):
        for field in fields(item):
            value = getattr(item, field.name)
            converted = map_leaves(value, convert)
            if converted is not value:
                object.__setattr__(item, field.name, converted)  # also if frozen: nobody else has this instance
        return item
    return convert(item)


def _map_mapping_leaves(item: Mapping[Any, Any], convert: Callable[[Any], Any]) -> Any:
    """Keep the type of another mapping (an OrderedDict, a BatchEncoding) if it is mutable; otherwise return a dict."""
    converted = {key: map_leaves(value, convert) for key, value in item.items()}
    if not hasattr(item, "__setitem__"):
        return converted
    for key, value in converted.items():
        item[key] = value
    return item


def _to_tensor(value: Any) -> Any:
    if type(value) is np.ndarray or isinstance(value, np.generic):
        if value.dtype.kind not in _TENSOR_DTYPE_KINDS or (
            value.dtype.itemsize > _MAX_ITEMSIZE_BYTES.get(value.dtype.kind, 8)
        ):
            return value
        return torch.from_numpy(_to_torch_compatible(np.asarray(value)))
    return value


_MAX_ITEMSIZE_BYTES = {"c": 16}
"""The largest item size that tensors support, for dtype kinds where it is not 8 bytes."""


def _to_torch_compatible(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array, or a copy if torch cannot wrap it.

    torch cannot wrap an array of foreign byte order, with strides that are negative or no multiple of an element, such
    as a field of a structured array, or read-only. A read-only array is copied
    because a stage in this process may still hold it.
    """
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        return array.copy()
    return array
