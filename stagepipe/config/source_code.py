"""Resolves import paths by reading source files. Imports and runs no user code.

Checking a config must be fast and free of side effects, even if importing its targets takes ten seconds. If the source
does not show the answer (C extensions, lazy modules, unknown decorators), the answer is UNDECIDED and the path passes.
Modules of the standard library are safe to import, so their objects are looked up.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import inspect
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

from stagepipe.core import (
    file_exists,
    import_paths,
    is_async,
    is_stream,
    is_stream_class,
    names_file,
    resolve_file,
    split_target_path,
)


@dataclass(frozen=True, kw_only=True)
class ModuleLocation:
    """The location of a module. `file` is None if it has none; `search_paths` are the folders of its submodules.

    `is_namespace`: a package without `__init__`, which has no code.
    """

    name: str
    file: Path | None = None
    is_source: bool = False
    is_namespace: bool = False
    search_paths: Sequence[str] | None = None


@dataclass
class ModuleLocator:
    """Finds modules in the folders of an import path. It looks up each name once."""

    search_paths: Sequence[str]
    _locations_by_name: dict[str, ModuleLocation | None] = field(default_factory=dict)

    def find(self, name: str) -> ModuleLocation | None:
        """Return the location of the module with this full name, or None."""
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
    """Return the location of a module, searching its last name in the folders of its package; None if not found."""
    spec = _find_spec_or_none(PathFinder.find_spec, name, list(folders))
    return _find_namespace(name, folders) if spec is None else _make_location(spec)


def _find_spec_or_none(find_spec: object, name: str, paths: list[str] | None) -> ModuleSpec | None:
    """Call a finder. Editable installs add their own finders; a finder that raises counts as not found."""
    try:
        spec = find_spec(name, paths) if callable(find_spec) else None
    except Exception:  # noqa: BLE001
        return None
    return spec if isinstance(spec, ModuleSpec) else None


def _find_namespace(name: str, folders: Sequence[str]) -> ModuleLocation | None:
    """Find the folders of a package without `__init__`. PathFinder finds them only if the parent is imported."""
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
        """The modules from which it imports `*`."""
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
        """The `sys.path` of a worker."""
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


class Undecided(Enum):
    """The type of UNDECIDED: the source does not show the answer."""

    UNDECIDED = "undecided"


UNDECIDED: Final = Undecided.UNDECIDED
_MAX_LITERAL_CHARS: Final = 40
_LITERALS: Final = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set)
_MAX_LOOKUP_DEPTH: Final = 60  # re-exports and bases followed for one name; also ends import cycles


@dataclass(frozen=True)
class Definition:
    """A function or class. `owner` is the class that contains it, if any."""

    module: ParsedModule
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    owner: ast.ClassDef | None = None


@dataclass(frozen=True)
class MissingName:
    """`owner` has no `name`. `owner` is "" for the import path itself; `choices` are the existing names."""

    owner: str
    name: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class ConstantName:
    """A name whose only binding is a literal, such as `SIZE = 3`. `text` is the literal."""

    text: str
    is_iterable: bool


LookupResult = ParsedModule | Definition | MissingName | ConstantName | Undecided


@dataclass
class DefinitionLookup:
    """Follows names through the modules of one config."""

    module_finder: ModuleFinder

    def resolve_path(self, start: ParsedModule | None, names: list[str]) -> LookupResult:
        """Resolve a dotted path. Without `start`, its first name is a top-level module."""
        if start is None:
            first = self.module_finder.find(names[0])
            if first is None:
                return MissingName("", names[0], tuple(self.module_finder.top_level_names()))
            start = first
            names = names[1:]
        result: LookupResult = start
        for name in names:
            result = self._resolve_attribute(result, name)
            if isinstance(result, MissingName | Undecided):
                return result
        return result

    def find_target(self, path: str) -> LookupResult | None:
        """Resolve the path of a target, which may name a file. None if the path is malformed or the file is missing."""
        module, attributes = split_target_path(path)
        names = [] if attributes is None else attributes.split(".")
        if not names_file(module):
            names = [*module.split("."), *names]
            return self.resolve_path(None, names) if all(names) else None
        file = resolve_file(module, self.module_finder.config_dir)
        return self.resolve_path(self.module_finder.parse_file(file), names) if file_exists(file) else None

    def _resolve_attribute(self, owner: LookupResult, name: str) -> LookupResult:
        if isinstance(owner, ParsedModule):
            return self.resolve_name(owner, name)
        if isinstance(owner, Definition) and isinstance(owner.node, ast.ClassDef):
            return self.resolve_member(owner, name)
        return UNDECIDED

    def resolve_name(self, module: ParsedModule, name: str, depth: int = 0) -> LookupResult:
        """Resolve a name in a module to its definition, or to a submodule."""
        if depth > _MAX_LOOKUP_DEPTH:
            return UNDECIDED
        bindings = module.bindings.get(name, [])
        if bindings:
            return self._resolve_binding(module, name, depth)
        submodule = self.module_finder.find(f"{module.name}.{name}") if module.is_package else None
        if submodule is not None:
            return submodule
        for star in module.star_imports:
            source = self.module_finder.find(star)
            result = UNDECIDED if source is None or source is module else self.resolve_name(source, name, depth + 1)
            if not isinstance(result, MissingName):
                return result
        if module.is_dynamic or name.startswith("__"):
            return UNDECIDED
        return MissingName(
            module.name, name, (*module.bindings, *self._star_imported_names(module), *module.iter_submodule_names())
        )

    def _star_imported_names(self, module: ParsedModule) -> list[str]:
        sources = [self.module_finder.find(star) for star in module.star_imports]
        return [name for source in sources if source is not None for name in source.bindings]

    def _resolve_binding(self, module: ParsedModule, name: str, depth: int) -> LookupResult:
        bindings = [b for b in module.bindings[name] if not _is_overload(b)]
        definitions = [b for b in bindings if isinstance(b, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        if len(definitions) == len(bindings) == 1:
            return Definition(module, definitions[0])
        if len(bindings) != 1:
            # Branches of an `if`, or a fallback after a failed import, may take different arguments.
            return self._resolve_several_bindings(module, name, bindings, depth)
        binding = bindings[0]
        if isinstance(binding, ImportedName):
            return self._resolve_import(module, binding, name, depth)
        if isinstance(binding, AssignedName) and isinstance(binding.value, ast.Name) and binding.value.id != name:
            return self.resolve_name(module, binding.value.id, depth + 1)
        if isinstance(binding, AssignedName) and isinstance(binding.value, _LITERALS) and not module.is_dynamic:
            return _make_constant_name(binding.value)
        return UNDECIDED

    def _resolve_several_bindings(
        self, module: ParsedModule, name: str, bindings: Sequence[object], depth: int
    ) -> LookupResult:
        """Resolve equal imports in several branches (`if TYPE_CHECKING`, `else`) as one. Anything else is undecided."""
        first = bindings[0] if bindings else None
        if isinstance(first, ImportedName) and all(binding == first for binding in bindings):
            return self._resolve_import(module, first, name, depth)
        return UNDECIDED

    def _resolve_import(self, module: ParsedModule, binding: ImportedName, name: str, depth: int) -> LookupResult:
        source = self.module_finder.find(binding.module)
        if source is None:
            return UNDECIDED  # such as an optional dependency; an import to find out would cost too much
        if binding.name is None:
            return source
        if source is module and binding.name == name:  # `from torch import nn` in torch itself
            return self.module_finder.find(f"{module.name}.{name}") or UNDECIDED
        result = self.resolve_name(source, binding.name, depth + 1)
        return UNDECIDED if isinstance(result, MissingName) else result

    def resolve_member(self, class_definition: Definition, name: str, depth: int = 0) -> LookupResult:
        """Resolve a member of a class or of one of its bases."""
        chain = self.resolve_bases(class_definition)
        for definition in chain or [class_definition]:
            for statement in definition.node.body:
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
                    statement.name == name
                ):
                    owner = definition.node if isinstance(definition.node, ast.ClassDef) else None
                    return Definition(definition.module, statement, owner)
                if name in get_assigned_names(statement):
                    return UNDECIDED
        if chain is None or name.startswith("__") or depth > _MAX_LOOKUP_DEPTH:
            return UNDECIDED
        names = tuple(s.name for d in chain for s in d.node.body if isinstance(s, ast.FunctionDef | ast.ClassDef))
        return MissingName(class_definition.node.name, name, names)

    def resolve_bases(self, class_definition: Definition) -> list[Definition] | None:
        """Return a class and all its bases, nearest first. None if the source does not show all of them."""
        chain: list[Definition] = []
        pending = [class_definition]
        while pending:
            definition = pending.pop(0)
            node = definition.node
            if not isinstance(node, ast.ClassDef) or len(chain) > _MAX_LOOKUP_DEPTH:
                return None
            chain.append(definition)
            if any(keyword.arg == "metaclass" and not _is_named(keyword.value, "ABCMeta") for keyword in node.keywords):
                return None
            base_results = [
                self.resolve_expression(definition.module, base) for base in node.bases if not _is_marker_base(base)
            ]
            base_definitions = [base for base in base_results if isinstance(base, Definition)]
            if len(base_definitions) < len(base_results):
                return None
            pending = [*base_definitions, *pending]
        return chain

    def resolve_expression(self, module: ParsedModule, expression: ast.expr) -> LookupResult:
        """Resolve a name or dotted name in the source of a module."""
        if isinstance(expression, ast.Subscript):
            return self.resolve_expression(module, expression.value)
        if isinstance(expression, ast.Name):
            return self.resolve_name(module, expression.id)
        if isinstance(expression, ast.Attribute):
            owner = self.resolve_expression(module, expression.value)
            return self._resolve_attribute(owner, expression.attr) if isinstance(owner, ParsedModule) else UNDECIDED
        return UNDECIDED


def _make_constant_name(literal: ast.expr) -> ConstantName:
    is_iterable = not isinstance(literal, ast.Constant) or isinstance(literal.value, str | bytes)
    text = ast.unparse(literal)
    is_short = len(text) <= _MAX_LITERAL_CHARS
    return ConstantName(text if is_short else f"{text[:_MAX_LITERAL_CHARS]}...", is_iterable)


def _is_marker_base(base: ast.expr) -> bool:
    """Return whether a base adds neither parameters nor methods."""
    if isinstance(base, ast.Subscript):
        base = base.value
    return any(_is_named(base, name) for name in ("object", "ABC", "Generic", "Protocol"))


def _is_named(expression: ast.expr, name: str) -> bool:
    return (isinstance(expression, ast.Name) and expression.id == name) or (
        isinstance(expression, ast.Attribute) and expression.attr == name
    )


def _is_overload(binding: object) -> bool:
    return any(_is_named(decorator, "overload") for decorator in getattr(binding, "decorator_list", ()))


def get_assigned_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement assigns to."""
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    return set()


_MODULES_WITH_SIDE_EFFECTS: Final = frozenset(
    {"antigravity", "this", "idlelib", "turtledemo", "__main__", "test", "lib2to3"}
)
"""Standard modules with side effects on import."""


@dataclass(frozen=True)
class StdlibObject:
    """An object of the standard library."""

    value: object


def find_stdlib_object(path: str) -> StdlibObject | MissingName | None:
    """Return the object that `path` names if its module is in the standard library, otherwise None."""
    module_path, attributes = split_target_path(path)
    if names_file(module_path):
        return None
    names = [*module_path.split("."), *((attributes or "").split(".") if attributes else [])]
    module, attribute_names = _import_longest_prefix(names)
    if module is None:
        return None
    owner: object = module
    for name in attribute_names:
        attribute = inspect.getattr_static(owner, name, _MISSING)
        if attribute is _MISSING:
            return _make_missing_name(owner, name)
        owner = getattr(owner, name) if inspect.isclass(owner) else attribute
    return StdlibObject(owner)


_MISSING: Final = object()


def _make_missing_name(owner: object, name: str) -> MissingName | None:
    if hasattr(owner, "__getattr__"):
        return None
    return MissingName(getattr(owner, "__name__", type(owner).__name__), name, tuple(dir(owner)))


def _import_longest_prefix(names: list[str]) -> tuple[ModuleType | None, list[str]]:
    """Import the longest prefix of `names` that is a module. Return it and the remaining names."""
    top_level_name = names[0]
    if top_level_name not in sys.stdlib_module_names or top_level_name in _MODULES_WITH_SIDE_EFFECTS:
        return None, names
    for end in range(len(names) - 1, 0, -1):
        try:
            return importlib.import_module(".".join(names[:end])), names[end:]
        except Exception:  # noqa: BLE001, S112 - not a module, or missing on this machine
            continue
    return None, names


def is_missing(uses: object, lookup: DefinitionLookup) -> bool:
    """Return whether `uses` is a path that names nothing."""
    try:
        return isinstance(uses, str) and isinstance(lookup.find_target(uses), MissingName | None)
    except BrokenSourceError:
        return True


def read_class_attribute(uses: object, name: str, lookup: DefinitionLookup) -> object:
    """Return the constant that a class or its nearest base assigns to `name`; None if the source shows none.

    `uses` is a class, the path of a class, or any other object, which has the attributes of its class.

    >>> from stagepipe.config.source_code import ModuleFinder
    >>> read_class_attribute("stagepipe.stages.Batch", "items_per_output", DefinitionLookup(ModuleFinder()))
    'size'
    """
    if not isinstance(uses, str):
        return getattr(uses if inspect.isclass(uses) else type(uses), name, None)
    try:
        definition = lookup.find_target(uses)
        if not isinstance(definition, Definition) or not isinstance(definition.node, ast.ClassDef):
            return None
        bases = lookup.resolve_bases(definition) or [definition]
    except BrokenSourceError:  # target_checks reports it
        return None
    assignments = (s for base in bases for s in reversed(base.node.body) if name in get_assigned_names(s))
    value = getattr(next(assignments, None), "value", None)
    return value.value if isinstance(value, ast.Constant) else None


def read_is_async(uses: object, lookup: DefinitionLookup) -> bool:
    """Return whether a call of a stage returns an awaitable, as far as the source shows.

    An `async def` counts with any decorators, because most of them keep it async.
    """
    if not isinstance(uses, str):
        return is_async(uses)
    try:
        called = find_called(lookup.find_target(uses), lookup)
    except BrokenSourceError:  # target_checks reports it
        return False
    return isinstance(called, ast.AsyncFunctionDef) and not has_yield(called)


def find_called(definition: object, lookup: DefinitionLookup) -> ast.AST | None:
    """Return the code that runs when a function or an instance of a class is called; None if the source hides it."""
    if isinstance(definition, Definition) and isinstance(definition.node, ast.ClassDef):
        definition = lookup.resolve_member(definition, "__call__")
    return definition.node if isinstance(definition, Definition) else None


def has_yield(function: ast.AsyncFunctionDef) -> bool:
    """Return whether a function is a generator."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Yield):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)
    return False


_TORCH_STREAM_CLASS_NAME: Final = "IterableDataset"


def is_known_stream(uses: object, config_dir: Path | None) -> bool:
    """Return whether a dataset is certainly iterable. `uses` is a class, the path of a class, or a dataset object.

    >>> is_known_stream(map(abs, [1]), None), is_known_stream("datasets.load_from_disk", None)
    (True, False)
    """
    if inspect.isclass(uses):
        return is_stream_class(uses)
    if not isinstance(uses, str):
        return not callable(uses) and is_stream(uses)
    try:
        lookup = DefinitionLookup(ModuleFinder(config_dir))
        definition = lookup.find_target(uses)
    except BrokenSourceError:  # target_checks reports it
        return False
    return isinstance(definition, Definition) and _is_stream_definition(definition, lookup)


def _is_stream_definition(definition: Definition, lookup: DefinitionLookup) -> bool:
    """Decide by the nearest class that shows it: by a base named IterableDataset, or by its own methods."""
    if not isinstance(definition.node, ast.ClassDef):
        return False
    method_names = {s.name for s in definition.node.body if isinstance(s, ast.FunctionDef)}
    if any(_get_last_name(base) == _TORCH_STREAM_CLASS_NAME for base in definition.node.bases):
        return True
    if "__getitem__" in method_names:
        return False
    bases = [lookup.resolve_expression(definition.module, base) for base in definition.node.bases]
    if any(isinstance(base, Definition) and _is_stream_definition(base, lookup) for base in bases):
        return True
    return "__iter__" in method_names and not bases


def _get_last_name(expression: ast.expr) -> str:
    if isinstance(expression, ast.Subscript):
        expression = expression.value
    return expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
