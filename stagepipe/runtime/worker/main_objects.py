"""Puts the classes and functions of the caller's `__main__` into the worker's own, where items find them by name."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from typing import Any


def install_main_objects(main_objects: Mapping[str, Any], pickles: Mapping[str, bytes]) -> None:
    """Define `main_objects` in `__main__`, and those of `pickles` when their name is looked up for the first time."""
    main = sys.modules["__main__"]

    def load(name: str) -> Any:
        if name not in pickles:
            raise AttributeError(f"module '__main__' has no attribute {name!r}")
        _define(vars(main), pickle.loads(pickles[name]))
        return vars(main)[name]

    vars(main)["__getattr__"] = load  # PEP 562
    _define(vars(main), main_objects)


def _define(namespace: dict[str, Any], objects: Mapping[str, Any]) -> None:
    """Define top-level objects. One inside a class is there already, and gets back its qualified name."""
    for name, value in objects.items():
        if "." in name:
            value.__qualname__ = name
        else:
            namespace[name] = value
