"""What a value is, for the stages that look inside items; torch and PIL are recognised without importing them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

NUMBERS = (bool, int, float)
"""Python numbers that a batch makes an array of: these very types, as an enum, say, means more than its number."""


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor (tv_tensors too). Where torch is not loaded, nothing is.

    >>> is_tensor(3)
    False
    """
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_pil(value: Any) -> bool:
    """Whether `value` is a PIL image. Where PIL is not loaded, nothing is."""
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


def is_record(value: Any) -> bool:
    """Whether `value` is an instance of a dataclass (a class itself is none)."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def names_of(record: Any) -> list[str]:
    """The names of a dataclass instance's fields.

    >>> from stagepipe.core.errors import Problem
    >>> names_of(Problem("no"))[:2]
    ['message', 'mend']
    """
    return [f.name for f in dataclasses.fields(record)]


def rebuilt(cls: type, names: list[str], values: list[Any]) -> Any:
    """An instance of a dataclass with these field values, made as pickle makes it: without `__init__`.

    What a class checks or derives for one sample in `__post_init__` need not hold for a batch or for a row of it.
    """
    new: Any = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(new, name, value)  # also where the class is frozen or has slots
    return new


def kind_of(value: Any) -> str:
    """One word for what a batch makes of `value`; items whose kinds differ do not go into one batch.

    >>> kind_of(np.float32(1)), kind_of(1.0), kind_of({}), kind_of("a")
    ('array', 'float', 'mapping', 'object')
    """
    if isinstance(value, Mapping):
        return "mapping"
    if is_record(value) or isinstance(value, list | tuple):
        return type(value).__name__
    if type(value) in NUMBERS:
        return type(value).__name__
    if is_tensor(value):
        return "tensor"
    return _kind_of_array(value) if isinstance(value, np.ndarray | np.generic) else "object"


def _kind_of_array(value: np.ndarray | np.generic) -> str:
    if value.dtype.kind not in "OUST":  # objects, text, bytes, text of variable width
        return "array"
    return "text array" if isinstance(value, np.ndarray) and value.dtype.kind != "O" else "object"
