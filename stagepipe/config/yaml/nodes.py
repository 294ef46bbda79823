"""Defines the nodes of a config: scalars, lists and mappings, each with its source location. Pure.

Nodes are immutable, so an anchor or variable that is used a hundred times stays one node, and merging shares nodes.
Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stagepipe.core import AdviceText, ConfigError, ConfigSyntax, Problem, write_advice

MAX_VALUES: Final = 50_000
"""Maximum number of values after expanding aliases and variables: 100 times what a large pipeline has."""

MAX_DEPTH: Final = 60
"""Maximum nesting depth; well within Python's recursion limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLocation:
    """Where a node was written. `line` and `column` count from 1; both are 0 if the node is in no file.

    `call` is the text of the builder's call that made the node, `stage` the name of its stage. Problems are worded for
    `syntax`.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    source_line: str = ""
    call: str = ""
    stage: str = ""
    syntax: ConfigSyntax = ConfigSyntax.YAML

    def make_problem(self, message: AdviceText, hint: AdviceText = "") -> Problem:
        """Make a problem at this location."""
        text, fix = write_advice(message, self.syntax), write_advice(hint, self.syntax)
        return Problem(
            message=text,
            hint=fix,
            file=self.file,
            line=self.line,
            column=self.column,
            source_line=self.source_line,
            call=self.call,
            stage=self.stage,
        )


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """A string, number, boolean, null, or (from Python) any object."""

    value: Any
    location: SourceLocation = SourceLocation()


@dataclass(frozen=True, slots=True)
class MapEntry:
    """The location of a key, and its value."""

    key_location: SourceLocation
    node: Node


@dataclass(frozen=True, slots=True)
class MapNode:
    """A mapping, in source order."""

    entries: Mapping[Any, MapEntry] = field(default_factory=dict)
    location: SourceLocation = SourceLocation()

    def get(self, key: Any) -> Node | None:
        """Return the value of `key`, or None if it is missing or null, which mean the same."""
        entry = self.entries.get(key)
        return None if entry is None or is_null(entry.node) else entry.node

    def get_text(self, key: Any) -> str | None:
        """Return the value of `key` if it is a string, otherwise None."""
        node = self.get(key)
        return node.value if isinstance(node, ScalarNode) and isinstance(node.value, str) else None

    def with_entry(self, key: Any, node: Node, key_location: SourceLocation | None = None) -> MapNode:
        """Return a copy with one value replaced or added."""
        old_entry = self.entries.get(key)
        location = key_location or (old_entry.key_location if old_entry else node.location)
        return replace(self, entries={**self.entries, key: MapEntry(location, node)})

    def without(self, *keys: Any) -> MapNode:
        """Return a copy without some keys."""
        return replace(self, entries={key: entry for key, entry in self.entries.items() if key not in keys})


@dataclass(frozen=True, slots=True)
class ListNode:
    """A list of nodes."""

    items: tuple[Node, ...] = ()
    location: SourceLocation = SourceLocation()


Node = ScalarNode | MapNode | ListNode


def is_null(node: Node) -> bool:
    """Return whether a node is null."""
    return isinstance(node, ScalarNode) and node.value is None


def to_plain(node: Node) -> Any:
    """Convert a node to dicts, lists and scalars, without locations."""
    if isinstance(node, MapNode):
        return {key: to_plain(entry.node) for key, entry in node.entries.items()}
    return [to_plain(item) for item in node.items] if isinstance(node, ListNode) else node.value


def from_plain(value: Any, location: SourceLocation = SourceLocation(), depth: int = 0) -> Node:
    """Convert a Python value to nodes at `location`. Raises ConfigError if it is nested deeper than MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise ConfigError(
            [location.make_problem(f"nested more than {MAX_DEPTH} levels deep", "does it contain itself?")]
        )
    if isinstance(value, Mapping):
        return MapNode(
            {key: MapEntry(location, _value_from_plain(key, item, location, depth + 1)) for key, item in value.items()},
            location,
        )
    if isinstance(value, list | tuple):
        return ListNode(tuple(from_plain(item, location, depth + 1) for item in value), location)
    return ScalarNode(value, location)


def _value_from_plain(key: Any, value: Any, location: SourceLocation, depth: int) -> Node:
    """Convert the value of a key. A list or tuple under `uses` is a source of items, and stays as it is."""
    is_data = key == "uses" and isinstance(value, list | tuple)
    return ScalarNode(value, location) if is_data else from_plain(value, location, depth)


def iter_children(node: Node) -> Iterator[tuple[Any, Node]]:
    """Yield the values of a mapping or list, with their keys or indices."""
    if isinstance(node, MapNode):
        yield from ((key, entry.node) for key, entry in node.entries.items())
    elif isinstance(node, ListNode):
        yield from enumerate(node.items)


def get_child(node: Node, key: Any) -> Node | None:
    """Return one value of a mapping or list, or None."""
    if isinstance(node, MapNode):
        return node.entries[key].node if key in node.entries else None
    if isinstance(node, ListNode) and isinstance(key, int) and key < len(node.items):
        return node.items[key]
    return None


def find_node(node: Node, path: tuple[Any, ...]) -> Node | None:
    """Return the node at `path`, or None."""
    current: Node | None = node
    for step in path:
        current = None if current is None else get_child(current, step)
    return current


def find_location(node: Node, path: tuple[Any, ...], *, prefer_key: bool = False) -> SourceLocation:
    """Return the location of the node at `path`, or of its deepest ancestor that exists.

    With `prefer_key`, return the location of the node's key instead.
    """
    location = node.location
    for step in path:
        child = get_child(node, step)
        if child is None:
            break
        entry = node.entries[step] if isinstance(node, MapNode) else None
        location = entry.key_location if prefer_key and entry is not None else child.location
        node = child
    return location


def check_size(root: Node) -> None:
    """Raise ConfigError if a config is too large or too deep after expansion. Shared nodes are visited once."""
    sizes: dict[int, tuple[int, int]] = {}

    def measure(node: Node, level: int) -> tuple[int, int]:
        if level > MAX_DEPTH:
            raise ConfigError(
                [node.location.make_problem(f"nested more than {MAX_DEPTH} levels deep", "reduce the nesting")]
            )
        if id(node) not in sizes:
            child_sizes = [measure(child, level + 1) for _, child in iter_children(node)]
            sizes[id(node)] = (1 + sum(s for s, _ in child_sizes), 1 + max((d for _, d in child_sizes), default=0))
        size, depth = sizes[id(node)]
        if level + depth > MAX_DEPTH + 1:
            raise ConfigError(
                [node.location.make_problem(f"nested more than {MAX_DEPTH} levels deep", "reduce the nesting")]
            )
        if size > MAX_VALUES:
            message = f"more than {MAX_VALUES} values after expanding aliases and variables"
            raise ConfigError([node.location.make_problem(message, "repeat less, or move the data to a separate file")])
        return size, depth

    measure(root, 0)
