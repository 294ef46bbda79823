"""The fingerprints of objects of any class, from what pickle would send of them. Pure."""

from __future__ import annotations

import copyreg
import enum
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from inspect import getattr_static
from typing import Any, Final

from stagepipe.fingerprint.classes import is_library_class
from stagepipe.fingerprint.model import Build, Fingerprint, make_composite, make_exact, make_unknown
from stagepipe.fingerprint.origin import get_display_name

_PICKLE_PROTOCOL: Final = 4
"""The protocol of `__reduce_ex__`. From 5 on, it may leave out buffers."""


def fingerprint_object(value: Any, build: Build) -> Fingerprint:
    """Return the fingerprint of an object: its class, and the state that pickle sees. Raises what pickle raises."""
    reducer = copyreg.dispatch_table.get(type(value))
    reduced: Any = value.__reduce_ex__(_PICKLE_PROTOCOL) if reducer is None else reducer(value)
    if isinstance(reduced, str):
        modules = list(sys.modules.values())
        if "." not in reduced and not any(getattr(module, "__dict__", {}).get(reduced) is value for module in modules):
            # For instance what `numpy.frompyfunc` makes of a function.
            return make_unknown(f"{get_display_name(type(value))} `{reduced}` cannot be imported")
        return make_exact("global", f"{getattr(value, '__module__', '')}.{reduced}")
    constructor, arguments, state, elements, entries = (*reduced, None, None, None)[:5]
    parts = list(_iter_class(value, build))
    if getattr(constructor, "__name__", "") == "__newobj__":  # `object.__reduce_ex__`: the class is the first argument
        arguments = arguments[1:]
    elif constructor is not type(value):
        parts.append(("constructor", build(constructor)))
    parts += [(f"argument {number}", build(argument)) for number, argument in enumerate(arguments)]
    parts += _iter_state(value, state, build)
    if elements is not None:
        parts.append(("elements", build(list(elements))))
    if entries is not None:
        parts.append(("entries", build(dict(entries))))
    return make_composite("object", get_display_name(type(value)), parts)


def fingerprint_member(value: enum.Enum, build: Build) -> Fingerprint:
    """Return the fingerprint of a member of an enum."""
    name = f"{get_display_name(type(value))}.{value.name}"
    parts = list(_iter_class(value, build))
    return make_composite("enum", name, [("value", build(value.value)), *parts]) if parts else make_exact("enum", name)


def iter_attributes(attributes: Mapping[str, Any], build: Build) -> Iterator[tuple[str, Fingerprint]]:
    """Yield the attributes of an object by name."""
    for name, value in sorted(attributes.items()):
        yield f"attribute `{name}`", build(value)


def _iter_class(value: Any, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    if not is_library_class(type(value)):
        yield "class", build(type(value))


def _iter_state(value: Any, state: Any, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    """Yield the attributes of an object: a dict, or a pair of dicts where the class has slots."""
    match state:
        case (None | dict() as attributes, dict() as slots):
            state = {**(attributes or {}), **slots}
    if isinstance(state, dict) and all(isinstance(name, str) for name in state):
        computed = {name for name in state if isinstance(getattr_static(type(value), name, None), cached_property)}
        yield from iter_attributes({name: inner for name, inner in state.items() if name not in computed}, build)
    elif state is not None:
        yield "state", build(state)
