"""`extends`: a chain of files laid over each other. Reads files; everything keeps the place where it was written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stagepipe.config.datasets import IN_SHORT, is_dataset_source
from stagepipe.config.nodes import Entry, List, Map, Node, Scalar
from stagepipe.config.reading import read_file
from stagepipe.config.references import environment_only
from stagepipe.core import ConfigError
from stagepipe.core.targets import is_file, is_there, split_path


def read_chain(path: Path) -> Map:
    """The mapping of a file with all that it extends under it. Raises ConfigError."""
    return extend(read_file(path), path.parent, (path.resolve(),))


def extend(top: Map, folder: Path, chain: tuple[Path, ...] = ()) -> Map:
    """`top` laid over what its `extends` names, relative to `folder`. Raises ConfigError."""
    node = top.get("extends")
    if node is None:
        return top
    node = environment_only(node)
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        problem = node.place.problem("`extends` takes the path of one file", "write `extends: base.yaml`")
        raise ConfigError([problem])
    base_path = folder / node.value
    resolved = base_path.resolve()
    if resolved in chain:
        raise ConfigError([node.place.problem("this file extends itself, by way of others", "break the circle")])
    if not is_there(base_path):
        raise ConfigError([node.place.problem(f"no such file: {base_path}", "the path is relative to this file")])
    shown = os.path.normpath(base_path)
    base = extend(read_file(base_path, shown), base_path.parent, (*chain, resolved))
    return _merge_maps(_moved(base, os.path.relpath(resolved.parent, folder.resolve())), top.without("extends"))


def _moved(node: Any, prefix: str) -> Any:
    """The base's relative files (`uses: ./ops.py:decode`) as seen from the folder of the file that extends it."""
    if prefix == "." or isinstance(node, Scalar):
        return node
    if isinstance(node, List):
        return replace(node, items=tuple(_moved(item, prefix) for item in node.items))
    entries = {key: Entry(entry.key_place, _moved(entry.node, prefix)) for key, entry in node.entries.items()}
    moved = Map(entries, node.place)
    arguments = moved.get("with")
    if is_dataset_source(moved) and isinstance(arguments, Map):
        moved = moved.with_entry("with", _paths_moved(arguments, IN_SHORT, prefix))
    return _paths_moved(moved, ("uses",), prefix)


def _paths_moved(node: Map, keys: Sequence[str], prefix: str) -> Map:
    for key in keys:
        path = node.text(key)
        if path is not None and is_file(split_path(path)[0]) and not Path(path).is_absolute():
            node = node.with_entry(key, Scalar(os.path.normpath(f"{prefix}/{path}"), node.entries[key].node.place))
    return node


def merge(base: Node, over: Node) -> Node:
    """`over` laid over `base`: mappings key by key, lists of named entries (stages) by name, all else replaced."""
    if isinstance(base, Map) and isinstance(over, Map):
        return _merge_maps(base, over)
    if isinstance(base, List) and isinstance(over, List) and _names(base) and _names(over):
        return _merge_named(base, over)
    return over


def _merge_maps(base: Map, over: Map) -> Map:
    base_uses, over_uses = base.get("uses"), over.get("uses")
    if isinstance(base_uses, Scalar) and isinstance(over_uses, Scalar) and base_uses.value != over_uses.value:
        base = base.without("with")  # the arguments of another target
    entries = dict(base.entries)
    for key, entry in over.entries.items():
        old = entries.get(key)
        entries[key] = Entry(entry.key_place, merge(old.node, entry.node) if old else entry.node)
    return Map(entries, over.place)


def _names(items: List) -> list[str]:
    """The names of a list's entries; empty if any has none."""
    names = [item.text("name") if isinstance(item, Map) else None for item in items.items]
    return [] if None in names else [name for name in names if name is not None]


def _merge_named(base: List, over: List) -> List:
    merged = dict(zip(_names(base), base.items, strict=True))
    repeated = []
    for seen, (name, item) in enumerate(zip(_names(over), over.items, strict=True)):
        if name in _names(over)[:seen]:
            repeated.append(item)  # two of one name in one file are a mistake that is reported later
        else:
            merged[name] = merge(merged[name], item) if name in merged else item
    return List((*merged.values(), *repeated), over.place)
