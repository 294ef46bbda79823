"""Reads the fields of an item, by name or by a path such as `meta.width`, and classifies values.

torch and PIL are recognized without importing them.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Mapping, ValuesView
from typing import Any, Final

import numpy as np

from stagepipe.core.process import get_used_torch

_MAX_LISTED_FIELDS: Final = 20

MISSING: Final = object()
"""The result of `find_field` for a missing field."""


class MissingFieldError(KeyError):
    """A value lacks a field. `str` returns the plain message, where a KeyError would put it in quotes.

    >>> print(MissingFieldError("the item has no field `z`"))
    the item has no field `z`
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def read_fields(item: Any) -> Mapping[Any, Any] | None:
    """Return the fields of an item; None if it is not a dict, a dataclass or a named tuple.

    >>> read_fields({"x": 1}), read_fields([1])
    ({'x': 1}, None)
    """
    if isinstance(item, Mapping):
        return item
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    names = getattr(type(item), "_fields", None) if isinstance(item, tuple) else None
    return None if names is None else dict(zip(names, item, strict=True))


def find_field(item: Any, path: str) -> Any:
    """Return the value of a field, or MISSING.

    >>> find_field({"meta": {"width": 3}}, "meta.width")
    3
    >>> find_field({"meta": {"width": 3}}, "meta.height") is MISSING
    True
    """
    fields = item if isinstance(item, dict) else read_fields(item)
    if fields is None:
        return MISSING
    if path in fields:
        return fields[path]
    head, dot, rest = path.partition(".")
    return find_field(fields[head], rest) if dot and head in fields else MISSING


def get_field(item: Any, path: str, setting: str = "field") -> Any:
    """Return the value of a field. The error names `setting`, the key of the config that asks for it.

    Raises TypeError if the item has no fields. Raises KeyError, which lists the existing names, if this field is
    missing.
    """
    value = find_field(item, path)
    if value is MISSING:
        raise make_missing_error(item, path, setting)
    return value


def make_missing_error(item: Any, path: str, setting: str) -> TypeError | KeyError:
    """Return the error for an item that lacks a field.

    >>> print(make_missing_error({"x": 1, "y": 2}, "z", "field").args[0])
    the item has no field `z`; it has `x`, `y`
    """
    fields = read_fields(item)
    if fields is None:
        return TypeError(
            f"the field `{path}` needs a dict item, but this one is of type {type(item).__name__}; remove `{setting}`"
        )
    owner, name = "the item", path
    while name.partition(".")[1] and (inner := read_fields(fields.get(name.partition(".")[0]))) is not None:
        head, _, name = name.partition(".")
        owner, fields = (f"the field `{head}`" if owner == "the item" else f"{owner[:-1]}.{head}`"), inner
    return MissingFieldError(f"{owner} has no field `{name}`; it has {list_fields(fields)}")


def list_fields(fields: Mapping[Any, Any]) -> str:
    """Format the names of fields for an error.

    >>> list_fields({"x": 1, "y": 2}), list_fields({})
    ('`x`, `y`', 'none')
    """
    names = [f"`{name}`" for name in fields]
    more = f" and {len(names) - _MAX_LISTED_FIELDS} more" if len(names) > _MAX_LISTED_FIELDS else ""
    return ", ".join(names[:_MAX_LISTED_FIELDS]) + more or "none"


def with_field(item: Any, path: str, value: Any) -> Any:
    """Return a copy of the item with this value in a field, which may be new in a dict. Other values are shared.

    >>> with_field({"x": 1}, "y", 2), with_field({"meta": {"x": 1}}, "meta.y", 2)
    ({'x': 1, 'y': 2}, {'meta': {'x': 1, 'y': 2}})

    Raises TypeError for an item without fields, and for a new field of a dataclass or a named tuple.
    """
    if isinstance(item, Mapping):
        head, dot, rest = path.partition(".")
        if dot and path not in item and read_fields(item.get(head)) is not None:
            return {**item, head: with_field(item[head], rest, value)}
        return {**item, path: value}
    fields = read_fields(item)
    if fields is None:
        raise make_missing_error(item, path, "into")
    head, dot, rest = path.partition(".")
    if head not in fields:
        raise TypeError(
            f"a {type(item).__name__} cannot have a new field `{head}`; it has {list_fields(fields)}; "
            "make a dict of it in an earlier stage, as `stagepipe.stages.Select` does"
        )
    new = with_field(fields[head], rest, value) if dot else value
    if isinstance(item, tuple):
        return item._replace(**{head: new})  # type: ignore[attr-defined]  # a named tuple
    changed = copy.copy(item)  # without `__init__`, like `rebuild_dataclass`
    object.__setattr__(changed, head, new)  # works for frozen classes and with slots
    return changed


NUMBER_TYPES = (bool, int, float)
"""Python numbers that a batch turns into an array. Subclasses are excluded: an enum means more than its number."""


def is_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor, or of a subclass such as `tv_tensors`. False if torch is not imported.

    >>> is_tensor(3)
    False
    """
    torch = get_used_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def is_masked_array(value: Any) -> bool:
    """Whether `value` is an array of `numpy.ma`. False if that is not imported."""
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
    """Create an instance of a dataclass with these field values as pickle does: without `__init__`.

    The checks in a `__post_init__` are written for one sample. They may fail for a batch or for one of its rows.
    """
    instance: Any = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(instance, name, value)  # works for frozen classes and with slots
    return instance


_KINDS_BY_TYPE: Final[Mapping[type, str]] = {
    **{kind: kind.__name__ for kind in (*NUMBER_TYPES, list, tuple)},
    **dict.fromkeys((str, bytes, type(None)), "object"),
    dict: "mapping",
}
"""The kinds of the most frequent types, matched exactly: nearly all fields, in a tenth of the time."""


def classify_value(value: Any) -> str:
    """The kind of `value` for batching: items of different kinds cannot form a batch.

    >>> classify_value(np.float32(1)), classify_value(1.0), classify_value({}), classify_value("a")
    ('array', 'float', 'mapping', 'object')
    """
    kind = _KINDS_BY_TYPE.get(type(value))
    if kind is not None:
        return kind
    if type(value) is np.ndarray:
        return _classify_array(value)
    if isinstance(value, Mapping):
        return "mapping"
    if is_dataclass_instance(value) or isinstance(value, list | tuple):
        return type(value).__name__
    if is_tensor(value):
        return "tensor"
    return _classify_array(value) if isinstance(value, np.ndarray | np.generic) else "object"


def _classify_array(value: np.ndarray | np.generic) -> str:
    if value.dtype.kind not in "OUST":  # object, str, bytes, StringDType
        return "array"
    return "text array" if isinstance(value, np.ndarray) and value.dtype.kind != "O" else "object"


_VALUE_BYTES: Final = 8
"""The size that a number counts as, and any value of unknown size."""
_NUMBER_TYPES: Final = frozenset({int, float, bool, type(None)})


def count_bytes(value: Any) -> int:
    """Return the approximate size of an item's data in bytes. Equal items have equal sizes, wherever their data lies.

    >>> count_bytes({"x": np.zeros(4, np.float32), "name": "ab", "y": 1})
    26
    """
    kind = type(value)
    if kind in _NUMBER_TYPES:
        return _VALUE_BYTES
    if kind is str or kind is bytes:
        return len(value)
    if kind is np.ndarray:
        return int(value.nbytes)
    if kind is not dict:
        return _count_object_bytes(value)
    nbytes = 0
    for part in value.values():  # the frequent kinds without a call
        part_kind = type(part)
        if part_kind in _NUMBER_TYPES:
            nbytes += _VALUE_BYTES
        elif part_kind is str or part_kind is bytes:
            nbytes += len(part)
        else:
            nbytes += count_bytes(part)
    return nbytes


def _count_object_bytes(value: Any) -> int:
    """Return the bytes of a value of a less frequent type."""
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        value = value.values()
    if isinstance(value, ValuesView | list | tuple | set | frozenset):
        return sum(map(count_bytes, value))
    if hasattr(value, "getbands"):  # a PIL image
        return int(value.width * value.height * len(value.getbands()))
    return _VALUE_BYTES
