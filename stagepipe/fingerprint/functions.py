"""The parts of a function: code, constants, defaults, closure values and the globals that it reads. Pure."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from functools import cached_property, partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from stagepipe.core import get_recorded_module, is_installed
from stagepipe.fingerprint.bytecode import CodeContent, read_code
from stagepipe.fingerprint.model import Build, Fingerprint, make_composite, make_exact, make_opaque
from stagepipe.fingerprint.origin import get_display_name, is_importable

_MISSING = object()


def fingerprint_function(function: FunctionType, build: Build) -> Fingerprint:
    """Return the fingerprint of a function; its code and globals count unless they are an installed package's."""
    home = str(function.__globals__.get("__name__", function.__module__))
    if not is_installed(home):
        return make_composite("function", function.__name__, _iter_parts(function, build))
    name = f"{get_recorded_module(home)}.{function.__qualname__}"
    if is_importable(function):
        return make_exact("function", name)
    return make_composite("installed function", name, _iter_context(function, build))


def fingerprint_method(value: MethodType, build: Build) -> Fingerprint:
    """Return the fingerprint of a bound method: of the function and of its object."""
    return make_composite(
        "method", value.__name__, [("method", build(value.__func__)), ("object", build(value.__self__))]
    )


def fingerprint_partial(value: partial[Any], build: Build) -> Fingerprint:
    """Return the fingerprint of a partial: of the function and of the arguments."""
    arguments = [(f"argument {number}", build(argument)) for number, argument in enumerate(value.args)]
    keywords = [(f"argument `{name}`", build(argument)) for name, argument in sorted(value.keywords.items())]
    return make_composite("partial", "partial", [("function", build(value.func)), *arguments, *keywords])


def fingerprint_wrapper(value: Any, build: Build) -> Fingerprint:
    """Return the fingerprint of an object around a function: a static or class method, an `lru_cache`."""
    return make_composite("wrapper", type(value).__name__, [("function", build(value.__wrapped__))])


def fingerprint_property(value: property | cached_property[Any], build: Build) -> Fingerprint:
    """Return the fingerprint of a property: of its functions."""
    names = ("fget", "fset", "fdel") if isinstance(value, property) else ("func",)
    return make_composite("property", "property", [(name, build(getattr(value, name))) for name in names])


def fingerprint_leniently(value: Any, build: Build) -> Fingerprint:
    """Return the fingerprint of a value that is not sent to workers; of one that has none, the name of its type."""
    result = build(value)
    return result if result.unknown is None else make_exact("type", get_display_name(type(value)))


def _iter_parts(function: FunctionType, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    content = read_code(function.__code__)
    instructions = "\n".join(content.instructions).encode("utf-8", "surrogatepass")
    yield "code", make_opaque("code", "", instructions, has_bytecode=True)
    if content.constants:
        yield "constants", build(content.constants)
    yield from _iter_context(function, build)
    yield from _iter_globals(function, content, build)


def _iter_context(function: FunctionType, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    """Yield what a function object adds to its code: defaults, closure values and attributes."""
    code = function.__code__
    defaults = function.__defaults__ or ()
    positional_names = code.co_varnames[: code.co_argcount]
    for name, value in zip(positional_names[len(positional_names) - len(defaults) :], defaults, strict=True):
        yield f"default `{name}`", build(value)
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield f"default `{name}`", build(value)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield f"closure value `{name}`", _fingerprint_cell(cell, build)
    for name, value in sorted(function.__dict__.items()):
        if name != "__wrapped__":  # the closure has it, if the function calls it
            yield f"attribute `{name}`", build(value)


def _fingerprint_cell(cell: CellType, build: Build) -> Fingerprint:
    try:
        return build(cell.cell_contents)
    except ValueError:
        return make_exact("cell", "not set")


def _iter_globals(function: FunctionType, content: CodeContent, build: Build) -> Iterator[tuple[str, Fingerprint]]:
    is_sent_by_name = is_importable(function)
    for name in sorted(name for name in content.global_names if not name.startswith("__")):  # `__file__`, `__name__`
        value = function.__globals__.get(name, _MISSING)
        if value is function:
            continue
        if value is _MISSING:
            if not hasattr(builtins, name):
                yield f"global `{name}`", make_exact("global", "not set")
        elif isinstance(value, ModuleType):
            yield f"global `{name}`", build(value)
            yield from _iter_module_attributes(name, value, content, build)
        elif is_sent_by_name:
            yield f"global `{name}`", fingerprint_leniently(value, build)
        else:
            yield f"global `{name}`", build(value)


def _iter_module_attributes(
    name: str, module: ModuleType, content: CodeContent, build: Build
) -> Iterator[tuple[str, Fingerprint]]:
    """Yield what the code may read from a module that is not installed: `settings.SIZE`."""
    if not is_installed(module.__name__):
        for attribute in sorted(content.attribute_names & vars(module).keys()):
            yield f"global `{name}.{attribute}`", fingerprint_leniently(vars(module)[attribute], build)
