"""Names what in a stage cannot be sent to its workers: a variable of a closure, an attribute, an argument.

In the caller's process, after pickling has failed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from stagepipe.core import UsageError
from stagepipe.plan import StagePlan
from stagepipe.spec import SOURCE_NAME, Target

_MAX_SEARCH_DEPTH: Final = 6
"""Levels of closures, attributes and containers that are searched."""


def find_unpicklable_stage(stages: Iterable[StagePlan]) -> UsageError | None:
    """Return the error for the first stage that cannot be pickled, with the variable; None if all of them can be."""
    for stage in stages:
        target, (path, value, error) = stage.target, _find_target_part(stage.target)
        if error is None and isinstance(stage.when, Target):
            target, (path, value, error) = stage.when, _find_target_part(stage.when)
        if error is None:
            continue
        subject = SOURCE_NAME if stage.row == SOURCE_NAME else f"stage {stage.row}"
        return UsageError(
            f"{subject}: {path or f'`{target.label}`'} ({type(value).__name__}) cannot be sent to a worker: "
            f"{type(error).__name__}: {error}; create it in the function, or in a class that each worker builds"
        )
    return None


def _find_target_part(target: Target) -> tuple[str, Any, Exception | None]:
    return _find_part("", (target.uses, target.arguments), 0)


def _find_part(path: str, value: Any, depth: int) -> tuple[str, Any, Exception | None]:
    """Return the innermost part of `value` that cannot be pickled: its name, itself, and why."""
    error = _try_to_pickle(value)
    if error is not None and depth < _MAX_SEARCH_DEPTH:
        for name, part in _iter_parts(value):
            inner_path, inner_part, inner_error = _find_part(name or path, part, depth + 1)
            if inner_error is not None:
                return inner_path, inner_part, inner_error
    return path, value, error


def _try_to_pickle(value: Any) -> Exception | None:
    import cloudpickle

    try:
        cloudpickle.dumps(value, protocol=5)
    except Exception as error:  # noqa: BLE001 - a user's pickling may raise anything
        return error
    return None


def _iter_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with its name; "" keeps the name of the value."""
    if isinstance(value, partial):
        yield from (("", value.func), ("", value.args), ("", value.keywords))
    elif isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, FunctionType):
        yield from _iter_variables(value)
    elif isinstance(value, Mapping):
        yield from ((f"`{key}`" if isinstance(key, str) else "", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from (("", part) for part in value)
    elif not isinstance(value, type):
        attributes = getattr(value, "__dict__", {})
        yield from ((f"the attribute `{name}`", part) for name, part in attributes.items())


def _iter_variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function takes along: closure variables, globals of a script or notebook, defaults."""
    variables = inspect.getclosurevars(function)
    label = "lambda" if function.__name__ == "<lambda>" else function.__name__
    for name, part in (*variables.nonlocals.items(), *variables.globals.items()):
        yield f"the variable `{name}` of {label}", part
    for part in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"a default value of {label}", part
