"""The object at the end of an import path, where having it costs nothing: the standard library, what is imported."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from stagepipe.config.static.lookup import Absent
from stagepipe.core.targets import is_file, split_path

_WITH_EFFECTS: Final = frozenset({"antigravity", "this", "idlelib", "turtledemo", "__main__", "test", "lib2to3"})
"""Standard modules that do something when they are imported."""


@dataclass(frozen=True)
class Known:
    """An object that was found."""

    target: object


def cheap_object(path: str) -> Known | Absent | None:
    """What `path` names, if its module is of the standard library; None where finding out would run foreign code."""
    module_path, attributes = split_path(path)
    if is_file(module_path):
        return None
    words = [*module_path.split("."), *((attributes or "").split(".") if attributes else [])]
    module, rest = _module(words)
    if module is None:
        return None
    found: object = module
    for word in rest:
        inner = inspect.getattr_static(found, word, _NOTHING)
        if inner is _NOTHING:
            return _absent(found, word)
        found = getattr(found, word) if inspect.isclass(found) else inner
    return Known(found)


_NOTHING: Final = object()


def _absent(owner: object, word: str) -> Absent | None:
    if hasattr(owner, "__getattr__"):
        return None
    return Absent(getattr(owner, "__name__", type(owner).__name__), word, tuple(dir(owner)))


def _module(words: list[str]) -> tuple[ModuleType | None, list[str]]:
    """The longest module at the head of the words, and the words that are left."""
    top = words[0]
    if top not in sys.stdlib_module_names or top in _WITH_EFFECTS:
        return None, words
    for end in range(len(words) - 1, 0, -1):
        try:
            return importlib.import_module(".".join(words[:end])), words[end:]
        except Exception:  # noqa: BLE001, S112 - not a module, or one that this machine lacks
            continue
    return None, words
