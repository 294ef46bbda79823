"""The arguments of a built-in: what each accepts, its default and its meaning, from the source files. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from stagepipe.config.argument_values import describe_accepted, find_mismatch
from stagepipe.config.catalog.docstrings import parse_docstring
from stagepipe.config.static_analysis import (
    AcceptedValue,
    Annotation,
    Choice,
    ConstantName,
    Definition,
    DefinitionLookup,
    ValueKind,
    inspect_definition,
    read_annotation,
)
from stagepipe.config.yaml import parse_value, to_plain
from stagepipe.core import ConfigError, ConfigSyntax

_SEE_BASE = re.compile(r"see `(\w+)`")
_QUOTED = re.compile(r"(such as )?`([^`]+)`")
_SAMPLE_SIZE = 32


@dataclass(frozen=True, kw_only=True)
class BuiltInArgument:
    """An argument of a built-in. `sample` is a value for an example; None if the source does not show one."""

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
        # A base of the standard library, such as `Sequence`, is not read: it takes no arguments.
        node = copy(definition.node)
        node.bases = []
        callee = inspect_definition(Definition(definition.module, node), lookup)
    return [] if callee is None or callee.signature is None else list(callee.signature.parameters.values())


def _collect_meanings(definition: Definition, lookup: DefinitionLookup) -> Mapping[str, str]:
    """Return what the docstring says of each argument; where it points to a base, what that says too."""
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
            type_text = describe_accepted(accepted, ConfigSyntax.YAML)
        default = _read_default(annotation, lookup)
    # `()` is what `concat` is unpickled with: a config must give a list that holds something.
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
    """Return the default as a plain value; its source text if it is none."""
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
    """Return the first value that the text quotes: after `such as`, or one that is no bare word. Else one by type."""
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
