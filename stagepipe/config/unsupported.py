"""Rejects settings that the format defines but this version does not support yet. Pure.

Remove a row of the table when its setting is supported. Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from stagepipe.config.yaml import MapNode, Node, ScalarNode, iter_children
from stagepipe.core import Problem


def _is_set(value: Any) -> bool:
    return value is not None


def _equals(expected: str) -> Callable[[Any], bool]:
    return lambda value: value == expected


UNSUPPORTED_VALUES: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("engine", _equals("ray"), "remove it; the engine is `local`"),
    ("report.html", _is_set, "write `report: {json: FILE}`"),
    ("report.trace", _is_set, "write `report: {json: FILE}`"),
    ("report.prometheus", _is_set, "write `report: {json: FILE}`"),
)
"""Path of the key, which values are unsupported, and what to write instead."""


def check_unsupported(root: MapNode) -> Iterator[Problem]:
    """Yield a problem for each unsupported setting."""
    for path, is_unsupported, hint in UNSUPPORTED_VALUES:
        for node in _iter_nodes_at(root, path.split(".")):
            if isinstance(node, ScalarNode) and is_unsupported(node.value):
                key = path.rpartition(".")[2]
                value = str(node.value).lower() if isinstance(node.value, bool) else node.value
                yield node.location.make_problem(f"`{key}: {value}` is not available yet", hint)


def _iter_nodes_at(node: Node, path: list[str]) -> Iterator[Node]:
    if not path:
        yield node
        return
    for key, inner in iter_children(node):
        if path[0] in {"*", key}:
            yield from _iter_nodes_at(inner, path[1:])
