"""Converts validated models to a PipelineSpec, and computes a config's fingerprints. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stagepipe.config.schema import ConfigModel
from stagepipe.config.yaml import MapNode, to_plain
from stagepipe.spec import PipelineSpec


def to_spec(model: ConfigModel, resolved: MapNode, path: Path | None) -> PipelineSpec:
    """Build the spec of a validated config. `resolved` is the same config as nodes, for the fingerprints."""
    spec: PipelineSpec = model.to_spec(
        config_dir=None if path is None else path.resolve().parent,
        config_path=path,
        config_sha256=compute_fingerprint(resolved),
        source_sha256=compute_fingerprint(_select_source_keys(resolved)),
    )
    return spec


def _select_source_keys(resolved: MapNode) -> MapNode:
    """Select the keys that determine the source's items, their numbers and their seeds."""
    source = resolved.get("source")
    selected = resolved.without(*(key for key in resolved.entries if key not in {"source", "seed"}))
    if not isinstance(source, MapNode):
        return selected
    return selected.with_entry("source", source.without("retries", "on_error"))


def compute_fingerprint(resolved: MapNode) -> str:
    """Return the SHA-256 of a config with bases, overrides and variables resolved. Its layout does not matter."""
    value = _to_canonical(to_plain(resolved.without("vars", "extends")))
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _to_canonical(value: Any) -> Any:
    """Convert a value to JSON types. An object from Python becomes its name, since its address changes between runs."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else f"\0{key!r}": _to_canonical(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_canonical(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    definition = value if hasattr(value, "__qualname__") and hasattr(value, "__module__") else type(value)
    return f"\0{definition.__module__}.{definition.__qualname__}"
