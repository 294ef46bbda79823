"""Walks the objects that a stage can reach: attributes, containers, closures, and the globals that its code names.

In workers and inline. Calls no property or method of the user's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain, islice
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, Final

import numpy as np

from stagepipe.core import get_used_torch, is_installed

_MAX_OBJECTS: Final = 20_000
"""Objects that are looked at: some tens of milliseconds. The nearest ones come first."""

_MAX_ELEMENTS: Final = 1_000
"""Elements of a container that are looked at: a list of a million paths costs little."""

_LEAF_TYPES: Final = (
    *(NoneType, int, float, complex, str, bytes, bytearray, range, slice, type(...), np.ndarray, np.dtype),
    *(GetSetDescriptorType, MemberDescriptorType, ModuleType, CodeType),
)
"""Types of values that reach nothing."""

_HEAP_TYPE_FLAG: Final = 1 << 9
"""Set on classes that a `class` statement makes. https://docs.python.org/3/c-api/typeobj.html"""

_SEQUENCE_TYPES: Final[tuple[Any, ...]] = (list, tuple, set, frozenset, deque)


def iter_reachable(root: Any, is_wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield each wanted object that `root` reaches, once, the nearest first.

    What a wanted object consists of is its own affair, so objects in it are not wanted; but the user's functions in it
    are walked as any other. Modules, arrays and tensors are not walked, nor the code of installed packages.

    >>> list(iter_reachable({"a": [1, {2.5j, Ellipsis}, (print,)]}, lambda value: value is print))
    [<built-in function print>]
    """
    queue: deque[tuple[Any, bool]] = deque([(root, False)])
    visited: dict[tuple[int, bool], Any] = {}  # keeps the objects, so that no id is used twice
    leaf_types = (*_LEAF_TYPES, getattr(get_used_torch(), "Tensor", ModuleType))
    while queue and len(visited) < _MAX_OBJECTS:
        value, is_inside_wanted = queue.popleft()
        is_inside_wanted = is_inside_wanted and not _is_own_function(value)
        if (id(value), is_inside_wanted) in visited:
            continue
        visited[id(value), is_inside_wanted] = value
        if is_wanted(value):
            if not is_inside_wanted:
                yield value
            is_inside_wanted = True
        children = (child for child in _list_children(value) if not issubclass(type(child), leaf_types))
        queue.extend((child, is_inside_wanted) for child in islice(children, max(0, _MAX_OBJECTS - len(queue))))


def _list_children(value: Any) -> list[Any]:
    cls = type(value)  # not `isinstance`: it asks an object for its `__class__`, which may be a property
    if issubclass(cls, FunctionType):
        return list(_iter_function(value))
    if issubclass(cls, MethodType):
        return [value.__self__, value.__func__]
    if issubclass(cls, BuiltinMethodType):
        return [value.__self__]
    if issubclass(cls, type):
        return list(_iter_class(value))
    children = [cls, *_list_elements(value), *_list_attributes(value)]
    if issubclass(cls, partial):
        children += [value.func, *value.args, *value.keywords.values()]
    return children


def _list_elements(value: Any) -> list[Any]:
    """Return the first elements of a container, as its built-in type iterates over them."""
    if issubclass(type(value), dict):
        return list(islice(dict.values(value), _MAX_ELEMENTS))
    container_type = next((cls for cls in _SEQUENCE_TYPES if issubclass(type(value), cls)), None)
    return [] if container_type is None else list(islice(container_type.__iter__(value), _MAX_ELEMENTS))


def _list_attributes(value: Any) -> list[Any]:
    """Return what an object's `__dict__` and slots hold."""
    attributes: list[Any] = []
    with suppress(Exception):  # there is none, or a class in C has its own idea of it
        attributes += islice(object.__getattribute__(value, "__dict__").values(), _MAX_ELEMENTS)
    slots = (base.__dict__.values() for base in type(value).__mro__ if "__slots__" in base.__dict__)
    for member in chain.from_iterable(slots):
        with suppress(AttributeError):  # not set
            attributes += [member.__get__(value)] if type(member) is MemberDescriptorType else []
    return attributes


def _iter_class(cls: type) -> Iterator[Any]:
    """Yield the methods and attributes of a class and its bases, those of installed packages left out.

    By name: a class that travelled to a worker may have them in another order.
    """
    for base in cls.__mro__:
        if base.__flags__ & _HEAP_TYPE_FLAG and not is_installed(base.__module__):
            for _, value in sorted(base.__dict__.items()):
                yield from _unwrap(value)


def _unwrap(value: Any) -> tuple[Any, ...]:
    """Return the functions around which a class attribute is made, or the attribute."""
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget,)
    return (value.func,) if isinstance(value, cached_property) else (value,)


def _iter_function(function: FunctionType) -> Iterator[Any]:
    """Yield what a function's closure, defaults, attributes and code reach."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue
    yield from chain(function.__defaults__ or (), (function.__kwdefaults__ or {}).values(), function.__dict__.values())
    if _is_own_function(function):
        yield from _iter_globals(function)


def _is_own_function(value: Any) -> bool:
    """Whether a value is a function that no installed package defines."""
    if not issubclass(type(value), FunctionType):
        return False
    return not is_installed(str(value.__globals__.get("__name__", value.__module__)))


def _iter_globals(function: FunctionType) -> Iterator[Any]:
    """Yield the globals that the code of a function names, also those of the user's modules: `settings.rng`."""
    names = list(dict.fromkeys(_iter_names(function.__code__)))
    namespaces, modules = [function.__globals__], set[int]()
    while namespaces:
        namespace = namespaces.pop()
        for value in (namespace.get(name) for name in names):
            if type(value) is not ModuleType:
                yield value
            elif id(value) not in modules and not is_installed(value.__name__):
                modules.add(id(value))
                namespaces.append(vars(value))


def _iter_names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in `code` and in the code nested in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _iter_names(constant)
