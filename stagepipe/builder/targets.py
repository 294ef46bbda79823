"""Arguments of the builder: as the target of a stage, as text for messages, and as YAML.

Refuses objects that cannot be called or that a config cannot name, with the fix.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from stagepipe.config import PythonCall, write_yaml
from stagepipe.core import (
    ASYNC_GENERATOR_MESSAGE,
    FILE_MODULE_PREFIX,
    SCRIPT_MODULES,
    Deferred,
    UsageError,
    find_import_path,
    has_call_method,
    has_object,
    is_async,
    is_async_generator,
    is_class_or_classmethod,
    is_generator,
    split_target_path,
)

_AWAITING_METHODS: Final = frozenset({"map", "map_field", "map_batches"})
"""The methods that take an `async def`. The config checks their other restrictions."""
_LAMBDA_NAME: Final = "<lambda>"


@dataclass(frozen=True)
class CallTarget:
    """The callable of a stage: `uses` and `with` of a config, and the stage name from it."""

    uses: Any
    arguments: Mapping[str, Any]
    name: str
    is_generator: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The keys of the config."""
        return {"uses": self.uses, "with": self.arguments} if self.arguments else {"uses": self.uses}

    def to_argument(self) -> Any:
        """Return the target as an argument of a built-in stage, such as `where` of `Filter`."""
        return Deferred(self.uses, self.arguments) if self.arguments or isinstance(self.uses, str) else self.uses


def make_target(function: Any, method: str) -> CallTarget:
    """Return the target for an argument of the builder's `method`. Raises UsageError if it cannot be called.

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
    if is_async_generator(function):
        raise UsageError(f".{method}({label}): {ASYNC_GENERATOR_MESSAGE.format(label)}")
    if is_async(function) and method not in _AWAITING_METHODS and not inspect.isclass(function):
        raise UsageError(
            f".{method}({label}): `{label}` is a coroutine function; await it in an earlier .map({label}), and pass a "
            "function of its result"
        )
    if inspect.isclass(function) and has_call_method(function):
        raise UsageError(
            f".{method}({label}): `{label}` is a class whose instances are called with each item; write "
            f".{method}(defer({label}, ...)) to build one in each worker"
        )
    if is_class_or_classmethod(function):  # such as `int`, `Path`, `datetime.fromisoformat`: called with each item
        return CallTarget(functools.partial(function), {}, name)
    if (
        isinstance(function, functools.partial)
        and inspect.isroutine(function.func)
        and not (function.args or is_class_or_classmethod(function.func))
    ):
        return CallTarget(function.func, function.keywords, name, is_generator(function))
    return CallTarget(function, {}, name, is_generator(function))


def is_generator_call(target: Any) -> bool:
    """Return whether the instances of a class are generators: their `__call__` is a generator function."""
    return inspect.isclass(target) and inspect.isgeneratorfunction(inspect.getattr_static(target, "__call__", None))


def get_name(function: Any) -> str:
    """Return a stage name for a function, class, instance or import path; "" for a lambda.

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
    """Return the text of a call for messages, with functions by name and long values shortened.

    >>> format_call(".map", len, workers=2)
    '.map(len, workers=2)'
    """
    named = (f"{key}={format_argument(value)}" for key, value in options.items())
    return f"{method}({', '.join((*map(format_argument, args), *named))})"


def get_parameters(method: Callable[..., Any]) -> list[str]:
    """Return the names of a method's keyword parameters, without its `**options`."""
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
    """Shortens values, and shows objects as their class without an address."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = 60
        self.maxother = 60

    def repr_instance(self, x: Any, level: int) -> str:
        text = super().repr_instance(x, level)
        return f"{type(x).__name__}(...)" if " at 0x" in text or "\n" in text else text


_SHORT_REPR: Final = _OneLineRepr()


_MODULE_HINT: Final = "move it to a module as a function or class"
_DEFAULT_NAME: Final = "pipeline"


def write_calls(calls: Sequence[PythonCall]) -> str:
    """Return the YAML of a builder's calls. Raises UsageError for values that YAML cannot hold."""
    config: dict[str, Any] = {"name": _DEFAULT_NAME}
    sections: dict[str, Any] = {}
    for call in calls:
        writer = _CallWriter(call)
        if call.section in {"stages", "sink"}:
            sections.setdefault(call.section, []).append(writer.write_settings())
        elif call.section:
            sections[call.section] = writer.write_settings()
        else:
            config |= writer.write_settings()
    if len(sections.get("sink", ())) == 1:
        sections["sink"] = sections["sink"][0]
    return write_yaml({**config, **{key: sections[key] for key in ("source", "stages", "sink") if key in sections}})


@dataclass(frozen=True)
class _CallWriter:
    """Writes the settings of one call."""

    call: PythonCall

    def write_settings(self) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for key, value in self.call.settings.items():
            if key == "uses":
                written[key] = value if isinstance(value, str) else self._write_path(value, "")
            elif key == "with":
                written[key] = {name: self._write_value(inner, f"`{name}`: ") for name, inner in value.items()}
            else:
                written[key] = self._write_setting(key, value)
        return written

    def _write_setting(self, key: str, value: Any) -> Any:
        """Return the value of a key that is not a target. A predicate without arguments is only its path."""
        written = self._write_value(value, f"`{key}`: ")
        is_path = key == "when" and callable(value) and not isinstance(value, Deferred)
        return written["uses"] if is_path else written

    def _write_value(self, value: Any, place: str) -> Any:
        """Return an argument as a YAML value. `place` names it in errors."""
        if isinstance(value, str):
            return str(value).replace("${", "$${")
        if value is None or type(value) in {bool, int, float}:
            return value
        if type(value) is list:
            return [self._write_value(inner, place) for inner in value]
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {key: self._write_value(inner, place) for key, inner in value.items()}
        if isinstance(value, Deferred):
            path = value.target if isinstance(value.target, str) else self._write_path(value.target, place)
            arguments = {name: self._write_value(inner, f"`{name}`: ") for name, inner in value.arguments.items()}
            return {"uses": path, "with": arguments} if arguments else {"uses": path}
        if type(value) is tuple:
            raise self._refuse(place, f"YAML has no tuples; pass the list {format_argument(list(value))}")
        if inspect.isclass(value):  # in a config, a class is always instantiated
            raise self._refuse(place, f"a config cannot hold the class `{value.__qualname__}` itself")
        return {"uses": self._write_path(value, place)}

    def _write_path(self, value: Any, place: str) -> str:
        """Return the import path of a function, class or constant."""
        label = format_argument(value)
        if isinstance(value, functools.partial):
            raise self._refuse(place, f"a config cannot hold `{label}`; write a function")
        if getattr(value, "__module__", None) in SCRIPT_MODULES:
            raise self._refuse(
                place, f"`{label}` is in the running script, which workers do not import; {_MODULE_HINT}"
            )
        path = _find_path(value)
        if path is not None:
            return path
        kind = "a lambda" if label == "lambda" else f"`{label}`"
        raise self._refuse(place, f"a config cannot name {kind}; {_MODULE_HINT}")

    def _refuse(self, place: str, reason: str) -> UsageError:
        name = self.call.settings.get("name")
        stage = f"stage `{name}`" if self.call.section == "stages" else f"the {self.call.section or 'options'}"
        return UsageError(f"to_yaml: {stage}, {self.call.text}: {place}{reason}")


def _find_path(value: Any) -> str | None:
    """Return the import path of a value, from the outermost package that has it. Imports nothing."""
    names = [getattr(value, attribute, None) for attribute in ("__qualname__", "__name__")]
    if isinstance(value, enum.Enum):
        module, names = type(value).__module__, [f"{type(value).__qualname__}.{value.name}"]
    elif any(names):
        module = getattr(value, "__module__", None) or _find_module(value, names[0] or "")
    else:  # a constant such as torch.float32
        module, _, names[0] = repr(value).rpartition(".")
    if module.startswith(FILE_MODULE_PREFIX):
        return f"{sys.modules[module].__file__}:{names[0]}"
    return find_import_path(value, module, [name for name in names if name])


def _find_module(value: object, name: str) -> str:
    """Return the loaded module of a value without `__module__`, such as `cv2.imdecode`, or ""."""
    return next(
        (module for module in list(sys.modules) if module not in SCRIPT_MODULES and has_object(module, name, value)), ""
    )
