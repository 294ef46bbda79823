"""What is built later than it is written: classes that each worker builds, and arguments that a class builds itself.

`defer` runs in the user's process. `build_deferred` builds an argument when its class knows what it lacks, such as a
sampler's dataset; it runs in workers, and in the main process inline.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, overload

from stagepipe.core.errors import UsageError
from stagepipe.core.imports import (
    DeferredArgument,
    TargetError,
    build_argument,
    call_target,
    import_target,
    is_class_or_classmethod,
)

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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


@dataclass(frozen=True, repr=False)
class Deferred(Generic[T_co]):
    """A class and its arguments, built once in each worker. `defer` makes it.

    `target` is the class, a classmethod, or the import path of one. A value of `arguments` may be a `Deferred` too,
    also inside lists, tuples and dicts.
    """

    target: Callable[..., T_co] | str
    arguments: Mapping[str, Any]

    def __repr__(self) -> str:
        name = repr(self.target) if isinstance(self.target, str) else self.target.__qualname__
        return f"defer({', '.join((name, *(f'{key}={value!r}' for key, value in self.arguments.items())))})"


@overload
def defer(target: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Deferred[T]: ...
@overload
def defer(target: str, /, **kwargs: Any) -> Deferred[Any]: ...
def defer(target: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> Deferred[Any]:
    """Return a class with its arguments, which each worker builds once.

    Args:
        target: a class, a classmethod such as `AutoTokenizer.from_pretrained`, or the import path of one.
        args: positional arguments; a class given by its path takes none.
        kwargs: keyword arguments. An argument may be another `Deferred`.

    >>> from fractions import Fraction
    >>> defer(Fraction, 1, denominator=3)
    defer(Fraction, numerator=1, denominator=3)

    Raises UsageError if the class does not take these arguments, or if `target` is a function.
    """
    if isinstance(target, str):
        return Deferred(target, kwargs)
    if not is_class_or_classmethod(target):
        name = getattr(target, "__qualname__", type(target).__name__)
        raise UsageError(
            f"defer({name}): `{name}` is not a class; pass a function itself, with its arguments bound by "
            f"functools.partial({name}, size=...)"
        )
    return Deferred(target, _name_arguments(target, args, kwargs))


def _name_arguments(target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments by name, as in a config. A missing one is not reported: a sampler gets its dataset later."""
    label = target.__qualname__
    try:
        bound = inspect.signature(target).bind_partial(*args, **kwargs)
    except ValueError:
        if not args:
            return dict(kwargs)
        raise UsageError(f"defer({label}): `{label}` has no signature; give its arguments by name") from None
    except TypeError as error:
        raise UsageError(f"defer({label}): {error}") from None
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind in {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}:
            raise UsageError(
                f"defer({label}): the argument `{name}` has no name that a caller can give; write a function or class "
                f"that calls `{label}`"
            )
        arguments.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return arguments
