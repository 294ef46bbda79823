"""Builds the target of a stage and its arguments. Runs in workers, and in the main process inline; calls user code.

`build_deferred` builds an argument once its class can supply missing values, such as a sampler's dataset.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Generic, NamedTuple, ParamSpec, TypeVar, overload

from stagepipe.core.errors import UsageError
from stagepipe.core.imports import TargetError, import_target


def build_target(uses: object, arguments: Mapping[str, Any] | None = None, config_dir: Path | None = None) -> Any:
    """The object that a stage runs. `uses` is a target path or an object, `arguments` are its keyword arguments.

    A function gets the arguments bound. A class is instantiated. A classmethod, such as
    `transformers.AutoTokenizer.from_pretrained`, is called once, and its result is used. Any other object (a dtype, an
    enum member) is used as it is. A mapping `{"uses": ..., "with": ...}` inside the arguments, at any depth, is built
    first by the same rules.

    >>> build_target("shutil.copy", {"follow_symlinks": False}).keywords
    {'follow_symlinks': False}

    Raises TargetError. Exceptions of a class pass through, with a note that names it.
    """
    target = import_target(uses, config_dir) if isinstance(uses, str) else uses
    deferred_names = getattr(target, "deferred_arguments", ()) if inspect.isclass(target) else ()
    built_arguments = {
        name: DeferredArgument(value, config_dir) if name in deferred_names else build_argument(value, config_dir)
        for name, value in (arguments or {}).items()
    }
    if is_class_or_classmethod(target):
        return call_target(uses, target, built_arguments)
    if isinstance(target, ModuleType):
        message = f"`{uses}` is a module; name a function or a class in it"
        raise TargetError(message)
    if not built_arguments:
        return target
    if not callable(target):
        message = f"`{uses}` is {type(target).__name__}, which takes no arguments; remove `with`"
        raise TargetError(message)
    return functools.partial(target, **built_arguments)


class DeferredArgument(NamedTuple):
    """An argument as written in the config, for a class that lists it in `deferred_arguments` and builds it itself."""

    value: Any
    config_dir: Path | None


def build_argument(value: Any, config_dir: Path | None) -> Any:
    """An argument in which every mapping `{"uses": ..., "with": ...}` is replaced by the object it builds."""
    if isinstance(value, Mapping) and "uses" in value:
        extra_keys = set(value) - {"uses", "with"}
        if extra_keys:
            message = f"a mapping with `uses` takes only `with` next to it, found {sorted(map(str, extra_keys))}"
            raise TargetError(message)
        return build_target(value["uses"], value.get("with"), config_dir)
    if isinstance(value, Mapping):
        return {key: build_argument(inner, config_dir) for key, inner in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(build_argument(inner, config_dir) for inner in value)
    return value


def has_call_method(target: type) -> bool:
    """Return whether the instances of a class can be called."""
    return any("__call__" in vars(base) for base in target.__mro__)


def is_class_or_classmethod(target: object) -> bool:
    """Whether `target` is a class or a classmethod: these are called once, with their arguments."""
    is_classmethod = inspect.isroutine(target) and inspect.isclass(getattr(target, "__self__", None))
    return inspect.isclass(target) or is_classmethod


def call_target(uses: object, target: Any, arguments: dict[str, Any]) -> Any:
    """Call a target. Its exceptions pass through, with a note that names it."""
    try:
        return target(**arguments)
    except Exception as error:
        error.add_note(f"while building `{uses if isinstance(uses, str) else getattr(uses, '__qualname__', uses)}`")
        raise


def build_deferred(value: Any, **available: Any) -> Any:
    """Build an argument that a class names in `deferred_arguments`. Any other value is returned unchanged.

    A class is built and a function is called. It gets each of the `available` arguments that its signature accepts and
    `with` omits; so does every class nested directly in its `with`.

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


def require_callable(stage: object, uses: object) -> Callable[..., Any]:
    """Return `stage` if it is callable. Raises TargetError otherwise."""
    if callable(stage):
        return stage
    message = (
        f"`{uses}` creates an object of type {type(stage).__name__}, which cannot be called with an item; define "
        "`__call__` on it"
    )
    raise TargetError(message)


def _list_called(target: object) -> tuple[object, object]:
    """Return the objects that run when `target`, or an instance of the class `target`, is called with an item."""
    while isinstance(target, functools.partial):
        target = target.func
    kind = target if inspect.isclass(target) else type(target)
    return target, inspect.getattr_static(kind, "__call__", None)


def is_async(target: object) -> bool:
    """Whether a call returns an awaitable: `target` is an `async def`, or the `__call__` of its class is one.

    >>> async def fetch(item):
    ...     return item
    >>> is_async(functools.partial(fetch)), is_async(len)
    (True, False)
    """
    return any(map(inspect.iscoroutinefunction, _list_called(target)))


ASYNC_GENERATOR_MESSAGE: Final = (
    "`{}` is an async generator, and an `async def` stage returns one result per item; return a list of the parts, and "
    "yield them from a generator function in the next stage"
)


def is_async_generator(target: object) -> bool:
    """Whether `target`, or the `__call__` of its class, is an `async def` with a `yield`."""
    return any(map(inspect.isasyncgenfunction, _list_called(target)))


def is_generator(stage: object) -> bool:
    """Whether a stage is a generator: a generator function, a partial of one, or an object whose `__call__` is one.

    >>> def halves(item):
    ...     yield item / 2
    >>> is_generator(functools.partial(halves)), is_generator(len)
    (True, False)
    """
    while isinstance(stage, functools.partial):
        stage = stage.func
    call = inspect.getattr_static(type(stage), "__call__", None)
    return inspect.isgeneratorfunction(stage) or inspect.isgeneratorfunction(call)


P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, repr=False)
class Deferred(Generic[T_co]):
    """A class and its arguments, built once in each worker; made by `defer`.

    `target` is the class, a classmethod, or its import path. Values of `arguments` may be `Deferred` objects too, also
    inside lists, tuples and dicts.
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
    """Return a class and its arguments; each worker builds the object once.

    Args:
        target: a class, a classmethod such as `AutoTokenizer.from_pretrained`, or its import path.
        args: positional arguments. With an import path, use keyword arguments.
        kwargs: keyword arguments; values may be `Deferred` objects.

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
    """Return all arguments by name, as in a config. Some may be missing: a sampler gets its dataset later."""
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
                f"defer({label}): the argument `{name}` cannot be passed by name; write a function or class "
                f"that calls `{label}`"
            )
        arguments.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
    return arguments
