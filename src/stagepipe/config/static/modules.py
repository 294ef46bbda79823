"""Modules found and parsed without importing them, and the names that their top levels bind."""

from __future__ import annotations

import ast
import importlib.machinery
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from stagepipe.core.targets import import_paths


class BrokenSourceError(Exception):
    """A source file that Python could not compile."""

    def __init__(self, path: Path, line: int, column: int, message: str, source_line: str) -> None:
        super().__init__(message)
        self.path, self.line, self.column, self.message, self.source_line = path, line, column, message, source_line


@dataclass(frozen=True)
class Assigned:
    """A name bound to the value of an expression (None: to something that the source does not show)."""

    value: ast.expr | None = None


@dataclass(frozen=True)
class Imported:
    """A name bound by an import: a module, or a name of it."""

    module: str
    name: str | None = None


Binding = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | Assigned | Imported


@dataclass(eq=False)
class Module:
    """A module: its source, where there is one, and where its submodules lie."""

    name: str
    path: Path | None = None
    tree: ast.Module | None = None
    search: Sequence[str] | None = None

    @property
    def is_package(self) -> bool:
        """Whether it has submodules."""
        return self.search is not None

    @cached_property
    def bindings(self) -> dict[str, list[Binding]]:
        """What its top level binds, branches of `if` and `try` included, in the order of the source."""
        found: dict[str, list[Binding]] = {}
        for statement in flattened(self.tree.body if self.tree else []):
            for name, binding in _bound(statement, self):
                found.setdefault(name, []).append(binding)
        return found

    @cached_property
    def stars(self) -> list[str]:
        """The modules of which it imports everything."""
        imports = (s for s in flattened(self.tree.body if self.tree else []) if isinstance(s, ast.ImportFrom))
        return [absolute(s, self) for s in imports if any(alias.name == "*" for alias in s.names)]

    @cached_property
    def is_dynamic(self) -> bool:
        """Whether it can have names that its source does not show."""
        if self.tree is None or "__getattr__" in self.bindings:
            return True
        anywhere = any(_writes_globals(node) for node in ast.walk(self.tree))
        return anywhere or any(_makes_names(node) for node in _outside_functions(self.tree))

    def submodules(self) -> Iterator[str]:
        """The names of its direct submodules."""
        yield from (found.name for found in pkgutil.iter_modules(list(self.search or [])))


def _writes_globals(node: ast.AST) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "globals"
    return is_call or isinstance(node, ast.Global)


def _makes_names(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in {"exec", "eval", "setattr", "vars", "locals"}
    # sys.modules[__name__] = ...: a module that puts an object in its own place
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "modules"


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield inner
            yield from _outside_functions(inner)


def flattened(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements with those inside `if`, `try`, `with` and loops, but not inside functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            for inner in getattr(statement, part, ()):
                yield from flattened([inner] if isinstance(inner, ast.stmt) else inner.body)


def _bound(statement: ast.stmt, module: Module) -> Iterator[tuple[str, Binding]]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name, statement
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            top = alias.name.partition(".")[0]
            yield (alias.asname, Imported(alias.name)) if alias.asname else (top, Imported(top))
    elif isinstance(statement, ast.ImportFrom):
        source = absolute(statement, module)
        yield from ((a.asname or a.name, Imported(source, a.name)) for a in statement.names if a.name != "*")
    else:
        yield from _assigned(statement)


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, Binding]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id, Assigned(statement.value)
            else:
                yield from ((n.id, Assigned()) for n in ast.walk(target) if isinstance(n, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        if statement.value is not None:
            yield statement.target.id, Assigned(statement.value)
    elif isinstance(statement, ast.For | ast.AsyncFor):
        yield from ((n.id, Assigned()) for n in ast.walk(statement.target) if isinstance(n, ast.Name))
    elif isinstance(statement, ast.With | ast.AsyncWith):
        named = [item.optional_vars for item in statement.items if item.optional_vars is not None]
        yield from ((n.id, Assigned()) for target in named for n in ast.walk(target) if isinstance(n, ast.Name))


def absolute(statement: ast.ImportFrom, module: Module) -> str:
    """The module that a `from` names, without leading dots."""
    if not statement.level:
        return statement.module or ""
    parts = module.name.split(".")
    kept = parts[: len(parts) - statement.level + (1 if module.is_package else 0)]
    return ".".join([*kept, *([statement.module] if statement.module else [])])


@dataclass
class Modules:
    """The modules that a worker of a config in `config_dir` could import."""

    config_dir: Path | None = None
    _known: dict[str, Module | None] = field(default_factory=dict)

    @cached_property
    def paths(self) -> list[str]:
        """The import path of such a worker."""
        return import_paths(self.config_dir)

    def find(self, name: str) -> Module | None:
        """The module of that full name, or None. Raises BrokenSourceError."""
        if name not in self._known:
            self._known[name] = None  # while it is being looked for
            self._known[name] = self._find(name)
        return self._known[name]

    def file(self, path: Path) -> Module:
        """The module of a file that is named as a file. Raises BrokenSourceError."""
        name = f"file {path}"
        if name not in self._known:
            self._known[name] = Module(path.name, path, parse(path))
        found = self._known[name]
        return found if found is not None else Module(path.name, path)

    def _find(self, name: str) -> Module | None:
        parent_name, _, last = name.rpartition(".")
        if not parent_name:
            spec = self._top(name)
        else:
            parent = self.find(parent_name)
            if parent is None or parent.search is None:
                return None
            spec = _quietly(PathFinder.find_spec, name, list(parent.search))
            if spec is None:
                return _namespace(name, [Path(entry, last) for entry in parent.search]) if last.isidentifier() else None
        return None if spec is None else _read(spec)

    def _top(self, name: str) -> ModuleSpec | None:
        for finder in sys.meta_path:
            paths = self.paths if finder is PathFinder else None
            spec = _quietly(finder.find_spec, name, paths)
            if spec is not None:
                return spec
        return None

    def top_level_names(self) -> list[str]:
        """All that can be imported, for the nearest right word."""
        found = (module.name for module in pkgutil.iter_modules(self.paths))
        return [*found, *sys.stdlib_module_names]


def _quietly(find: object, name: str, paths: list[str] | None) -> ModuleSpec | None:
    """Finders are other people's code too (editable installs); one that fails finds nothing."""
    try:
        spec = find(name, paths) if callable(find) else None
    except Exception:  # noqa: BLE001
        return None
    return spec if isinstance(spec, ModuleSpec) else None


def _namespace(name: str, folders: list[Path]) -> Module | None:
    """A folder without `__init__` in a package. PathFinder finds it only where the package has been imported."""
    # Not Path.is_dir: it raises for a name that is too long to be one.
    found = [str(folder) for folder in folders if os.path.isdir(folder)]  # noqa: PTH112
    return Module(name, None, ast.Module([], []), found) if found else None


def _read(spec: ModuleSpec) -> Module:
    search = spec.submodule_search_locations
    locations = None if search is None else list(search)
    if spec.origin is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        path = Path(spec.origin)
        return Module(spec.name, path, parse(path), locations)
    is_namespace = spec.origin is None and locations is not None
    return Module(spec.name, None, ast.Module([], []) if is_namespace else None, locations)


def parse(path: Path) -> ast.Module | None:
    """The syntax tree of a file; None if it cannot be read. Raises BrokenSourceError."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return _parse(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=128)  # a config's targets take some twenty files; torch's own takes 60 ms
def _parse(path: Path, mtime_ns: int, size_bytes: int) -> ast.Module | None:
    del mtime_ns, size_bytes  # only tell one state of the file from another
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's escapes; they are shown when it is imported
            return ast.parse(path.read_bytes())
    except SyntaxError as error:
        line = (error.text or "").rstrip("\n")
        raise BrokenSourceError(path, error.lineno or 0, error.offset or 0, error.msg, line) from None
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
