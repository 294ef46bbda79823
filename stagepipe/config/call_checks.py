"""Checks the call of one target: the names and values of its arguments, against its signature. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from inspect import Parameter, Signature
from typing import Final

from stagepipe.config.argument_values import find_mismatch, write_mismatch
from stagepipe.config.static_analysis import Annotation, Callee, CalleeKind, DefinitionLookup, read_annotation
from stagepipe.config.yaml import MapEntry, MapNode, SourceLocation, find_location, to_plain
from stagepipe.core import ConfigSyntax, Placeholder, Problem, closest_match

_POSITIONAL_KINDS: Final = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}


class TargetRole(Enum):
    """What a target is for. It decides which arguments `with` may leave out."""

    STAGE = "stage"  # a function receives the item as its first argument
    ORDER_POINT = "order point"  # built with the arguments of `with`; its methods receive the items
    SOURCE = "source"  # called with the arguments of `with` alone
    SINK = "sink"
    ARGUMENT = "argument"  # nested: a function is passed on, and its caller may add arguments


@dataclass(frozen=True, kw_only=True)
class CallCheck:
    """Checks the arguments of one target against its signature."""

    label: str
    callee: Callee
    role: TargetRole
    arguments: dict[str, MapEntry] | object
    field_mapping: MapNode | None
    location: SourceLocation
    implicit_arguments: frozenset[str] = frozenset()
    lookup: DefinitionLookup
    checks_values: bool = True

    def check(self, signature: Signature) -> Iterator[Problem]:
        """Yield the problems of the call."""
        arguments: dict[str, MapEntry] = self.arguments if isinstance(self.arguments, dict) else {}
        parameters = dict(signature.parameters)
        is_called_with_item = self.callee.kind is CalleeKind.FUNCTION and self.role in {
            TargetRole.STAGE,
            TargetRole.SINK,
        }
        field_names: set[str] = set()
        if is_called_with_item and self.field_mapping is not None:
            field_names = {str(key) for key in self.field_mapping.entries}
            yield from self._check_unknown_arguments(self.field_mapping.entries.items(), parameters, "field")
        elif is_called_with_item:
            item = next((p.name for p in parameters.values() if p.kind in _POSITIONAL_KINDS), None)
            yield from self._check_item_parameter(item, arguments, parameters)
            parameters.pop(item or "", None)
            arguments = {key: entry for key, entry in arguments.items() if key != item}
        yield from self._check_unknown_arguments(arguments.items(), parameters, "with")
        if self.role is not TargetRole.ARGUMENT or self.callee.kind is CalleeKind.FACTORY:
            # Do not report a misspelt argument as missing too.
            misspelt = {closest_match(str(key), parameters) for key in arguments if key not in parameters}
            provided_names = {*arguments, *field_names, *misspelt, *self.implicit_arguments}
            yield from self._check_missing_arguments(provided_names, parameters)
        if self.checks_values:
            yield from self._check_values(arguments, parameters)

    def _check_item_parameter(
        self, item: str | None, arguments: dict[str, MapEntry], parameters: dict[str, Parameter]
    ) -> Iterator[Problem]:
        if item is None and not any(p.kind is Parameter.VAR_POSITIONAL for p in parameters.values()):
            message = f"`{self.label}` cannot receive an item: it has no positional parameter"
            yield self.location.make_problem(message, "add a parameter for the item")
        if item is not None and item in arguments:
            location = arguments[item].key_location
            message = f"`{self.label}` receives the item as `{item}`, so {self._name_setter('with')} cannot set it"
            field_setting = location.syntax.format_setting("field", {item: Placeholder("NAME")})
            if location.syntax is ConfigSyntax.BUILDER:
                field_setting = f".map_field({location.syntax.format_value({item: 'NAME'})}, ...)"
            yield location.make_problem(message, f"remove `{item}`, or map it with `{field_setting}`")

    def _name_setter(self, config_key: str) -> str:
        """Name what sets an argument: a key, or with the builder what binds it."""
        if self.location.syntax is not ConfigSyntax.BUILDER:
            return f"`{config_key}`"
        return "an argument bound by name" if config_key == "with" else "`.map_field`"

    def _check_unknown_arguments(
        self, arguments: object, parameters: dict[str, Parameter], config_key: str
    ) -> Iterator[Problem]:
        takes_any_name = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
        known = [
            p.name for p in parameters.values() if p.kind in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        ]
        for key, entry in arguments:  # type: ignore[attr-defined]
            parameter = parameters.get(key)
            if parameter is not None and parameter.kind is Parameter.POSITIONAL_ONLY:
                message = (
                    f"`{key}` of `{self.label}` is positional-only, so {self._name_setter(config_key)} cannot set it"
                )
                yield entry.key_location.make_problem(message, f"wrap `{self.label}` in your own function")
            elif key not in known and not takes_any_name:
                closest = closest_match(str(key), known)
                takes = f"it takes {', '.join(f'`{name}`' for name in known)}" if known else "it takes no arguments"
                hint = f"did you mean `{closest}`?" if closest else takes
                yield entry.key_location.make_problem(f"`{self.label}` has no argument `{key}`", hint)

    def _check_missing_arguments(
        self, provided_names: set[str | None], parameters: dict[str, Parameter]
    ) -> Iterator[Problem]:
        variadic_kinds = {Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL}
        for parameter in parameters.values():
            if (
                parameter.kind in variadic_kinds
                or parameter.default is not Parameter.empty
                or parameter.name in provided_names
            ):
                continue
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                hint = f"wrap `{self.label}` in your own function: `{parameter.name}` is positional-only"
            elif self.implicit_arguments:
                hint = f"write {self._write_call(parameter.name, is_nested=True)}"
            else:
                hint = self._write_call(parameter.name, is_nested=False)
            yield self.location.make_problem(f"`{self.label}` needs the argument `{parameter.name}`", hint)

    def _write_call(self, name: str, *, is_nested: bool) -> str:
        """Write how to give the target an argument."""
        syntax, arguments = self.location.syntax, {name: Placeholder("...")}
        if syntax is ConfigSyntax.BUILDER:
            maker = "functools.partial" if self.callee.kind is CalleeKind.FUNCTION else "defer"
            call = f"{maker}({self.label}, {name}=...)"
            return call if is_nested else f"write {call}"
        if is_nested:
            return syntax.format_value({"uses": self.label, "with": arguments})
        return f"add `{syntax.format_setting('with', arguments)}`"

    def _check_values(
        self, arguments: Mapping[str, MapEntry], parameters: Mapping[str, Parameter]
    ) -> Iterator[Problem]:
        """Yield the problem of each argument that its parameter does not accept, as far as annotations show it."""
        for name, entry in arguments.items():
            annotation = parameters[name].annotation if name in parameters else None
            accepted = read_annotation(annotation, self.lookup) if isinstance(annotation, Annotation) else None
            mismatch = None if accepted is None else find_mismatch(to_plain(entry.node), accepted)
            if mismatch is not None:
                message = partial(write_mismatch, name, self.label, mismatch)
                yield find_location(entry.node, mismatch.path).make_problem(message, mismatch.hint)
