"""Lists what is built in, from the faces of `stagepipe.sources`, `stages` and `sinks`. Reads source; imports none.

A source or sink is a lower-case alias in the face. A stage is a class of the face, or of a module beside it that the
face leaves out (the ready stages), that is called with items or is an order point.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stagepipe.config.catalog.arguments import BuiltInArgument, read_arguments
from stagepipe.config.catalog.docstrings import parse_docstring
from stagepipe.config.catalog.examples import write_example
from stagepipe.config.record_sources import LOADER_ARGUMENTS, RECORD_SOURCE_NAMES
from stagepipe.config.static_analysis import (
    Definition,
    DefinitionLookup,
    ModuleFinder,
    ParsedModule,
    read_class_attribute,
)


class BuiltInKind(Enum):
    """What a built-in is. The value is the key of the config that holds it."""

    SOURCE = "source"
    STAGE = "stages"
    SINK = "sink"


_PACKAGES: Final = {
    BuiltInKind.SOURCE: "stagepipe.sources",
    BuiltInKind.STAGE: "stagepipe.stages",
    BuiltInKind.SINK: "stagepipe.sinks",
}


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A built-in. `path` is what `uses` names, `name` the part of it after the package."""

    kind: BuiltInKind
    name: str
    path: str
    summary: str
    definition: Definition


@dataclass(frozen=True, kw_only=True)
class BuiltInDescription:
    """All that is known of a built-in. `shared_arguments` are those of the source `dataset` that it takes too."""

    description: str
    arguments: tuple[BuiltInArgument, ...]
    shared_arguments: tuple[str, ...]
    example: str


def list_built_ins() -> list[BuiltIn]:
    """Return all built-ins: sources, stages, sinks, in the order of their faces.

    >>> [built_in.path for built_in in list_built_ins()][:2]
    ['stagepipe.sources.arrow', 'stagepipe.sources.concat']
    """
    lookup = DefinitionLookup(ModuleFinder())
    return [built_in for kind in BuiltInKind for built_in in _iter_package(kind, lookup)]


def describe_built_in(built_in: BuiltIn) -> BuiltInDescription:
    """Return the arguments of a built-in, what its docstring says, and an entry of a config that uses it."""
    lookup = DefinitionLookup(ModuleFinder())
    arguments = read_arguments(built_in.definition, lookup)
    is_record_source = built_in.kind is BuiltInKind.SOURCE and built_in.name in RECORD_SOURCE_NAMES
    return BuiltInDescription(
        description=parse_docstring(built_in.definition.node).description,
        arguments=arguments,
        shared_arguments=LOADER_ARGUMENTS if is_record_source else (),
        example=write_example(built_in.kind.value, built_in.path, arguments),
    )


def _iter_package(kind: BuiltInKind, lookup: DefinitionLookup) -> Iterator[BuiltIn]:
    package = lookup.module_finder.find(_PACKAGES[kind])
    if package is None:  # the package is not complete
        return
    seen: set[ast.AST] = set()
    for module in _iter_modules(package, lookup, with_submodules=kind is BuiltInKind.STAGE):
        for name in _sort_aliases_first(module, lookup):
            definition = lookup.resolve_name(module, name)
            if not isinstance(definition, Definition) or definition.node in seen:
                continue
            path = f"{module.name}.{name}"
            is_built_in = _is_stage(path, definition, lookup) if kind is BuiltInKind.STAGE else name.islower()
            if is_built_in:
                seen.add(definition.node)
                summary = parse_docstring(definition.node).summary
                yield BuiltIn(
                    kind=kind,
                    name=path.removeprefix(f"{package.name}."),
                    path=path,
                    summary=summary,
                    definition=definition,
                )


def _iter_modules(package: ParsedModule, lookup: DefinitionLookup, *, with_submodules: bool) -> Iterator[ParsedModule]:
    """Yield the face first: a class that it exports has its short path."""
    yield package
    for name in package.iter_submodule_names() if with_submodules else ():
        module = lookup.module_finder.find(f"{package.name}.{name}")
        if module is not None:
            yield module


def _sort_aliases_first(module: ParsedModule, lookup: DefinitionLookup) -> list[str]:
    """Return the public names of classes. `Decode = DecodeImage` comes before `DecodeImage`, which it stands for."""

    def is_alias(name: str) -> bool:
        definition = lookup.resolve_name(module, name)
        return isinstance(definition, Definition) and definition.node.name != name

    names = [name for name in module.bindings if not name.startswith("_") and _is_class(module, name, lookup)]
    return sorted(names, key=lambda name: not is_alias(name))


def _is_class(module: ParsedModule, name: str, lookup: DefinitionLookup) -> bool:
    """Return whether a name is a class of the module's own package: not one that it imports to use."""
    definition = lookup.resolve_name(module, name)
    if not isinstance(definition, Definition) or not isinstance(definition.node, ast.ClassDef):
        return False
    return definition.module is module or definition.module.name.startswith(f"{module.name}.")


def _is_stage(path: str, definition: Definition, lookup: DefinitionLookup) -> bool:
    """Return whether a class is a stage that a config can use as it is: not the interface of order points."""
    is_order_point = read_class_attribute(path, "order_point", lookup) is True
    method = lookup.resolve_member(definition, "add" if is_order_point else "__call__")
    if not isinstance(method, Definition):
        return False
    decorators = getattr(method.node, "decorator_list", ())
    return not any(getattr(decorator, "id", "") == "abstractmethod" for decorator in decorators)
