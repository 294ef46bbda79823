"""Lazy faces: a package imports each of its names on first use, so that a worker loads only what it needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A module `__getattr__` (PEP 562) for `package`. `modules` maps each name to the submodule that defines it.

    >>> __getattr__ = lazy_names("stagepipe.core", {"parse_bytes": "units"})
    >>> __getattr__("parse_bytes")("1 kB")
    1000
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return load
