"""Resolves an import path to its definition, through re-exports and base classes. Reads source; imports nothing.

Runs in the process that loads the config.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stagepipe.config.static_analysis.modules import AssignedName, ImportedName, ModuleFinder, ParsedModule
from stagepipe.core import file_exists, names_file, resolve_file, split_target_path


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
    """`owner` has no `name`. `owner` is "" for the import path itself; `choices` are the names that exist."""

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
        """Resolve the path of a target, which may name a file. None if it is malformed or there is no such file."""
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
        bindings = [b for b in module.bindings[name] if not (_is_function(b) and _is_overload(b))]
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
            return UNDECIDED  # such as an optional dependency; importing it to find out would cost too much
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


def _is_function(binding: object) -> bool:
    return isinstance(binding, ast.FunctionDef | ast.AsyncFunctionDef)


def _is_overload(binding: object) -> bool:
    return any(_is_named(decorator, "overload") for decorator in getattr(binding, "decorator_list", ()))


def get_assigned_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement assigns to."""
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    return set()
