"""The code of a pipeline as lines of text, without importing anything.

What a stage's cache depends on are files by their content and installed packages by version: imports are followed from
file to file, without walking through folders, and not into what is installed. What a resume warns of are the files of
the stages that a config names, each by itself: this takes milliseconds. Objects from Python have fingerprints, which a
state compares.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from sys import stdlib_module_names
from typing import Final, NamedTuple

import numpy as np

from stagepipe.config import ModuleLocation, ModuleLocator, find_in_folders, find_target_files
from stagepipe.core import PACKAGE_DIR, VERSION
from stagepipe.spec import PipelineSpec

MAX_FILES: Final = 2_000
"""Files of the user that count. To read and parse one takes some milliseconds, so a start would wait for many."""

_OWN_FOLDER: Final = Path(__file__).resolve().parents[1]
_PACKAGE_FOLDERS: Final = ("site-packages", "dist-packages")
_STDLIB_FOLDERS: Final = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
_IMPORT_CALLS: Final = frozenset({"import_module", "__import__"})


class TooManyFilesError(Exception):
    """Code imports more than `MAX_FILES` files that are not installed."""


class ImportedCode(NamedTuple):
    """What files need: the path and the digest of each file of the user, and the top-level names of the other code.

    Paths start at the folder that all files share, so a project may be moved, but two files may not be exchanged.
    """

    digests: set[tuple[str, str]]
    packages: set[str]


class _ImportedName(NamedTuple):
    """A name in an import: `level` is the number of leading dots. The last parts may be a function or class."""

    level: int
    parts: tuple[str, ...]


def collect_imported_code(files: Iterable[Path], locator: ModuleLocator) -> ImportedCode:
    """Return the code of `files` and of all that they import. Raises OSError and TooManyFilesError."""
    return _ImportFollower(locator).follow(files)


class _ImportFollower:
    """Reads each file of the user once."""

    def __init__(self, locator: ModuleLocator) -> None:
        self._locator = locator
        self._import_folders = [Path(os.path.abspath(folder)) for folder in locator.search_paths]  # noqa: PTH100
        self._pending: list[Path] = []
        self._own_files: set[Path] = set()
        self._installed_files: set[Path] = set()
        self._package_folders: set[Path] = set()
        """Folders whose `__init__` has been looked for."""
        self._packages: set[str] = set()

    def follow(self, files: Iterable[Path]) -> ImportedCode:
        digests: dict[Path, str] = {}
        for file in files:
            self._add(file)
        while self._pending:
            if len(self._own_files) > MAX_FILES:
                message = f"it imports more than {MAX_FILES:,} files that are not installed"
                raise TooManyFilesError(message)
            file = self._pending.pop()
            stat = file.stat()
            digests[file] = hashlib.sha256(file.read_bytes()).hexdigest()
            for name in _read_imports(file, stat.st_mtime_ns, stat.st_size):
                self._add_import(name, file)
            self._add_packages(file)
        shared = os.path.commonpath([file.parent for file in digests]) if digests else ""
        named = {(file.relative_to(shared).as_posix(), digest) for file, digest in digests.items()}
        return ImportedCode(named, self._packages)

    def _add(self, file: Path) -> bool:
        """Add a file, and return whether it is the user's."""
        file = Path(os.path.abspath(file))  # noqa: PTH100 - a relative import starts where a link is, not where it leads
        if file in self._own_files or file in self._installed_files:
            return file in self._own_files
        package = _find_installed_package(file.resolve())
        if package is None:
            self._own_files.add(file)
            self._pending.append(_find_archive(file))
        else:
            self._installed_files.add(file)
            self._packages |= {package} - stdlib_module_names
        return package is None

    def _add_import(self, name: _ImportedName, importer: Path) -> None:
        """Add the file of a module and those of the packages around it, whose `__init__` an import runs first."""
        is_found = False
        for location in self._iter_locations(name, importer):
            is_found = True
            if not (location.is_namespace if location.file is None else self._add(location.file)):
                return  # installed, or built into Python
        if not is_found and not name.level:
            self._packages |= {name.parts[0]} - stdlib_module_names

    def _iter_locations(self, name: _ImportedName, importer: Path) -> Iterator[ModuleLocation]:
        """Yield where each module of a dotted name is, from the outermost package to the last that is a module."""
        folders: Sequence[str] | None = None
        if name.level:
            folders = self._find_package_folders(importer, name.level)
        elif self._locator.find(name.parts[0]) is None:  # a script that extends `sys.path` when it runs
            folders = [str(importer.parent), str(_find_top_folder(importer))]
        for number, part in enumerate(name.parts, start=1):
            dotted = ".".join(name.parts[:number])
            location = self._locator.find(dotted) if folders is None else find_in_folders(part, folders)
            if location is None:
                return
            yield location
            if folders is not None:
                folders = location.search_paths or ()

    def _find_package_folders(self, importer: Path, level: int) -> list[str]:
        """Return the folders of the package from which a relative import starts; several without `__init__`."""
        if level > len(importer.parents):
            return []
        package = importer.parents[level - 1]
        if (package / "__init__.py").is_file():
            return [str(package)]
        portions = [
            folder / package.relative_to(inner)
            for inner in self._import_folders
            if package != inner and package.is_relative_to(inner)
            for folder in self._import_folders
        ]
        return [str(portion) for portion in dict.fromkeys([package, *portions])]

    def _add_packages(self, file: Path) -> None:
        """Add the `__init__` of each package around a file, up to the outermost folder of the import path."""
        outermost = min((folder for folder in self._import_folders if folder in file.parents), key=_depth, default=None)
        for folder in file.parents:
            if folder == outermost or folder in self._package_folders:
                return
            self._package_folders.add(folder)
            init = folder / "__init__.py"
            if init.is_file():
                self._add(init)
            elif outermost is None:
                return


def _depth(folder: Path) -> int:
    return len(folder.parts)


def _find_installed_package(file: Path) -> str | None:
    """Return the top-level name of the installed package or module of a file; None for a file of the user."""
    if file.is_relative_to(_OWN_FOLDER):
        return _OWN_FOLDER.name
    for number, part in enumerate(file.parts[:-1]):
        if part in _PACKAGE_FOLDERS:
            return file.parts[number + 1].partition(".")[0]
    folder = next((folder for folder in _STDLIB_FOLDERS if file.is_relative_to(folder)), None)
    return None if folder is None else file.relative_to(folder).parts[0].partition(".")[0]


def _find_archive(file: Path) -> Path:
    """Return the file, or the archive that contains it."""
    return next((path for path in (file, *file.parents) if path.is_file()), file)


def _find_top_folder(file: Path) -> Path:
    """Return the folder that contains the top package of a file, or the file itself."""
    return next(folder for folder in file.parents if not (folder / "__init__.py").is_file() or folder == folder.parent)


@functools.lru_cache(maxsize=2 * MAX_FILES)
def _read_imports(file: Path, mtime_ns: int, size_bytes: int) -> frozenset[_ImportedName]:
    """Return what a file imports, also within functions; nothing of one that is not Python."""
    del mtime_ns, size_bytes  # cache keys: a changed file is parsed again
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes; Python warns about them on import
        names = (name for node in ast.walk(ast.parse(file.read_bytes())) for name in _iter_names(node))
        return frozenset(name for name in names if name.parts and all(part.isidentifier() for part in name.parts))
    return frozenset()


def _iter_names(node: ast.AST) -> Iterator[_ImportedName]:
    match node:
        case ast.Import(names=names):
            yield from (_ImportedName(0, tuple(alias.name.split("."))) for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            parts = tuple(module.split(".")) if module else ()
            yield from (
                _ImportedName(level, (*parts, alias.name)[: -1 if alias.name == "*" else None]) for alias in names
            )
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(text)), *_]) if (
            name in _IMPORT_CALLS
        ):
            stripped = text.lstrip(".")
            yield _ImportedName(len(text) - len(stripped), tuple(stripped.split(".")))
        case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=parts) | ast.Tuple(elts=parts)):
            # `from package import *` imports the modules that `__all__` of the package lists.
            texts = (part.value for part in parts if isinstance(part, ast.Constant))
            yield from (_ImportedName(1, (text,)) for text in texts if isinstance(text, str))


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


_DIGEST_BYTES: Final = 8


def describe_stage_code(spec: PipelineSpec) -> dict[str, tuple[str, str]]:
    """Return the file and its digest of each stage, and of the source. Those of this package are left out."""
    source = spec.source
    targets = {"source": source.target, **{f"stage {stage.name}": stage.target for stage in spec.stages}}
    code: dict[str, tuple[str, str]] = {}
    for place, target in targets.items():
        if not isinstance(target.uses, str):
            continue
        files = find_target_files(
            replace(spec, source=replace(source, target=replace(target, arguments={})), stages=())
        )
        for file in files:
            if not file.is_relative_to(PACKAGE_DIR) and (digest := _hash_file(file)):
                code[place] = (str(file), digest)
    return code


def find_changed_code(saved: Mapping[str, str], current: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the stages whose file has another digest than in `saved`, with the file.

    >>> find_changed_code({"stage a": "12", "stage b": "34"}, {"stage a": ("a.py", "12"), "stage b": ("b.py", "56")})
    ['stage b (b.py)']
    """
    return [f"{place} ({file})" for place, (file, digest) in current.items() if saved.get(place, digest) != digest]


def _hash_file(file: Path) -> str:
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=_DIGEST_BYTES).hexdigest()
    except OSError:  # of a module in an archive
        return ""
