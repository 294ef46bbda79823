"""Finds the files with the code of targets, and the packages that they import and this machine lacks.

The answers come from source files; no target is imported. The packages are the imports at the top of a target's module,
in its own function, and at the top of the user's modules that these import; for a built-in, also the packages that it
requests. Imports within `try` or `if` are optional.
"""

from __future__ import annotations

import ast
import functools
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from stagepipe.config.source_code import (
    BrokenSourceError,
    Definition,
    DefinitionLookup,
    ModuleFinder,
    ModuleLocator,
    ParsedModule,
    resolve_relative_import,
)
from stagepipe.core import PACKAGE_DIR, Deferred, find_install_command
from stagepipe.spec import PipelineSpec, Target

_TARGET_KEYS = ("uses", "dataset")
"""Keys of arguments whose text is an import path."""


def find_target_files(targets: Iterable[Target], config_dir: Path | None) -> tuple[Path, ...]:
    """Return the files that define the targets and the objects that their arguments build or contain.

    Compiled modules and objects of an interactive session have no file; the fingerprint of an object covers its code.
    """
    lookup = DefinitionLookup(ModuleFinder(config_dir))
    values = (value for target in targets for value in iter_code({"uses": target.uses, "with": target.arguments}))
    found = {_find_file_of_path(value, lookup) if isinstance(value, str) else _find_file(value) for value in values}
    return tuple(sorted(file for file in found if file))


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


def _find_file(value: Any) -> Path | None:
    file = getattr(sys.modules.get(value.__module__), "__file__", None)
    return None if file is None else Path(file).resolve()


_PACKAGE_FOLDERS: Final = ("site-packages", "dist-packages")
_STDLIB_FOLDERS: Final = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))


def find_installed_package(file: Path) -> str | None:
    """Return the top-level name of the installed package or module of a file; None for a file of the user.

    >>> find_installed_package(Path(ast.__file__)), find_installed_package(Path("my_ops.py"))
    ('ast', None)
    """
    file = file.resolve()
    if file.is_relative_to(PACKAGE_DIR):
        return PACKAGE_DIR.name
    for number, part in enumerate(file.parts[:-1]):
        if part in _PACKAGE_FOLDERS:
            return file.parts[number + 1].partition(".")[0]
    folder = next((folder for folder in _STDLIB_FOLDERS if file.is_relative_to(folder)), None)
    return None if folder is None else file.relative_to(folder).parts[0].partition(".")[0]


def find_missing_packages(spec: PipelineSpec) -> Iterator[str]:
    """Yield a line for each missing package, with its importer and the install command."""
    finder = _MissingFinder(ModuleFinder(spec.config_dir))
    targets = [("source", spec.source.target), *((f"stage {stage.name}", stage.target) for stage in spec.stages)]
    targets += [("sink", sink.target) for sink in spec.sinks]
    users_by_package: dict[str, str] = {}
    for owner, target in targets:
        for package, place in finder.find(target):
            users_by_package.setdefault(package, f"{owner}: {place}" if place else owner)
    for package, user in users_by_package.items():
        yield f"{user} needs {package}, which is not installed: {find_install_command(package)}"


class _MissingFinder:
    """Yields missing packages, each with the line that imports it; "" for a package that a built-in requests."""

    def __init__(self, module_finder: ModuleFinder) -> None:
        self._lookup = DefinitionLookup(module_finder)
        self._locator = ModuleLocator(module_finder.search_paths)
        self._seen: set[str] = set()

    def find(self, target: Target) -> Iterator[tuple[str, str]]:
        """Yield the missing packages of a target and of the targets in its arguments."""
        for path in iter_code({"uses": target.uses, "with": target.arguments}):
            try:
                found = self._lookup.find_target(path) if isinstance(path, str) else None
                if isinstance(found, Definition):
                    yield from self._find_in_definition(found)
            except BrokenSourceError:  # in a module that the target's module imports; a run reports it
                continue

    def _find_in_definition(self, definition: Definition) -> Iterator[tuple[str, str]]:
        module = definition.module
        if _is_own(module):
            yield from self._find_in_built_in(definition)
        elif module.path is not None and find_installed_package(module.path) is None:
            yield from self._find_in_module(module)
            yield from self._check(definition.node.body, module)

    def _find_in_built_in(self, definition: Definition) -> Iterator[tuple[str, str]]:
        """Yield missing imports of the module, and packages that the class or its bases request by `import_extra`."""
        module, node = definition.module, definition.node
        statements = module.tree.body if module.tree else []
        missing = {package for package, _ in self._check(statements, module)}
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "import_extra":
                package = call.args[0]
                if isinstance(package, ast.Constant) and not self._exists(str(package.value)):
                    missing.add(str(package.value))
        yield from ((package, "") for package in sorted(missing))
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            name = base.value if isinstance(base, ast.Subscript) else base
            found = self._lookup.resolve_path(module, [name.id]) if isinstance(name, ast.Name) else None
            if isinstance(found, Definition) and _is_own(found.module):
                yield from self._find_in_built_in(found)

    def _find_in_module(self, module: ParsedModule) -> Iterator[tuple[str, str]]:
        """Yield missing imports at the top of a user's module, and of the modules that it imports."""
        if module.tree is None or str(module.path) in self._seen:
            return
        self._seen.add(str(module.path))
        yield from self._check(module.tree.body, module)
        for name, _ in _iter_imports(module.tree.body, module):
            imported = self._lookup.module_finder.find(name) if self._is_users(name) else None
            if imported is not None:
                yield from self._find_in_module(imported)

    def _check(self, statements: Iterable[ast.stmt], module: ParsedModule) -> Iterator[tuple[str, str]]:
        for name, line in _iter_imports(statements, module):
            package = name.partition(".")[0]
            if package and not self._exists(package):
                yield package, f"{module.path}:{line}"

    def _exists(self, package: str) -> bool:
        return self._locator.find(package) is not None

    def _is_users(self, name: str) -> bool:
        location = self._locator.find(name.partition(".")[0])
        return location is not None and (location.file is None or find_installed_package(location.file) is None)


def _is_own(module: ParsedModule) -> bool:
    return module.path is not None and module.path.is_relative_to(PACKAGE_DIR)


def _iter_imports(statements: Iterable[ast.stmt], module: ParsedModule) -> Iterator[tuple[str, int]]:
    """Yield the modules that statements import, with the line; imports in `try` and `if` are omitted."""
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from ((alias.name, statement.lineno) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            name = resolve_relative_import(statement, module)
            yield from ((f"{name}.{alias.name}", statement.lineno) for alias in statement.names)
            yield name, statement.lineno
