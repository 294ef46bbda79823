"""Compares specs that name the same code in different ways: by its path, or as the object itself."""

import dataclasses
from pathlib import Path
from typing import Any

from stagepipe.core import import_target
from stagepipe.spec import PipelineSpec


def comparable(spec: PipelineSpec, folder: Path | None = None) -> dict[str, Any]:
    """The spec with every path replaced by the object that it names, and without what says where it was written."""
    folder = spec.config_dir or folder
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    for key in ("config_dir", "config_path", "config_sha256", "source_sha256"):
        del fields[key]
    fields["source"] = _target(spec.source, folder)
    fields["sink"] = None if spec.sink is None else _target(spec.sink, folder)
    fields["stages"] = [
        {field.name: getattr(stage, field.name) for field in dataclasses.fields(stage)} | _target(stage.target, folder)
        for stage in spec.stages
    ]
    for stage in fields["stages"]:
        del stage["target"]
    return fields


def _target(target: Any, folder: Path | None) -> dict[str, Any]:
    return {"uses": _resolve(target.uses, folder), "with": _arguments(target.arguments, folder)}


def _resolve(uses: Any, folder: Path | None) -> Any:
    return import_target(uses, folder) if isinstance(uses, str) else uses


def _arguments(value: Any, folder: Path | None) -> Any:
    if isinstance(value, dict) and "uses" in value:
        target = _resolve(value["uses"], folder)
        # A nested target without arguments that is no class is the object itself.
        if not value.get("with") and not isinstance(target, type):
            return target
        return {"uses": target, "with": _arguments(value.get("with") or {}, folder)}
    if isinstance(value, dict):
        return {key: _arguments(inner, folder) for key, inner in value.items()}
    return type(value)(_arguments(inner, folder) for inner in value) if type(value) in {list, tuple} else value
