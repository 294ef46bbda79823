"""From an import path to the definition that it names, through re-exports and base classes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stagepipe.config.static.modules import Assigned, Imported, Module, Modules


class Undecided(Enum):
    """The source does not tell."""

    UNDECIDED = "undecided"


UNDECIDED: Final = Undecided.UNDECIDED
_MAX_HOPS: Final = 60  # re-exports and bases followed for one name; circles end here too


@dataclass(frozen=True)
class Definition:
    """A function or class, and the class in whose body it stands."""

    module: Module
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    owner: ast.ClassDef | None = None


@dataclass(frozen=True)
class Absent:
    """There is no `word` in `owner` ("" for the import path itself); what there is instead."""

    owner: str
    word: str
    choices: tuple[str, ...]


Found = Module | Definition | Absent | Undecided


@dataclass
class Lookup:
    """Follows names through the modules of one config."""

    modules: Modules

    def path(self, start: Module | None, words: list[str]) -> Found:
        """What `words` name: from `start`, or, without one, from the top-level module that the first word names."""
        if start is None:
            first = self.modules.find(words[0])
            if first is None:
                return Absent("", words[0], tuple(self.modules.top_level_names()))
            start, words = first, words[1:]
        found: Found = start
        for word in words:
            found = self._step(found, word)
            if isinstance(found, Absent | Undecided):
                return found
        return found

    def _step(self, found: Found, word: str) -> Found:
        if isinstance(found, Module):
            return self.name(found, word)
        if isinstance(found, Definition) and isinstance(found.node, ast.ClassDef):
            return self.member(found, word)
        return UNDECIDED

    def name(self, module: Module, word: str, hops: int = 0) -> Found:
        """The definition of a name in a module; the module itself if it is a submodule."""
        if hops > _MAX_HOPS:
            return UNDECIDED
        bindings = module.bindings.get(word, [])
        if bindings:
            return self._bound(module, word, hops)
        submodule = self.modules.find(f"{module.name}.{word}") if module.is_package else None
        if submodule is not None:
            return submodule
        for star in module.stars:
            source = self.modules.find(star)
            found = UNDECIDED if source is None or source is module else self.name(source, word, hops + 1)
            if not isinstance(found, Absent):
                return found
        if module.is_dynamic or word.startswith("__"):
            return UNDECIDED
        return Absent(module.name, word, (*module.bindings, *self._starred(module), *module.submodules()))

    def _starred(self, module: Module) -> list[str]:
        sources = [self.modules.find(star) for star in module.stars]
        return [name for source in sources if source is not None for name in source.bindings]

    def _bound(self, module: Module, word: str, hops: int) -> Found:
        bindings = [b for b in module.bindings[word] if not (_is_definition(b) and _is_overload(b))]
        definitions = [b for b in bindings if isinstance(b, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        if len(definitions) == len(bindings) == 1:
            return Definition(module, definitions[0])
        if len(bindings) != 1:
            # Several: branches of an `if`, or a fallback after a failed import. They may take different arguments.
            return self._agreed(module, word, bindings, hops)
        binding = bindings[0]
        if isinstance(binding, Imported):
            return self._imported(module, binding, word, hops)
        if isinstance(binding, Assigned) and isinstance(binding.value, ast.Name) and binding.value.id != word:
            return self.name(module, binding.value.id, hops + 1)
        return UNDECIDED

    def _agreed(self, module: Module, word: str, bindings: Sequence[object], hops: int) -> Found:
        """The same import in two branches (`if TYPE_CHECKING` and `else`) is one; all else is undecided."""
        first = bindings[0] if bindings else None
        if isinstance(first, Imported) and all(binding == first for binding in bindings):
            return self._imported(module, first, word, hops)
        return UNDECIDED

    def _imported(self, module: Module, binding: Imported, word: str, hops: int) -> Found:
        source = self.modules.find(binding.module)
        if source is None:
            return UNDECIDED  # an optional dependency; importing would tell, and costs too much here
        if binding.name is None:
            return source
        if source is module and binding.name == word:  # `from torch import nn` in torch itself
            return self.modules.find(f"{module.name}.{word}") or UNDECIDED
        found = self.name(source, binding.name, hops + 1)
        return UNDECIDED if isinstance(found, Absent) else found

    def member(self, found: Definition, word: str, hops: int = 0) -> Found:
        """What a class, or one of its bases, calls `word`."""
        chain = self.bases(found)
        for definition in chain or [found]:
            for statement in definition.node.body:
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and (
                    statement.name == word
                ):
                    owner = definition.node if isinstance(definition.node, ast.ClassDef) else None
                    return Definition(definition.module, statement, owner)
                if word in _assigned_names(statement):
                    return UNDECIDED
        if chain is None or word.startswith("__") or hops > _MAX_HOPS:
            return UNDECIDED
        names = tuple(s.name for d in chain for s in d.node.body if isinstance(s, ast.FunctionDef | ast.ClassDef))
        return Absent(found.node.name, word, names)

    def bases(self, found: Definition) -> list[Definition] | None:
        """A class and all that it inherits from, nearest first; None if the source does not show all of it."""
        chain: list[Definition] = []
        waiting = [found]
        while waiting:
            definition = waiting.pop(0)
            node = definition.node
            if not isinstance(node, ast.ClassDef) or len(chain) > _MAX_HOPS:
                return None
            chain.append(definition)
            if any(keyword.arg == "metaclass" and not _is_named(keyword.value, "ABCMeta") for keyword in node.keywords):
                return None
            above = [self.expression(definition.module, base) for base in node.bases if not is_bare_base(base)]
            parents = [base for base in above if isinstance(base, Definition)]
            if len(parents) < len(above):
                return None
            waiting = [*parents, *waiting]
        return chain

    def expression(self, module: Module, expression: ast.expr) -> Found:
        """What a name or dotted name in the source of a module means."""
        if isinstance(expression, ast.Subscript):
            return self.expression(module, expression.value)
        if isinstance(expression, ast.Name):
            return self.name(module, expression.id)
        if isinstance(expression, ast.Attribute):
            owner = self.expression(module, expression.value)
            return self._step(owner, expression.attr) if isinstance(owner, Module) else UNDECIDED
        return UNDECIDED


def is_bare_base(base: ast.expr) -> bool:
    """A base that brings neither arguments nor methods."""
    if isinstance(base, ast.Subscript):
        base = base.value
    return any(_is_named(base, word) for word in ("object", "ABC", "Generic", "Protocol"))


def _is_named(expression: ast.expr, word: str) -> bool:
    return (isinstance(expression, ast.Name) and expression.id == word) or (
        isinstance(expression, ast.Attribute) and expression.attr == word
    )


def _is_definition(binding: object) -> bool:
    return isinstance(binding, ast.FunctionDef | ast.AsyncFunctionDef)


def _is_overload(binding: object) -> bool:
    return any(_is_named(decorator, "overload") for decorator in getattr(binding, "decorator_list", ()))


def _assigned_names(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Assign):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    return set()
