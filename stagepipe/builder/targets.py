"""Turns what a caller passes to the builder into the target of a stage, or refuses it with the fix. Pure."""

from __future__ import annotations

import functools
import inspect
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from stagepipe.core import Deferred, UsageError, is_class_or_classmethod, is_generator, split_target_path

_LAMBDA_NAME: Final = "<lambda>"


@dataclass(frozen=True)
class CallTarget:
    """What a stage runs: `uses` and `with` of a config, and the name that the stage gets from it."""

    uses: Any
    arguments: Mapping[str, Any]
    name: str
    is_generator: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of the config."""
        return {"uses": self.uses, "with": self.arguments} if self.arguments else {"uses": self.uses}

    def to_argument(self) -> Any:
        """Return the target as an argument of a built-in stage: `where` of `Filter`."""
        return Deferred(self.uses, self.arguments) if self.arguments or isinstance(self.uses, str) else self.uses


def make_target(function: Any, method: str) -> CallTarget:
    """Return the target for an argument of the builder's `method`. Raises UsageError for what cannot be called.

    >>> make_target(functools.partial(int, base=2), "map").name
    'int'
    """
    if isinstance(function, Deferred):
        is_generator_class = is_generator_call(function.target)
        return CallTarget(function.target, function.arguments, get_name(function.target), is_generator_class)
    if isinstance(function, str):
        return CallTarget(function, {}, get_name(function))
    name = get_name(function) or method
    label = format_argument(function)
    if isinstance(function, ModuleType) or not callable(function):
        raise UsageError(
            f".{method}({format_argument(function)}): expected a function, found {type(function).__name__}; pass a "
            f"function, defer(Class, ...), or an import path"
        )
    if inspect.iscoroutinefunction(function):
        raise UsageError(
            f".{method}({label}): `{label}` is a coroutine function; pass a function that returns its item"
        )
    if inspect.isclass(function) and has_call_method(function):
        raise UsageError(
            f".{method}({label}): `{label}` is a class whose instances are called with each item; write "
            f".{method}(defer({label}, ...)) to build one in each worker"
        )
    if is_class_or_classmethod(function):  # `int`, `Path`, `datetime.fromisoformat`: called with each item
        return CallTarget(functools.partial(function), {}, name)
    if (
        isinstance(function, functools.partial)
        and inspect.isroutine(function.func)
        and not (function.args or is_class_or_classmethod(function.func))
    ):
        return CallTarget(function.func, function.keywords, name, is_generator(function))
    return CallTarget(function, {}, name, is_generator(function))


def has_call_method(cls: type) -> bool:
    """Return whether instances of a class can be called."""
    return any("__call__" in base.__dict__ for base in cls.__mro__)


def is_generator_call(target: Any) -> bool:
    """Return whether the instances of a class are generators: their `__call__` is a generator function."""
    return inspect.isclass(target) and inspect.isgeneratorfunction(inspect.getattr_static(target, "__call__", None))


def get_name(function: Any) -> str:
    """Return a stage name for a function, class, instance or import path. "" for a lambda.

    >>> get_name("./ops.py:decode"), get_name(len), get_name(lambda item: item)
    ('decode', 'len', '')
    """
    if isinstance(function, Deferred):
        return get_name(function.target)
    if isinstance(function, str):
        module, attributes = split_target_path(function)
        return _to_stage_name((attributes or module).rpartition(".")[2])
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return "" if name == _LAMBDA_NAME else _to_stage_name(str(name))


def _to_stage_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")


def format_call(method: str, *args: Any, **options: Any) -> str:
    """Return the text of a call, for messages: functions by name, long values shortened.

    >>> format_call(".map", len, workers=2)
    '.map(len, workers=2)'
    """
    named = (f"{key}={format_argument(value)}" for key, value in options.items())
    return f"{method}({', '.join((*map(format_argument, args), *named))})"


def get_parameters(method: Callable[..., Any]) -> list[str]:
    """Return the names of what a method takes by keyword, without its `**options`."""
    parameters = inspect.signature(method).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def format_argument(value: Any) -> str:
    """Return a short text for an argument: the name of a function or class, otherwise its shortened `repr`."""
    if isinstance(value, Deferred):
        return format_call("defer", value.target, **value.arguments)
    if isinstance(value, functools.partial):
        return format_call("partial", value.func, *value.args, **value.keywords)
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return "lambda" if name.endswith(_LAMBDA_NAME) else name.rpartition("<locals>.")[2]
    return _SHORT_REPR.repr(value)


class _OneLineRepr(reprlib.Repr):
    """Shortens values, and names objects by their class, without an address."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = 60
        self.maxother = 60

    def repr_instance(self, x: Any, level: int) -> str:
        text = super().repr_instance(x, level)
        return f"{type(x).__name__}(...)" if " at 0x" in text or "\n" in text else text


_SHORT_REPR: Final = _OneLineRepr()
