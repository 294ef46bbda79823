"""Lists the built-in sources, stages and sinks with their arguments, from their source files. Imports none.

A source or sink is a lower-case alias in the interface of its package. A stage is a class that is called with items or
is an order point. The interface defines it, or another module of the package (the ready stages).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter
from typing import Any, Final

from stagepipe.config.dataset_source import LOADER_ARGUMENTS, RECORD_SOURCE_NAMES
from stagepipe.config.document import parse_value, to_plain, write_flow_yaml
from stagepipe.config.signatures import (
    AcceptedValue,
    Annotation,
    Choice,
    ValueKind,
    describe_accepted,
    find_mismatch,
    inspect_definition,
    read_annotation,
)
from stagepipe.config.source_code import (
    ConstantName,
    Definition,
    DefinitionLookup,
    ModuleFinder,
    ParsedModule,
    read_class_attribute,
)
from stagepipe.core import ConfigError

_SECTION = "Args:"
_PATH_IN_YAML = re.compile(r" (In YAML|YAML)\b.*")
_ENTRY = re.compile(r"(\w+(?:, \w+)*): +(.*)")


@dataclass(frozen=True)
class ParsedDocstring:
    """`description` is the text without arguments, doctests and errors; `arguments` maps each name to its text."""

    description: str
    arguments: dict[str, str]

    @property
    def summary(self) -> str:
        """The first line, without a last sentence about the path in YAML."""
        return _PATH_IN_YAML.sub("", self.description.partition("\n")[0])


def parse_docstring(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ParsedDocstring:
    r"""Return the parts of the docstring of a class or function; empty without one.

    >>> tree = ast.parse("def f(x):\n    '''Do it.\n\n    Args:\n        x: a number,\n            any.\n    '''")
    >>> parse_docstring(tree.body[0])
    ParsedDocstring(description='Do it.', arguments={'x': 'a number, any.'})
    """
    paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    arguments: dict[str, str] = {}
    description: list[str] = []
    for paragraph in paragraphs:
        if paragraph.startswith(_SECTION):
            arguments |= dict(_read_entries(paragraph.splitlines()[1:]))
        elif not paragraph.startswith((">>>", "Raises ")):
            description.append(paragraph)
    return ParsedDocstring("\n\n".join(description), arguments)


def _read_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each name of the section with its text in one line. An entry may have several names."""
    indent = len(lines[0]) - len(lines[0].lstrip())
    entries: list[str] = []
    for line in lines:
        if line[indent : indent + 1].isspace() and entries:
            entries[-1] += f" {line.strip()}"
        else:
            entries.append(line.strip())
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is not None:
            yield from ((name, match[2]) for name in match[1].split(", "))


_SEE_BASE = re.compile(r"see `(\w+)`")
_QUOTED = re.compile(r"(such as )?`([^`]+)`")
_SAMPLE_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class BuiltInArgument:
    """An argument of a built-in. `sample` is a value for an example; None if the source shows none."""

    name: str
    type: str
    is_required: bool
    default: Any
    meaning: str
    sample: Any


def read_arguments(definition: Definition, lookup: DefinitionLookup) -> tuple[BuiltInArgument, ...]:
    """Return the arguments of a class, in the order of its source."""
    parameters = _read_parameters(definition, lookup)
    meanings = _collect_meanings(definition, lookup)
    named = [p for p in parameters if p.kind not in {Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL}]
    arguments = [_read_argument(p, meanings.get(p.name, ""), lookup) for p in named]
    if len(named) < len(parameters):  # `**arguments`: the docstring names them
        known = {argument.name for argument in arguments}
        arguments += [_make_open_argument(n, m) for n, m in meanings.items() if n not in known]
    return tuple(arguments)


def _read_parameters(definition: Definition, lookup: DefinitionLookup) -> list[Parameter]:
    callee = inspect_definition(definition, lookup)
    if (callee is None or callee.signature is None) and isinstance(definition.node, ast.ClassDef):
        # A base in the standard library, such as `Sequence`, is not read: it takes no arguments.
        node = copy(definition.node)
        node.bases = []
        callee = inspect_definition(Definition(definition.module, node), lookup)
    return [] if callee is None or callee.signature is None else list(callee.signature.parameters.values())


def _collect_meanings(definition: Definition, lookup: DefinitionLookup) -> Mapping[str, str]:
    """Return the text of the docstring about each argument; a pointer to a base adds the text of the base."""
    chain = lookup.resolve_bases(definition) or [definition]
    of_bases: dict[str, dict[str, str]] = {}
    meanings: dict[str, str] = {}
    for base in reversed(chain):
        own = parse_docstring(base.node).arguments
        of_bases[base.node.name] = own
        for name, text in own.items():
            pointer = _SEE_BASE.match(text)
            inherited = of_bases.get(pointer[1], {}).get(name, "") if pointer is not None else ""
            rest = "" if pointer is None else text[pointer.end() :].lstrip(". ")
            meanings[name] = f"{inherited} {rest}".strip() if inherited else text
    return meanings


def _read_argument(parameter: Parameter, meaning: str, lookup: DefinitionLookup) -> BuiltInArgument:
    annotation = parameter.annotation
    accepted: Sequence[AcceptedValue] | None = None
    type_text, default = "", None
    if isinstance(annotation, Annotation):
        accepted = read_annotation(annotation, lookup)
        type_text = ast.unparse(annotation.expression)
        if accepted is not None:
            type_text = describe_accepted(accepted)
        default = _read_default(annotation, lookup)
    # `concat` has the default `()` only for unpickling: a config must give a list that is not empty.
    is_required = parameter.default is Parameter.empty or default == []
    return BuiltInArgument(
        name=parameter.name,
        type=type_text,
        is_required=is_required,
        default=None if is_required else default,
        meaning=meaning,
        sample=_find_sample(meaning, accepted),
    )


def _make_open_argument(name: str, meaning: str) -> BuiltInArgument:
    return BuiltInArgument(name=name, type="", is_required=False, default=None, meaning=meaning, sample=None)


def _read_default(annotation: Annotation, lookup: DefinitionLookup) -> Any:
    """Return the default as a plain value; otherwise its source text."""
    if annotation.default is None:
        return None
    constant = lookup.resolve_expression(annotation.module, annotation.default)
    text = constant.text if isinstance(constant, ConstantName) else ast.unparse(annotation.default)
    try:
        value = ast.literal_eval(text)
    except ValueError:
        return text
    return list(value) if isinstance(value, tuple) else value


def _find_sample(meaning: str, accepted: Sequence[AcceptedValue] | None) -> Any:
    """Return the first value in the text: after `such as`, or in quotes but not a bare word. Otherwise one by type."""
    for such_as, text in _QUOTED.findall(meaning):
        value = _parse_or_none(text)
        is_value = such_as or not isinstance(value, str) or text.startswith('"')
        if value is not None and is_value and (accepted is None or find_mismatch(value, accepted) is None):
            return value
    return next(_iter_samples_by_type(accepted or ()), None)


def _parse_or_none(text: str) -> Any:
    try:
        return to_plain(parse_value(text))
    except ConfigError:
        return None


def _iter_samples_by_type(accepted: Sequence[AcceptedValue]) -> Iterator[Any]:
    for one in accepted:
        if one is ValueKind.INT:
            yield _SAMPLE_SIZE
        elif isinstance(one, Choice):
            yield one.value


def write_example(section: str, path: str, arguments: Sequence[BuiltInArgument]) -> str:
    """Return the YAML of an entry of `section` with the required arguments.

    >>> print(write_example("stages", "stagepipe.stages.Unbatch", ()))
    stages:
      - {name: unbatch, uses: stagepipe.stages.Unbatch}
    """
    values = {argument.name: argument.sample for argument in arguments if argument.is_required}
    entry: Mapping[str, Any] = {"uses": path, **({"with": values} if values else {})}
    if section == "stages":
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path.rpartition(".")[2]).lower()
        return f"stages:\n  - {write_flow_yaml({'name': name, **entry})}"
    return f"{section}: {write_flow_yaml(entry)}"


class BuiltInKind(Enum):
    """The kind of a built-in. The value is the key of the config for it."""

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
    """A built-in. `uses` names `path`; `name` is the part of it after the package."""

    kind: BuiltInKind
    name: str
    path: str
    summary: str
    definition: Definition


@dataclass(frozen=True, kw_only=True)
class BuiltInDescription:
    """The description of a built-in. `shared_arguments` are arguments of the source `dataset` that it also takes."""

    description: str
    arguments: tuple[BuiltInArgument, ...]
    shared_arguments: tuple[str, ...]
    example: str


def list_built_ins() -> list[BuiltIn]:
    """Return all built-ins: sources, stages, sinks, in the order of their interfaces.

    >>> [built_in.path for built_in in list_built_ins()][:2]
    ['stagepipe.sources.arrow', 'stagepipe.sources.concat']
    """
    lookup = DefinitionLookup(ModuleFinder())
    return [built_in for kind in BuiltInKind for built_in in _iter_package(kind, lookup)]


def describe_built_in(built_in: BuiltIn) -> BuiltInDescription:
    """Return the arguments of a built-in, the text of its docstring, and a config entry that uses it."""
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
    """Yield the interface first, so that an exported class gets its short path."""
    yield package
    for name in package.iter_submodule_names() if with_submodules else ():
        module = lookup.module_finder.find(f"{package.name}.{name}")
        if module is not None:
            yield module


def _sort_aliases_first(module: ParsedModule, lookup: DefinitionLookup) -> list[str]:
    """Return the public names of classes. `Decode = DecodeImage` comes before `DecodeImage`, its class."""

    def is_alias(name: str) -> bool:
        definition = lookup.resolve_name(module, name)
        return isinstance(definition, Definition) and definition.node.name != name

    names = [name for name in module.bindings if not name.startswith("_") and _is_class(module, name, lookup)]
    return sorted(names, key=lambda name: not is_alias(name))


def _is_class(module: ParsedModule, name: str, lookup: DefinitionLookup) -> bool:
    """Return whether a name is a class of the module's own package, and not only imported for use."""
    definition = lookup.resolve_name(module, name)
    if not isinstance(definition, Definition) or not isinstance(definition.node, ast.ClassDef):
        return False
    return definition.module is module or definition.module.name.startswith(f"{module.name}.")


def _is_stage(path: str, definition: Definition, lookup: DefinitionLookup) -> bool:
    """Return whether a class is a stage that a config can use directly, unlike the interface of order points."""
    is_order_point = read_class_attribute(path, "order_point", lookup) is True
    method = lookup.resolve_member(definition, "add" if is_order_point else "__call__")
    if not isinstance(method, Definition):
        return False
    decorators = getattr(method.node, "decorator_list", ())
    return not any(getattr(decorator, "id", "") == "abstractmethod" for decorator in decorators)
