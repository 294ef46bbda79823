"""Finds the files of modules by name, as an import would, without importing or reading them.

Runs in the process that loads the config.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ModuleLocation:
    """Where a module is. `file` is None for one without a file; `search_paths` are the folders of its submodules.

    `is_namespace`: a package without `__init__`, which has no code.
    """

    name: str
    file: Path | None = None
    is_source: bool = False
    is_namespace: bool = False
    search_paths: Sequence[str] | None = None


@dataclass
class ModuleLocator:
    """Finds modules in the folders of an import path, each name once."""

    search_paths: Sequence[str]
    _locations_by_name: dict[str, ModuleLocation | None] = field(default_factory=dict)

    def find(self, name: str) -> ModuleLocation | None:
        """Return where the module with that full name is, or None."""
        if name not in self._locations_by_name:
            self._locations_by_name[name] = self._find_uncached(name)
        return self._locations_by_name[name]

    def _find_uncached(self, name: str) -> ModuleLocation | None:
        parent_name = name.rpartition(".")[0]
        if not parent_name:
            return self._find_top_level(name)
        parent = self.find(parent_name)
        return None if parent is None or parent.search_paths is None else find_in_folders(name, parent.search_paths)

    def _find_top_level(self, name: str) -> ModuleLocation | None:
        for finder in sys.meta_path:
            paths = list(self.search_paths) if finder is PathFinder else None
            spec = _find_spec_or_none(finder.find_spec, name, paths)
            if spec is not None:
                return _make_location(spec)
        return None


def find_in_folders(name: str, folders: Sequence[str]) -> ModuleLocation | None:
    """Return where the last part of a module's full name is within the folders of its package, or None."""
    spec = _find_spec_or_none(PathFinder.find_spec, name, list(folders))
    return _find_namespace(name, folders) if spec is None else _make_location(spec)


def _find_spec_or_none(find_spec: object, name: str, paths: list[str] | None) -> ModuleSpec | None:
    """Call a finder. Editable installs add their own finders; one that raises counts as not found."""
    try:
        spec = find_spec(name, paths) if callable(find_spec) else None
    except Exception:  # noqa: BLE001
        return None
    return spec if isinstance(spec, ModuleSpec) else None


def _find_namespace(name: str, folders: Sequence[str]) -> ModuleLocation | None:
    """Find the folders of a package without `__init__`. PathFinder does only if its parent has been imported."""
    last = name.rpartition(".")[2]
    if not last.isidentifier():
        return None
    # Path.is_dir raises for a name that is too long for the file system.
    found = [str(path) for folder in folders if os.path.isdir(path := Path(folder, last))]  # noqa: PTH112
    return ModuleLocation(name=name, is_namespace=True, search_paths=found) if found else None


def _make_location(spec: ModuleSpec) -> ModuleLocation:
    locations = spec.submodule_search_locations
    return ModuleLocation(
        name=spec.name,
        file=Path(spec.origin) if spec.origin is not None and spec.has_location else None,
        is_source=isinstance(spec.loader, importlib.machinery.SourceFileLoader),
        is_namespace=spec.origin is None and locations is not None,
        search_paths=None if locations is None else list(locations),
    )
