"""Resolves `${vars.x}` and `${env:NAME,default}`. Reads the environment, otherwise pure.

A string that is a single reference becomes the value with its type. Inside a longer string, the value becomes text.
`$${` is a literal `${`. Runs in the process that loads the config.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from stagepipe.config.yaml.nodes import (
    MAX_DEPTH,
    ListNode,
    MapEntry,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    get_child,
    iter_children,
)
from stagepipe.config.yaml.scalars import format_scalar, parse_scalar
from stagepipe.core import ConfigError, Problem, closest_match

MAX_TEXT_CHARS: Final = 1 << 16
"""Maximum length of a string after substitution; stops variables that double each other."""


class _BadReferenceError(Exception):
    """A reference is wrong. `hint` says what to write instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class _Reference:
    """The content between `${` and `}`: text and nested references."""

    parts: tuple[str | _Reference, ...]


def _parse_parts(text: str, start: int = 0, depth: int = 0) -> tuple[tuple[str | _Reference, ...], int]:
    """Return the parts of a text from `start`, and where they end: inside a reference, after its closing brace."""
    if depth > MAX_DEPTH:
        raise _BadReferenceError(
            f"references nested more than {MAX_DEPTH} levels deep", "use a variable for the inner references"
        )
    parts: list[str | _Reference] = []
    plain_start = position = start
    while position < len(text):
        if text.startswith("$${", position):
            parts += [text[plain_start:position], "${"]
            position = plain_start = position + 3
        elif text.startswith("${", position):
            inner_parts, end = _parse_parts(text, position + 2, depth + 1)
            parts += [text[plain_start:position], _Reference(inner_parts)]
            position = plain_start = end
        elif depth and text[position] == "}":
            return (*parts, text[plain_start:position]), position + 1
        else:
            position += 1
    if depth:
        raise _BadReferenceError("`${` without a closing `}`", "add the `}`, or write `$${` for a literal `${`")
    return tuple(part for part in (*parts, text[plain_start:]) if part != ""), position


@dataclass(kw_only=True)
class ReferenceResolver:
    """Resolves the references of one config. Collects mistakes in `problems`; a bad reference becomes null."""

    variables: MapNode | None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    problems: list[Problem] = field(default_factory=list)
    _open_variables: list[tuple[str, ...]] = field(default_factory=list)
    # The value holds the original node too: it keeps the node alive, so that its id stays unique.
    _resolved_by_id: dict[int, tuple[Node, Node]] = field(default_factory=dict)

    def resolve(self, node: Node) -> Node:
        """Return the node with all references resolved."""
        if id(node) not in self._resolved_by_id:
            self._resolved_by_id[id(node)] = (node, self._resolve_uncached(node))
        return self._resolved_by_id[id(node)][1]

    def _resolve_uncached(self, node: Node) -> Node:
        if isinstance(node, MapNode):
            entries = {
                key: MapEntry(entry.key_location, self.resolve(entry.node)) for key, entry in node.entries.items()
            }
            return MapNode(entries, node.location)
        if isinstance(node, ListNode):
            return ListNode(tuple(self.resolve(item) for item in node.items), node.location)
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        try:
            return replace(self._substitute_parts(_parse_parts(node.value)[0], node.location), location=node.location)
        except _BadReferenceError as error:
            self.problems.append(node.location.make_problem(error.message, error.hint))
            return ScalarNode(None, node.location)

    def _substitute_parts(self, parts: tuple[str | _Reference, ...], location: SourceLocation) -> Node:
        if len(parts) == 1 and isinstance(parts[0], _Reference):
            return self._resolve_reference(parts[0], location)
        text = ""
        for part in parts:
            text += part if isinstance(part, str) else self._resolve_to_text(part, location)
            if len(text) > MAX_TEXT_CHARS:
                message = f"the string has more than {MAX_TEXT_CHARS} characters after substitution"
                raise _BadReferenceError(message, "do variables double each other?")
        return ScalarNode(text, location)

    def _resolve_to_text(self, reference: _Reference, location: SourceLocation) -> str:
        node = self._resolve_reference(reference, location)
        if isinstance(node, ScalarNode):
            return format_scalar(node.value)
        kind = "a list" if isinstance(node, ListNode) else "a mapping"
        raise _BadReferenceError(f"{kind} cannot be inserted into a string", "make the reference the whole value")

    def _resolve_reference(self, reference: _Reference, location: SourceLocation) -> Node:
        first_part = reference.parts[0] if reference.parts else ""
        if isinstance(first_part, str) and first_part.lstrip().startswith("env:"):
            return self._resolve_environment(reference, location)
        content = self._substitute_parts(tuple(p for p in reference.parts if p != ""), location)
        name = content.value.strip() if isinstance(content, ScalarNode) and isinstance(content.value, str) else ""
        if name.startswith("vars."):
            return self._resolve_variable(tuple(name.split(".")[1:]), name)
        raise _BadReferenceError(f"unknown reference `${{{name}}}`", _reference_hint(name))

    def _resolve_environment(self, reference: _Reference, location: SourceLocation) -> Node:
        """Resolve `${env:NAME,default}`.

        The name ends at the first comma outside a nested reference. The default is resolved only if needed.
        """
        name_parts: list[str | _Reference] = []
        for index, part in enumerate(reference.parts):
            name_end, comma, default_start = part.partition(",") if isinstance(part, str) else ("", "", "")
            if not comma:
                name_parts.append(part)
                continue
            default: tuple[str | _Reference, ...] | None = (default_start.lstrip(), *reference.parts[index + 1 :])
            name_parts.append(name_end)
            break
        else:
            default = None
        name_node = self._substitute_parts(tuple(p for p in name_parts if p != ""), location)
        name = str(name_node.value if isinstance(name_node, ScalarNode) else "").strip().removeprefix("env:").strip()
        if name in self.environment:
            return ScalarNode(parse_scalar(self.environment[name]), location)
        if default is None:
            hint = f"set it, or add a default: `${{env:{name},default}}`"
            raise _BadReferenceError(f"the environment variable `{name}` is not set", hint)
        value = self._substitute_parts(tuple(p for p in default if p != ""), location)
        if isinstance(value, ScalarNode) and isinstance(value.value, str):
            return ScalarNode(parse_scalar(value.value), location)
        return value

    def _resolve_variable(self, path: tuple[str, ...], name: str) -> Node:
        if path in self._open_variables:
            cycle_paths = (*self._open_variables[self._open_variables.index(path) :], path)
            cycle = " -> ".join(".".join(cycle_path) for cycle_path in cycle_paths)
            raise _BadReferenceError(f"circular variables: {cycle}", "set one of them to a plain value")
        self._open_variables.append(path)
        try:
            return self._resolve_variable_path(path, name)
        finally:
            self._open_variables.pop()

    def _resolve_variable_path(self, path: tuple[str, ...], name: str) -> Node:
        node: Node = self.variables or MapNode()
        for step in path:
            node = self._resolve_if_scalar(node)
            child = get_child(node, int(step) if isinstance(node, ListNode) and step.isdecimal() else step)
            if child is None:
                known = [str(key) for key, _ in iter_children(node)]
                closest = closest_match(step, known)
                hint = f"did you mean `{closest}`?" if closest else f"known: {', '.join(known) or 'none'}"
                raise _BadReferenceError(f"no variable `{name}`", hint)
            node = child
        problem_count = len(self.problems)
        resolved = self._resolve_uncached(node)  # the cache would hide a cycle
        if len(self.problems) > problem_count and isinstance(node, ScalarNode):
            problem = self.problems.pop()
            raise _BadReferenceError(problem.message, problem.hint)
        return resolved

    def _resolve_if_scalar(self, node: Node) -> Node:
        """Resolve a variable that is itself a reference, so that a path can continue inside its value."""
        return self._resolve_uncached(node) if isinstance(node, ScalarNode) else node


def _reference_hint(name: str) -> str:
    if name.startswith("oc.env:"):
        return f"write `${{env:{name.removeprefix('oc.env:')}}}`"
    if name.startswith("env."):
        return f"write `${{env:{name.removeprefix('env.')}}}`"
    if name.isidentifier():
        return f"write `${{vars.{name}}}` or `${{env:{name}}}`, or `$${{` for a literal `${{`"
    return "write `${vars.name}`, `${env:NAME}` or `${env:NAME,default}`"


def resolve_environment(node: Node) -> Node:
    """Resolve the environment variables in `extends`; variables are not known yet. Raises ConfigError."""
    if isinstance(node, ScalarNode) and isinstance(node.value, str) and "${vars." in node.value:
        problem = node.location.make_problem(
            "`extends` cannot use variables: a base may define them", "use ${env:NAME}"
        )
        raise ConfigError([problem])
    resolver = ReferenceResolver(variables=None)
    resolved = resolver.resolve(node)
    if resolver.problems:
        raise ConfigError(resolver.problems)
    return resolved
