"""Compares specs that name the same code in different ways: by its path, or as the object itself."""

import dataclasses
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

from stagepipe.core import import_target
from stagepipe.spec import PipelineSpec, Target


def comparable(spec: PipelineSpec, folder: Path | None = None) -> dict[str, Any]:
    """The spec with each path replaced by the object that it names, without what says where and how it was written.

    `uses_torch` is left out too: it is only known of targets that are paths.
    """
    fields: dict[str, Any] = _comparable(spec, spec.config_dir or folder)
    return {
        key: value
        for key, value in fields.items()
        if not key.startswith("config_") and key not in {"source_sha256", "uses_torch"}
    }


def _comparable(value: Any, folder: Path | None) -> Any:
    if isinstance(value, Target):
        return {"uses": _resolve(value.uses, folder), "with": _arguments(value.arguments, folder)}
    if dataclasses.is_dataclass(value):
        return {field.name: _comparable(getattr(value, field.name), folder) for field in dataclasses.fields(value)}
    return [_comparable(inner, folder) for inner in value] if isinstance(value, tuple) else value


def _import(uses: Any, folder: Path | None) -> Any:
    return import_target(uses, folder) if isinstance(uses, str) else uses


def _resolve(uses: Any, folder: Path | None) -> Any:
    """The object that `uses` names. What a file defines is named by the file: it can be imported under two names."""
    found = _import(uses, folder)
    file = getattr(sys.modules.get(getattr(found, "__module__", "")), "__file__", None)
    return (file, found.__qualname__) if file and isinstance(found, FunctionType | type) else found


def _arguments(value: Any, folder: Path | None) -> Any:
    if isinstance(value, FunctionType):
        return _resolve(value, folder)
    if isinstance(value, dict) and "uses" in value:
        target = _resolve(value["uses"], folder)
        # A nested target without arguments that is no class is the object itself.
        if not value.get("with") and not isinstance(_import(value["uses"], folder), type):
            return target
        return {"uses": target, "with": _arguments(value.get("with") or {}, folder)}
    if isinstance(value, dict):
        return {key: _arguments(inner, folder) for key, inner in value.items()}
    return type(value)(_arguments(inner, folder) for inner in value) if type(value) in {list, tuple} else value
