"""Hashes a config: all of it, or the keys that determine the source's items. Pure.

The hash covers the config as written. A function or an object from Python counts by its name; what it does and contains
is compared where it matters, when a state is loaded.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from stagepipe.config.yaml import MapNode, to_plain
from stagepipe.core import get_recorded_module


def hash_source(resolved: MapNode) -> str:
    """Return the SHA-256 of the keys that determine the source's items, their numbers and their seeds."""
    source = resolved.get("source")
    selected = resolved.without(*(key for key in resolved.entries if key not in {"source", "seed"}))
    if isinstance(source, MapNode):
        target = source.without(*(key for key in source.entries if key not in {"uses", "with"}))
        arguments = target.get("with")
        if isinstance(arguments, MapNode):
            target = target.with_entry("with", arguments.without("collate_fn"))
        selected = selected.with_entry("source", target)
    return hash_config(selected)


def hash_config(resolved: MapNode) -> str:
    """Return the SHA-256 of a config with bases, overrides and variables resolved. Its layout does not matter."""
    value = _to_json_value(to_plain(resolved.without("vars", "extends")))
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _to_json_value(value: Any) -> Any:
    """Convert a value to JSON types. An object from Python becomes its name, since its address changes between runs."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else f"\0{key!r}": _to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_value(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    definition = value if hasattr(value, "__qualname__") and hasattr(value, "__module__") else type(value)
    return f"\0{get_recorded_module(str(definition.__module__))}.{definition.__qualname__}"
