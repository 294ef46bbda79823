"""`defer`: a class and its arguments, which each worker builds. Runs in the user's process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

from stagepipe.core.errors import UsageError
from stagepipe.core.targets import is_class_or_classmethod

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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
