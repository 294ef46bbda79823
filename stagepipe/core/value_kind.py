"""The kind of a value, for stages that look inside items. Recognizes torch and PIL without importing them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from stagepipe.core.imported_torch import get_used_torch

NUMBER_TYPES = (bool, int, float)
"""Python numbers that a batch turns into an array. Not their subclasses: an enum means more than its number."""


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor, or of a subclass such as `tv_tensors`. False if torch is not imported.

    >>> is_tensor(3)
    False
    """
    torch = get_used_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def is_masked_array(value: Any) -> bool:
    """Whether `value` is an array of `numpy.ma`, which is imported only where there is one."""
    return type(value) is not np.ndarray and "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray)


def is_pil_image(value: Any) -> bool:
    """Whether `value` is a PIL image. False if PIL is not imported."""
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


def is_dataclass_instance(value: Any) -> bool:
    """Whether `value` is an instance of a dataclass, not the class itself."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def get_field_names(record: Any) -> list[str]:
    """The names of a dataclass instance's fields.

    >>> from stagepipe.core.errors import Problem
    >>> get_field_names(Problem(message="unknown key"))[:2]
    ['message', 'hint']
    """
    return [field.name for field in dataclasses.fields(record)]


def rebuild_dataclass(cls: type, names: list[str], values: list[Any]) -> Any:
    """An instance of a dataclass with these field values, created as pickle does it: without `__init__`.

    The checks in a `__post_init__` are written for one sample; they need not hold for a batch, or for a row of one.
    """
    instance: Any = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(instance, name, value)  # works for frozen classes and with slots
    return instance


def classify_value(value: Any) -> str:
    """The kind of `value` for batching: items of different kinds cannot form a batch.

    >>> classify_value(np.float32(1)), classify_value(1.0), classify_value({}), classify_value("a")
    ('array', 'float', 'mapping', 'object')
    """
    if isinstance(value, Mapping):
        return "mapping"
    if is_dataclass_instance(value) or isinstance(value, list | tuple):
        return type(value).__name__
    if type(value) in NUMBER_TYPES:
        return type(value).__name__
    if is_tensor(value):
        return "tensor"
    return _classify_array(value) if isinstance(value, np.ndarray | np.generic) else "object"


def _classify_array(value: np.ndarray | np.generic) -> str:
    if value.dtype.kind not in "OUST":  # object, str, bytes, StringDType
        return "array"
    return "text array" if isinstance(value, np.ndarray) and value.dtype.kind != "O" else "object"
