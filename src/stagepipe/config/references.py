"""`${vars.x}` and `${env:NAME,default}`: found, looked up and put in. Pure but for the environment.

A text that is one reference takes the value with its type; inside a longer text it is written out. `$${` is a `${`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from stagepipe.config.nodes import MAX_DEPTH, Entry, List, Map, Node, Place, Scalar, child, children
from stagepipe.config.scalars import parse_scalar, write_scalar
from stagepipe.core import ConfigError, Problem
from stagepipe.core.targets import nearest

MAX_TEXT: Final = 1 << 16
"""Characters of one text once its references are written out; variables that double each other end here."""


class _BadReferenceError(Exception):
    """What is wrong with a reference, and the mend."""

    def __init__(self, message: str, mend: str) -> None:
        super().__init__(message)
        self.message, self.mend = message, mend


@dataclass(frozen=True)
class _Reference:
    """What stands between `${` and `}`: texts and further references."""

    parts: tuple[str | _Reference, ...]


def _split(text: str, start: int = 0, depth: int = 0) -> tuple[tuple[str | _Reference, ...], int]:
    """The parts of a text from `start`; inside a reference, up to its closing brace."""
    if depth > MAX_DEPTH:
        raise _BadReferenceError("references inside references without end", "use a variable for the inner ones")
    parts: list[str | _Reference] = []
    plain_from = at = start
    while at < len(text):
        if text.startswith("$${", at):
            parts += [text[plain_from:at], "${"]
            at = plain_from = at + 3
        elif text.startswith("${", at):
            inner, end = _split(text, at + 2, depth + 1)
            parts += [text[plain_from:at], _Reference(inner)]
            at = plain_from = end
        elif depth and text[at] == "}":
            return (*parts, text[plain_from:at]), at + 1
        else:
            at += 1
    if depth:
        raise _BadReferenceError("a `${` without its `}`", "close it, or write `$${` for a `${` that is meant as it is")
    return tuple(part for part in (*parts, text[plain_from:]) if part != ""), at


@dataclass
class Resolver:
    """Puts in the references of one config. Mistakes are collected in `problems`; what has one becomes null."""

    variables: Map | None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    problems: list[Problem] = field(default_factory=list)
    _open: list[tuple[str, ...]] = field(default_factory=list)
    _done: dict[int, tuple[Node, Node]] = field(default_factory=dict)  # by id; the key is kept alive beside its value

    def resolve(self, node: Node) -> Node:
        """The same value with all references put in."""
        if id(node) not in self._done:
            self._done[id(node)] = (node, self._resolve(node))
        return self._done[id(node)][1]

    def _resolve(self, node: Node) -> Node:
        if isinstance(node, Map):
            entries = {key: Entry(entry.key_place, self.resolve(entry.node)) for key, entry in node.entries.items()}
            return Map(entries, node.place)
        if isinstance(node, List):
            return List(tuple(self.resolve(item) for item in node.items), node.place)
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        try:
            return replace(self._put_in(_split(node.value)[0], node.place), place=node.place)
        except _BadReferenceError as error:
            self.problems.append(node.place.problem(error.message, error.mend))
            return Scalar(None, node.place)

    def _put_in(self, parts: tuple[str | _Reference, ...], place: Place) -> Node:
        if len(parts) == 1 and isinstance(parts[0], _Reference):
            return self._value(parts[0], place)
        text = ""
        for part in parts:
            text += part if isinstance(part, str) else self._text(part, place)
            if len(text) > MAX_TEXT:
                raise _BadReferenceError(
                    f"a text of more than {MAX_TEXT} characters", "do variables double each other?"
                )
        return Scalar(text, place)

    def _text(self, reference: _Reference, place: Place) -> str:
        node = self._value(reference, place)
        if isinstance(node, Scalar):
            return write_scalar(node.value)
        kind = "a list" if isinstance(node, List) else "a mapping"
        raise _BadReferenceError(f"{kind} cannot stand inside a text", "let the reference be the whole value")

    def _value(self, reference: _Reference, place: Place) -> Node:
        head = reference.parts[0] if reference.parts else ""
        if isinstance(head, str) and head.lstrip().startswith("env:"):
            return self._environment_value(reference, place)
        words = self._put_in(tuple(p for p in reference.parts if p != ""), place)
        name = words.value.strip() if isinstance(words, Scalar) and isinstance(words.value, str) else ""
        if name.startswith("vars."):
            return self._variable(tuple(name.split(".")[1:]), name)
        raise _BadReferenceError(f"`${{{name}}}` is neither a variable nor the environment", _reference_mend(name))

    def _environment_value(self, reference: _Reference, place: Place) -> Node:
        """The name ends at the first comma that is not inside a reference; the default is put in only if needed."""
        name_parts: list[str | _Reference] = []
        for index, part in enumerate(reference.parts):
            before, comma, after = part.partition(",") if isinstance(part, str) else ("", "", "")
            if not comma:
                name_parts.append(part)
                continue
            default: tuple[str | _Reference, ...] | None = (after.lstrip(), *reference.parts[index + 1 :])
            name_parts.append(before)
            break
        else:
            default = None
        named = self._put_in(tuple(p for p in name_parts if p != ""), place)
        name = str(named.value if isinstance(named, Scalar) else "").strip().removeprefix("env:").strip()
        if name in self.environment:
            return Scalar(parse_scalar(self.environment[name]), place)
        if default is None:
            mend = f"set it, or give a default: `${{env:{name},default}}`"
            raise _BadReferenceError(f"the environment has no `{name}`", mend)
        value = self._put_in(tuple(p for p in default if p != ""), place)
        whole = isinstance(value, Scalar) and isinstance(value.value, str)
        return Scalar(parse_scalar(value.value), place) if whole and isinstance(value, Scalar) else value

    def _variable(self, path: tuple[str, ...], name: str) -> Node:
        if path in self._open:
            circle = " -> ".join(".".join(p) for p in (*self._open[self._open.index(path) :], path))
            raise _BadReferenceError(f"variables that refer to themselves: {circle}", "give one of them a value")
        self._open.append(path)
        try:
            return self._follow(path, name)
        finally:
            self._open.pop()

    def _follow(self, path: tuple[str, ...], name: str) -> Node:
        node: Node = self.variables or Map()
        for step in path:
            node = self._unwrapped(node)
            found = child(node, int(step) if isinstance(node, List) and step.isdecimal() else step)
            if found is None:
                known = [str(key) for key, _ in children(node)]
                near = nearest(step, known)
                mend = f"did you mean `{near}`?" if near else f"known here: {', '.join(known) or 'none'}"
                raise _BadReferenceError(f"no variable `{name}`", mend)
            node = found
        before = len(self.problems)
        resolved = self._resolve(node)  # not by way of the memo: a circle must be seen
        if len(self.problems) > before and isinstance(node, Scalar):
            problem = self.problems.pop()
            raise _BadReferenceError(problem.message, problem.mend)
        return resolved

    def _unwrapped(self, node: Node) -> Node:
        """A variable that is itself one reference, followed, so that a path can lead through it."""
        return self._resolve(node) if isinstance(node, Scalar) else node


def _reference_mend(name: str) -> str:
    if name.startswith("oc.env:"):
        return f"write `${{env:{name.removeprefix('oc.env:')}}}`"
    if name.startswith("env."):
        return f"write `${{env:{name.removeprefix('env.')}}}`"
    if name.isidentifier():
        return f"write `${{vars.{name}}}` or `${{env:{name}}}`, or `$${{` for a `${{` that is meant as it is"
    return "write `${vars.name}`, `${env:NAME}` or `${env:NAME,default}`"


def environment_only(node: Node) -> Node:
    """`extends` with its references to the environment put in; variables are not known yet. Raises ConfigError."""
    if isinstance(node, Scalar) and isinstance(node.value, str) and "${vars." in node.value:
        problem = node.place.problem("`extends` cannot use variables: they are known after it", "use ${env:NAME}")
        raise ConfigError([problem])
    resolver = Resolver(None)
    resolved = resolver.resolve(node)
    if resolver.problems:
        raise ConfigError(resolver.problems)
    return resolved
