"""The import paths of classes and functions: the one to write in a config, and the one in saved files. Imports nothing.

A built-in class is known by its public path, `stagepipe.sources.JsonlSource`, wherever in the package it is defined.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Sequence
from typing import Final

_SOURCES: Final = "stagepipe.sources."


def find_import_path(value: object, module: str, names: Sequence[str]) -> str | None:
    """The shortest import path of what `module` defines: that of the outermost package that has it. None if none has.

    >>> import json
    >>> find_import_path(json.JSONDecoder, "json.decoder", ["JSONDecoder"])
    'json.JSONDecoder'
    """
    packages = itertools.accumulate(module.split("."), "{}.{}".format)
    paths = ((package, name) for package in packages for name in names)
    return next((f"{package}.{name}" for package, name in paths if has_object(package, name, value)), None)


def get_class_path(cls: type) -> str:
    """The shortest import path of a class; of one that cannot be imported, its module and name.

    >>> from fractions import Fraction
    >>> get_class_path(Fraction)
    'fractions.Fraction'
    """
    path = find_import_path(cls, cls.__module__, [cls.__qualname__])
    return f"{cls.__module__}.{cls.__qualname__}" if path is None else path


def has_object(module: str, name: str, value: object) -> bool:
    """Whether a loaded module has the value under this name. Loads nothing lazily."""
    first, *others = name.split(".")
    found = getattr(sys.modules.get(module), "__dict__", {}).get(first)
    return functools.reduce(lambda owner, attribute: getattr(owner, attribute, None), others, found) is value


def get_recorded_module(module: str) -> str:
    """The name of a module in states and dead letters. Those of the sources leave out the subfolder.

    Saved files name the classes of the sources by modules that all lie in one folder. They must remain readable.

    >>> get_recorded_module("stagepipe.sources.record_files.jsonl_source"), get_recorded_module("json.decoder")
    ('stagepipe.sources.jsonl_source', 'json.decoder')
    """
    return _SOURCES + module.rpartition(".")[2] if module.startswith(_SOURCES) else module
