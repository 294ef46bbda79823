"""Writes the calls of a builder as a YAML config. Refuses what a config cannot name, with the stage. Pure."""

from __future__ import annotations

import enum
import functools
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from stagepipe.builder.targets import format_argument
from stagepipe.config import PythonCall, write_yaml
from stagepipe.core import FILE_MODULE_PREFIX, Deferred, UsageError, find_import_path, has_object

_MODULE_HINT: Final = "move it to a module as a function or class"
_DEFAULT_NAME: Final = "pipeline"


def write_calls(calls: Sequence[PythonCall]) -> str:
    """Return the YAML of a builder's calls. Raises UsageError for what YAML cannot hold."""
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
        """Return a key that is not a target. A predicate without arguments is its path alone."""
        written = self._write_value(value, f"`{key}`: ")
        is_path = key == "when" and callable(value) and not isinstance(value, Deferred)
        return written["uses"] if is_path else written

    def _write_value(self, value: Any, place: str) -> Any:
        """Return an argument as YAML holds it. `place` names it in an error."""
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
        if getattr(value, "__module__", None) == "__main__":
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
    """Return the import path of a value: that of the outermost package that has it. Imports nothing."""
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
    """Return the module of a value that does not say its own, such as `cv2.imdecode`, among those that are loaded."""
    return next(
        (module for module in list(sys.modules) if module != "__main__" and has_object(module, name, value)), ""
    )
