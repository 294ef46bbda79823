"""Looks up objects of the standard library, whose modules are safe to import.

Runs in the process that loads the config.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from stagepipe.config.static_analysis.lookup import MissingName
from stagepipe.core import names_file, split_target_path

_MODULES_WITH_SIDE_EFFECTS: Final = frozenset(
    {"antigravity", "this", "idlelib", "turtledemo", "__main__", "test", "lib2to3"}
)
"""Standard modules with side effects on import."""


@dataclass(frozen=True)
class StdlibObject:
    """An object of the standard library."""

    value: object


def find_stdlib_object(path: str) -> StdlibObject | MissingName | None:
    """Return the object that `path` names if its module is in the standard library, otherwise None."""
    module_path, attributes = split_target_path(path)
    if names_file(module_path):
        return None
    names = [*module_path.split("."), *((attributes or "").split(".") if attributes else [])]
    module, attribute_names = _import_longest_prefix(names)
    if module is None:
        return None
    owner: object = module
    for name in attribute_names:
        attribute = inspect.getattr_static(owner, name, _MISSING)
        if attribute is _MISSING:
            return _make_missing_name(owner, name)
        owner = getattr(owner, name) if inspect.isclass(owner) else attribute
    return StdlibObject(owner)


_MISSING: Final = object()


def _make_missing_name(owner: object, name: str) -> MissingName | None:
    if hasattr(owner, "__getattr__"):
        return None
    return MissingName(getattr(owner, "__name__", type(owner).__name__), name, tuple(dir(owner)))


def _import_longest_prefix(names: list[str]) -> tuple[ModuleType | None, list[str]]:
    """Import the longest prefix of `names` that is a module. Return it and the remaining names."""
    top_level_name = names[0]
    if top_level_name not in sys.stdlib_module_names or top_level_name in _MODULES_WITH_SIDE_EFFECTS:
        return None, names
    for end in range(len(names) - 1, 0, -1):
        try:
            return importlib.import_module(".".join(names[:end])), names[end:]
        except Exception:  # noqa: BLE001, S112 - not a module, or missing on this machine
            continue
    return None, names
