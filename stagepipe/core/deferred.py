"""Builds arguments that a class builds itself, when it knows what they lack: a sampler's dataset, for example.

Runs in workers, and in the main process inline.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stagepipe.core.imports import (
    DeferredArgument,
    TargetError,
    build_argument,
    call_target,
    import_target,
    is_class_or_classmethod,
)


def build_deferred(value: Any, **available: Any) -> Any:
    """Build an argument that a class names in `deferred_arguments`. Any other value is returned unchanged.

    A class is built and a function is called. It gets each of the `available` arguments that its signature has and
    `with` leaves out; so does every class nested directly in its `with`.

    >>> argument = DeferredArgument({"uses": "fractions.Fraction", "with": {"denominator": 4}}, None)
    >>> build_deferred(argument, numerator=3)
    Fraction(3, 4)

    Raises TargetError. Exceptions of the class or function pass through, with a note that names it.
    """
    return _build_value(value.value, value.config_dir, available) if isinstance(value, DeferredArgument) else value


def _build_value(value: Any, config_dir: Path | None, available: Mapping[str, Any]) -> Any:
    if not (isinstance(value, Mapping) and "uses" in value):
        return build_argument(value, config_dir)
    uses = value["uses"]
    target: Any = import_target(uses, config_dir) if isinstance(uses, str) else uses
    arguments = {name: _build_nested(inner, config_dir, available) for name, inner in (value.get("with") or {}).items()}
    if not (is_class_or_classmethod(target) or inspect.isroutine(target) or isinstance(target, functools.partial)):
        if arguments:
            raise TargetError(f"`{uses}` is {type(target).__name__}, which takes no arguments; remove `with`")
        return target
    missing_names = (_parameter_names(target) - arguments.keys()) & available.keys()
    return call_target(uses, target, {**arguments, **{name: available[name] for name in missing_names}})


def _build_nested(value: Any, config_dir: Path | None, available: Mapping[str, Any]) -> Any:
    """Build a value inside `with`. A class (the sampler of a batch sampler) gets `available`; a function does not."""
    if isinstance(value, Mapping) and "uses" in value:
        uses = value["uses"]
        if is_class_or_classmethod(import_target(uses, config_dir) if isinstance(uses, str) else uses):
            return _build_value(value, config_dir, available)
    return build_argument(value, config_dir)


def _parameter_names(target: Any) -> set[str]:
    try:
        return set(inspect.signature(target).parameters)
    except (ValueError, TypeError):  # a class or function in C without a signature
        return set()
