"""Finds and parses modules without importing them, and lists the names that their top level binds.

Runs in the process that loads the config.
"""

from __future__ import annotations

import ast
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from stagepipe.config.static_analysis.locations import ModuleLocation, ModuleLocator
from stagepipe.core import import_paths


class BrokenSourceError(Exception):
    """A source file has a syntax error, at `line` and `column` (both from 1)."""

    def __init__(self, path: Path, line: int, column: int, message: str, source_line: str) -> None:
        super().__init__(message)
        self.path = path
        self.line = line
        self.column = column
        self.message = message
        self.source_line = source_line


@dataclass(frozen=True)
class AssignedName:
    """A name bound to the value of an expression. `value` is None if the source does not show it."""

    value: ast.expr | None = None


@dataclass(frozen=True)
class ImportedName:
    """A name bound by an import: a module, or `name` of that module."""

    module: str
    name: str | None = None


Binding = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | AssignedName | ImportedName


@dataclass(eq=False)
class ParsedModule:
    """A module. `tree` is its source, if available; `search_paths` are the folders of its submodules."""

    name: str
    path: Path | None = None
    tree: ast.Module | None = None
    search_paths: Sequence[str] | None = None

    @property
    def is_package(self) -> bool:
        """Whether the module can have submodules."""
        return self.search_paths is not None

    @cached_property
    def bindings(self) -> dict[str, list[Binding]]:
        """The bindings of its top level in source order, including branches of `if` and `try`."""
        bindings: dict[str, list[Binding]] = {}
        for statement in flatten_statements(self.tree.body if self.tree else []):
            for name, binding in _iter_bindings(statement, self):
                bindings.setdefault(name, []).append(binding)
        return bindings

    @cached_property
    def star_imports(self) -> list[str]:
        """The modules that it imports with `*`."""
        imports = (s for s in flatten_statements(self.tree.body if self.tree else []) if isinstance(s, ast.ImportFrom))
        return [resolve_relative_import(s, self) for s in imports if any(alias.name == "*" for alias in s.names)]

    @cached_property
    def is_dynamic(self) -> bool:
        """Whether the module can have names that its source does not show."""
        if self.tree is None or "__getattr__" in self.bindings:
            return True
        writes_globals = any(_writes_globals(node) for node in ast.walk(self.tree))
        return writes_globals or any(_creates_names_dynamically(node) for node in _walk_outside_functions(self.tree))

    def iter_submodule_names(self) -> Iterator[str]:
        """Yield the names of its direct submodules."""
        yield from (submodule.name for submodule in pkgutil.iter_modules(list(self.search_paths or [])))


def _writes_globals(node: ast.AST) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "globals"
    return is_call or isinstance(node, ast.Global)


def _creates_names_dynamically(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in {"exec", "eval", "setattr", "vars", "locals"}
    # sys.modules[__name__] = ...: the module replaces itself with an object
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "modules"


def _walk_outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield inner
            yield from _walk_outside_functions(inner)


def flatten_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, including those inside `if`, `try`, `with` and loops, but not inside functions and classes."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            for inner in getattr(statement, part, ()):
                yield from flatten_statements([inner] if isinstance(inner, ast.stmt) else inner.body)


def _iter_bindings(statement: ast.stmt, module: ParsedModule) -> Iterator[tuple[str, Binding]]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name, statement
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            top = alias.name.partition(".")[0]
            yield (alias.asname, ImportedName(alias.name)) if alias.asname else (top, ImportedName(top))
    elif isinstance(statement, ast.ImportFrom):
        source = resolve_relative_import(statement, module)
        yield from ((a.asname or a.name, ImportedName(source, a.name)) for a in statement.names if a.name != "*")
    else:
        yield from _iter_assignments(statement)


def _iter_assignments(statement: ast.stmt) -> Iterator[tuple[str, Binding]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id, AssignedName(statement.value)
            else:
                yield from ((n.id, AssignedName()) for n in ast.walk(target) if isinstance(n, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        if statement.value is not None:
            yield statement.target.id, AssignedName(statement.value)
    elif isinstance(statement, ast.For | ast.AsyncFor):
        yield from ((n.id, AssignedName()) for n in ast.walk(statement.target) if isinstance(n, ast.Name))
    elif isinstance(statement, ast.With | ast.AsyncWith):
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
        yield from ((n.id, AssignedName()) for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))


def resolve_relative_import(statement: ast.ImportFrom, module: ParsedModule) -> str:
    """Return the absolute name of the module in a `from` import."""
    if not statement.level:
        return statement.module or ""
    parts = module.name.split(".")
    parent_parts = parts[: len(parts) - statement.level + (1 if module.is_package else 0)]
    return ".".join([*parent_parts, *([statement.module] if statement.module else [])])


@dataclass
class ModuleFinder:
    """Finds the modules that a worker of a config in `config_dir` could import."""

    config_dir: Path | None = None
    _modules_by_name: dict[str, ParsedModule | None] = field(default_factory=dict)

    @cached_property
    def search_paths(self) -> list[str]:
        """The `sys.path` of such a worker."""
        return import_paths(self.config_dir)

    def find(self, name: str) -> ParsedModule | None:
        """Return the module with that full name, or None. Raises BrokenSourceError."""
        if name not in self._modules_by_name:
            self._modules_by_name[name] = None  # ends a recursive search for the same name
            self._modules_by_name[name] = self._find_uncached(name)
        return self._modules_by_name[name]

    def parse_file(self, path: Path) -> ParsedModule:
        """Parse a file that a target names by its path. Raises BrokenSourceError."""
        name = f"file {path}"
        if name not in self._modules_by_name:
            self._modules_by_name[name] = ParsedModule(path.name, path, parse_source(path))
        module = self._modules_by_name[name]
        return module if module is not None else ParsedModule(path.name, path)

    def _find_uncached(self, name: str) -> ParsedModule | None:
        parent_name = name.rpartition(".")[0]
        if parent_name and self.find(parent_name) is None:
            return None
        location = self._locator.find(name)
        return None if location is None else _parse(location)

    @cached_property
    def _locator(self) -> ModuleLocator:
        return ModuleLocator(self.search_paths)

    def top_level_names(self) -> list[str]:
        """Return the names of all importable top-level modules, for hints."""
        installed = (module.name for module in pkgutil.iter_modules(self.search_paths))
        return [*installed, *sys.stdlib_module_names]


def _parse(location: ModuleLocation) -> ParsedModule:
    if location.is_source and location.file is not None:
        return ParsedModule(location.name, location.file, parse_source(location.file), location.search_paths)
    tree = ast.Module([], []) if location.is_namespace else None
    return ParsedModule(location.name, None, tree, location.search_paths)


def parse_source(path: Path) -> ast.Module | None:
    """Return the syntax tree of a file; None if the file cannot be read. Raises BrokenSourceError."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return _parse_cached(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=128)  # a config's targets need about twenty files; parsing torch's takes 60 ms
def _parse_cached(path: Path, mtime_ns: int, size_bytes: int) -> ast.Module | None:
    del mtime_ns, size_bytes  # cache keys: a changed file is parsed again
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in user code; Python warns about them on import
            return ast.parse(path.read_bytes())
    except SyntaxError as error:
        line = (error.text or "").rstrip("\n")
        raise BrokenSourceError(path, error.lineno or 0, error.offset or 0, error.msg, line) from None
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
