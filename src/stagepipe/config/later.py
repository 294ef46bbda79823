"""What the format knows but this version does not do yet. One table: a line is removed when its work is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from stagepipe.config.nodes import Map, Node, Scalar, children
from stagepipe.core import Problem


def _given(value: Any) -> bool:
    return value is not None


def _is(word: str) -> Callable[[Any], bool]:
    return lambda value: value == word


NOT_YET: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("engine", _is("ray"), "remove it: `local` is the engine"),
    ("report.html", _given, "write `report: {json: FILE}`"),
    ("report.trace", _given, "write `report: {json: FILE}`"),
    ("report.prometheus", _given, "write `report: {json: FILE}`"),
)
"""Where, which values, and what to write today."""


def not_yet(root: Map) -> Iterator[Problem]:
    """The problems of a config that asks for what is not there yet."""
    for path, asks, mend in NOT_YET:
        for node in _at(root, path.split(".")):
            if isinstance(node, Scalar) and asks(node.value):
                word = path.rpartition(".")[2]
                text = str(node.value).lower() if isinstance(node.value, bool) else node.value
                yield node.place.problem(f"`{word}: {text}` is not available yet", mend)


def _at(node: Node, path: list[str]) -> Iterator[Node]:
    if not path:
        yield node
        return
    for key, inner in children(node):
        if path[0] in {"*", key}:
            yield from _at(inner, path[1:])
