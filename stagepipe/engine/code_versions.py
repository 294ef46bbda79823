"""Describes the code of a pipeline, as lines of text: files by their content, installed packages by version.

In the caller's process. Nothing is imported. What a file of the user imports counts too.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from stagepipe.config import ModuleLocator
from stagepipe.core import VERSION
from stagepipe.engine.imported_code import collect_imported_code


def describe_code(files: Iterable[Path], locator: ModuleLocator) -> dict[str, str]:
    """Return a line for each file of the user that `files` need, and for each installed package that they import.

    Raises OSError and `TooManyFilesError`.
    """
    code = collect_imported_code(files, locator)
    lines = {f"code.{number}": f"{name} {digest}" for number, (name, digest) in enumerate(sorted(code.digests))}
    lines |= {f"version.{name}": version for name, version in _find_versions(code.packages)}
    return lines | {
        "version.python": platform.python_version(),
        "version.stagepipe": VERSION,
        "version.numpy": np.__version__,
    }


def _find_versions(packages: set[str]) -> Iterator[tuple[str, str]]:
    distributions = _map_packages(_read_path_times()) if packages else {}
    for package in sorted(packages):
        for distribution in sorted(set(distributions.get(package, []))):
            yield distribution, importlib.metadata.version(distribution)


def _read_path_times() -> tuple[tuple[str, int], ...]:
    """The folders from which packages are imported, and when an entry of each was last added, renamed or removed."""
    times = []
    for folder in sys.path:
        with contextlib.suppress(OSError):
            times.append((folder, Path(folder).stat().st_mtime_ns))
    return tuple(times)


@functools.lru_cache(maxsize=1)
def _map_packages(_path_times: tuple[tuple[str, int], ...]) -> Mapping[str, list[str]]:
    """The distributions that provide each package. To read it from hundreds of them takes half a second."""
    return importlib.metadata.packages_distributions()
