"""A config as values that know where they were written. Pure; in the process that reads the config.

Immutable, so that an anchor or a variable that is used a hundred times is one value, and merging shares what it keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stagepipe.core import ConfigError, Problem

MAX_VALUES: Final = 50_000
"""Values of a config once aliases and variables are written out: a hundred times more than a large pipeline has."""

MAX_DEPTH: Final = 60
"""Levels of nesting; Python's recursion limit is far above what these take."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written; `line` and `column` count from 1 and are 0 for what is in no file."""

    file: str = ""
    line: int = 0
    column: int = 0
    source_line: str = ""

    def problem(self, message: str, mend: str = "") -> Problem:
        """A mistake made at this place."""
        return Problem(message, mend, self.file, self.line, self.column, self.source_line)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text, number, boolean, null, or (from Python) any object."""

    value: Any
    place: Place = Place()


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's place and its value."""

    key_place: Place
    node: Node


@dataclass(frozen=True, slots=True)
class Map:
    """A mapping, in the order in which it was written."""

    entries: Mapping[Any, Entry] = field(default_factory=dict)
    place: Place = Place()

    def get(self, key: Any) -> Node | None:
        """The value of `key`; None also where it is null, which means the same as leaving it out."""
        entry = self.entries.get(key)
        return None if entry is None or is_null(entry.node) else entry.node

    def text(self, key: Any) -> str | None:
        """The value of `key` where it is a text."""
        node = self.get(key)
        return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None

    def with_entry(self, key: Any, node: Node, key_place: Place | None = None) -> Map:
        """The same with one value replaced or added."""
        old = self.entries.get(key)
        place = key_place or (old.key_place if old else node.place)
        return replace(self, entries={**self.entries, key: Entry(place, node)})

    def without(self, *keys: Any) -> Map:
        """The same without some keys."""
        return replace(self, entries={key: entry for key, entry in self.entries.items() if key not in keys})


@dataclass(frozen=True, slots=True)
class List:
    """A list."""

    items: tuple[Node, ...] = ()
    place: Place = Place()


Node = Scalar | Map | List


def is_null(node: Node) -> bool:
    """Whether it is null."""
    return isinstance(node, Scalar) and node.value is None


def plain(node: Node) -> Any:
    """The value without places: dicts, lists and scalars."""
    if isinstance(node, Map):
        return {key: plain(entry.node) for key, entry in node.entries.items()}
    return [plain(item) for item in node.items] if isinstance(node, List) else node.value


def from_plain(value: Any, place: Place = Place(), depth: int = 0) -> Node:
    """The nodes of a Python value; all of it is at `place`. Raises ConfigError if it is nested without end."""
    if depth > MAX_DEPTH:
        raise ConfigError([place.problem(f"nested more than {MAX_DEPTH} levels deep", "does it contain itself?")])
    if isinstance(value, Mapping):
        return Map({key: Entry(place, _inner(key, each, place, depth + 1)) for key, each in value.items()}, place)
    if isinstance(value, list | tuple):
        return List(tuple(from_plain(item, place, depth + 1) for item in value), place)
    return Scalar(value, place)


def _inner(key: Any, value: Any, place: Place, depth: int) -> Node:
    """A list or tuple that `uses` gives is data, a source as it stands: its items are no part of the config."""
    is_data = key == "uses" and isinstance(value, list | tuple)
    return Scalar(value, place) if is_data else from_plain(value, place, depth)


def children(node: Node) -> Iterator[tuple[Any, Node]]:
    """The values inside a mapping or list, with their keys or indices."""
    if isinstance(node, Map):
        yield from ((key, entry.node) for key, entry in node.entries.items())
    elif isinstance(node, List):
        yield from enumerate(node.items)


def child(node: Node, key: Any) -> Node | None:
    """One value inside a mapping or list."""
    if isinstance(node, Map):
        return node.entries[key].node if key in node.entries else None
    if isinstance(node, List) and isinstance(key, int) and key < len(node.items):
        return node.items[key]
    return None


def find(node: Node, path: tuple[Any, ...]) -> Node | None:
    """The value that `path` leads to, or None."""
    found: Node | None = node
    for step in path:
        found = None if found is None else child(found, step)
    return found


def place_of(node: Node, path: tuple[Any, ...], *, key: bool = False) -> Place:
    """The place of what `path` leads to (of its key, if asked), or of the innermost that exists on the way."""
    place = node.place
    for step in path:
        inner = child(node, step)
        if inner is None:
            break
        entry = node.entries[step] if isinstance(node, Map) else None
        place = entry.key_place if key and entry is not None else inner.place
        node = inner
    return place


def check_size(root: Node) -> None:
    """Raise ConfigError where aliases or variables blow a config up. What is shared is visited once."""
    sizes: dict[int, tuple[int, int]] = {}

    def measure(node: Node, level: int) -> tuple[int, int]:
        if level > MAX_DEPTH:
            raise ConfigError([node.place.problem(f"nested more than {MAX_DEPTH} levels deep", "make it flatter")])
        if id(node) not in sizes:
            inner = [measure(value, level + 1) for _, value in children(node)]
            sizes[id(node)] = (1 + sum(s for s, _ in inner), 1 + max((d for _, d in inner), default=0))
        size, depth = sizes[id(node)]
        if level + depth > MAX_DEPTH + 1:
            raise ConfigError([node.place.problem(f"nested more than {MAX_DEPTH} levels deep", "make it flatter")])
        if size > MAX_VALUES:
            message = f"more than {MAX_VALUES} values once aliases and variables are written out"
            raise ConfigError([node.place.problem(message, "repeat less, or keep the data in a file of its own")])
        return size, depth

    measure(root, 0)
