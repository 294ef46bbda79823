"""Finds the files that hold the code of a pipeline's targets, without importing them. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stagepipe.config.static_analysis import BrokenSourceError, Definition, DefinitionLookup, ModuleFinder, ParsedModule
from stagepipe.core import Deferred
from stagepipe.spec import PipelineSpec

_TARGET_KEYS = ("uses", "dataset")
"""Keys of arguments whose text is an import path."""


class NoFileError(LookupError):
    """Code that lies in no file, such as a function of a notebook: nobody can tell whether it has changed."""


def find_target_files(spec: PipelineSpec) -> tuple[Path, ...]:
    """Return the files that define the source and the stages, and what their arguments build or hold.

    Compiled modules have none. Raises NoFileError for code of an interactive session.
    """
    lookup = DefinitionLookup(ModuleFinder(spec.config_dir))
    targets = [spec.source.target, *(stage.target for stage in spec.stages)]
    files = {
        file
        for target in targets
        for value in iter_code({"uses": target.uses, "with": target.arguments})
        if (file := _find_file_of_path(value, lookup) if isinstance(value, str) else _find_file_of_object(value))
    }
    return tuple(sorted(files))


def iter_code(value: Any) -> Iterator[Any]:
    """Yield each import path and each object in a target, at any depth."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(inner, str):
                yield from [inner] if key in _TARGET_KEYS else []
            elif not (key in _TARGET_KEYS and isinstance(inner, list | tuple)):  # a source's items, which may be many
                yield from iter_code(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from iter_code(inner)
    elif isinstance(value, Deferred):
        yield from iter_code({"uses": value.target, "with": value.arguments})
    elif isinstance(value, functools.partial):
        yield from iter_code({"uses": value.func, "with": {**value.keywords, "args": value.args}})
    elif hasattr(value, "__module__"):  # not a number or a text
        yield value


def _find_file_of_path(path: str, lookup: DefinitionLookup) -> Path | None:
    try:
        found = lookup.find_target(path)
    except BrokenSourceError as error:
        return error.path
    module = found.module if isinstance(found, Definition) else found
    return module.path if isinstance(module, ParsedModule) else None


def _find_file_of_object(value: Any) -> Path | None:
    file = getattr(sys.modules.get(value.__module__), "__file__", None)
    if file is None and value.__module__ == "__main__":
        raise NoFileError(type(value).__name__)
    return None if file is None else Path(file).resolve()
