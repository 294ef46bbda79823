"""Describes the code of a pipeline, as lines of text: files by their content, installed packages by version.

In the caller's process. Nothing is imported. What a file imports from its own folder counts too, and of a package all
modules do.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.metadata
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from stagepipe.core import VERSION

_INSTALLED_FOLDERS: Final = tuple(
    Path(folder).resolve()
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (folder := sysconfig.get_paths().get(name))
)
_OWN_FOLDER: Final = Path(__file__).resolve().parents[1]


def describe_code(files: Iterable[Path]) -> dict[str, str]:
    """Return a line for each file of the user that `files` need, and for each installed package that they import."""
    sources, packages = _collect({file.resolve() for file in files})
    lines = {f"code.{number}": f"{name} {digest}" for number, (name, digest) in enumerate(sorted(sources))}
    lines |= {f"version.{name}": version for name, version in _find_versions(packages)}
    return lines | {
        "version.python": platform.python_version(),
        "version.stagepipe": VERSION,
        "version.numpy": np.__version__,
    }


def _collect(files: set[Path]) -> tuple[list[tuple[str, str]], set[str]]:
    """Return the name and the digest of each file of the user, and the names of the installed packages."""
    packages: set[str] = set()
    sources: list[tuple[str, str]] = []
    pending, seen = list(files), set(files)
    while pending:
        path = pending.pop()
        if _is_installed(path):
            packages |= {_find_top_package(path)}
            continue
        data = path.read_bytes()
        sources.append((path.name, hashlib.sha256(data).hexdigest()))
        for name in _find_imports(data):
            found = _find_local(name, path)
            packages |= set() if found else {name}
            pending += [file for file in found if file not in seen]
            seen |= set(found)
        package = {file for file in _find_own_package(path) if file not in seen}
        pending += package
        seen |= package
    return sources, packages


def _is_installed(path: Path) -> bool:
    return path.is_relative_to(_OWN_FOLDER) or any(path.is_relative_to(folder) for folder in _INSTALLED_FOLDERS)


def _find_top_package(path: Path) -> str:
    if path.is_relative_to(_OWN_FOLDER):
        return "stagepipe"
    folders = [folder for folder in _INSTALLED_FOLDERS if path.is_relative_to(folder)]
    nearest = max(folders, key=lambda folder: len(folder.parts))
    return path.relative_to(nearest).parts[0].removesuffix(".py")


def _find_imports(data: bytes) -> set[str]:
    """Return the top-level names that a file imports; nothing of one that is not Python."""
    names: set[str] = set()
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(data)):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names)


def _find_local(name: str, importer: Path) -> list[Path]:
    """Return the files of a module or package beside the importer's top package."""
    folder = (_find_package_root(importer) or importer).parent
    module, package = folder / f"{name}.py", folder / name
    if module.is_file():
        return [module]
    return sorted(package.rglob("*.py")) if package.is_dir() else []


def _find_package_root(path: Path) -> Path | None:
    """Return the folder of the top package that a file belongs to."""
    root = None
    folder = path.parent
    while (folder / "__init__.py").is_file():
        root, folder = folder, folder.parent
    return root


def _find_own_package(path: Path) -> list[Path]:
    root = _find_package_root(path)
    return [] if root is None else sorted(root.rglob("*.py"))


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
