"""The parts of a class: its bases, methods and attributes. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from functools import cached_property, partial
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from stagepipe.core import is_installed
from stagepipe.fingerprint.functions import fingerprint_leniently
from stagepipe.fingerprint.model import Build, Fingerprint, make_composite, make_exact
from stagepipe.fingerprint.origin import get_display_name, is_importable

_DESCRIPTOR_TYPES = (GetSetDescriptorType, MemberDescriptorType)
_METHOD_TYPES = (FunctionType, staticmethod, classmethod, property, cached_property)
_HEAP_TYPE_FLAG = 1 << 9
"""Set on classes that a `class` statement makes. https://docs.python.org/3/c-api/typeobj.html"""


def fingerprint_class(cls: type, build: Build) -> Fingerprint:
    """Return the fingerprint of a class; its content counts unless it is an installed package's."""
    if is_library_class(cls):
        return make_exact("class", get_display_name(cls))
    return make_composite("class", cls.__name__, _iter_parts(cls, build))


def is_library_class(cls: type) -> bool:
    """Whether `cls` is written in C or an installed package defines it, so that only its version changes it."""
    return not cls.__flags__ & _HEAP_TYPE_FLAG or (is_installed(cls.__module__) and is_importable(cls))


def _iter_parts(cls: type, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    for number, base in enumerate(cls.__bases__):
        if base is not object:
            yield f"base {number}", build(base)
    if type(cls) is not type:
        yield "metaclass", build(type(cls))
    if is_importable(cls):
        build = partial(fingerprint_leniently, build=build)
    members = cls.__members__ if issubclass(cls, enum.Enum) else {}
    for name, member in members.items():
        yield f"member `{name}`", build(member.value)
    for name, value in sorted(vars(cls).items()):
        if name.startswith("__annotate"):  # Python 3.14 computes annotations in a method
            continue
        if isinstance(value, _METHOD_TYPES):
            yield f"method `{name}`", build(value)
        elif not members and not _is_bookkeeping(name, value):
            yield f"class attribute `{name}`", build(value)


def _is_bookkeeping(name: str, value: Any) -> bool:
    """Whether an entry of a class is for Python's own use: `__doc__`, slots."""
    is_dunder = name.startswith("__") and name.endswith("__")
    return is_dunder or name == "_abc_impl" or isinstance(value, _DESCRIPTOR_TYPES)
