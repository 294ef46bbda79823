"""Merges a config over the files that it `extends`. Reads files; nodes keep their locations.

Runs in the process that loads the config.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stagepipe.config.dataset_source import SHORTHAND_ARGUMENTS, is_dataset_source
from stagepipe.config.record_sources import LOADER_ARGUMENTS, is_record_source
from stagepipe.config.schema import format_value
from stagepipe.config.yaml import (
    ListNode,
    MapEntry,
    MapNode,
    Node,
    ScalarNode,
    read_file,
    resolve_environment,
    to_plain,
)
from stagepipe.core import ConfigError, file_exists, names_file, split_target_path


def read_with_bases(path: Path) -> MapNode:
    """Read a file and merge it over the files that it extends. Raises ConfigError."""
    return apply_extends(read_file(path), path.parent, (path.resolve(),))


def apply_extends(root: MapNode, folder: Path, ancestors: tuple[Path, ...] = ()) -> MapNode:
    """Merge `root` over the file that its `extends` names, relative to `folder`. Raises ConfigError.

    `ancestors` are the files on the way here, to detect a cycle.
    """
    node = root.get("extends")
    if node is None:
        return root
    node = resolve_environment(node)
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        message = f"`extends`: expected the path of one file, found {format_value(to_plain(node))}"
        raise ConfigError([node.location.make_problem(message, "write `extends: base.yaml`")])
    base_path = folder / node.value
    resolved = base_path.resolve()
    if resolved in ancestors:
        cycle = " -> ".join(path.name for path in (*ancestors[ancestors.index(resolved) :], resolved))
        raise ConfigError([node.location.make_problem(f"circular `extends`: {cycle}", "remove one of these `extends`")])
    if not file_exists(base_path):
        raise ConfigError(
            [node.location.make_problem(f"no such file: {base_path}", "the path is relative to this file")]
        )
    display_path = os.path.normpath(base_path)
    base = apply_extends(read_file(base_path, display_path), base_path.parent, (*ancestors, resolved))
    return _merge_maps(_rebase_paths(base, os.path.relpath(resolved.parent, folder.resolve())), root.without("extends"))


def _rebase_paths(node: Any, prefix: str) -> Any:
    """Rewrite a base's relative files (`uses: ./ops.py:decode`) relative to the folder of the extending file."""
    if prefix == "." or isinstance(node, ScalarNode):
        return node
    if isinstance(node, ListNode):
        return replace(node, items=tuple(_rebase_paths(item, prefix) for item in node.items))
    entries = {
        key: MapEntry(entry.key_location, _rebase_paths(entry.node, prefix)) for key, entry in node.entries.items()
    }
    rebased = MapNode(entries, node.location)
    arguments = rebased.get("with")
    if is_dataset_source(rebased) and isinstance(arguments, MapNode):
        rebased = rebased.with_entry("with", _rebase_path_values(arguments, SHORTHAND_ARGUMENTS, prefix))
    elif is_record_source(rebased) and isinstance(arguments, MapNode):
        rebased = rebased.with_entry("with", _rebase_path_values(arguments, LOADER_ARGUMENTS, prefix))
    return _rebase_path_values(rebased, ("uses",), prefix)


def _rebase_path_values(node: MapNode, keys: Sequence[str], prefix: str) -> MapNode:
    for key in keys:
        path = node.get_text(key)
        if path is not None and names_file(split_target_path(path)[0]) and not Path(path).is_absolute():
            rebased_path = os.path.normpath(f"{prefix}/{path}")
            node = node.with_entry(key, ScalarNode(rebased_path, node.entries[key].node.location))
    return node


def merge(base: Node, overlay: Node) -> Node:
    """Merge `overlay` over `base`: mappings by key, lists of named entries (stages) by name; replace anything else."""
    if isinstance(base, MapNode) and isinstance(overlay, MapNode):
        return _merge_maps(base, overlay)
    if isinstance(base, ListNode) and isinstance(overlay, ListNode) and _entry_names(base) and _entry_names(overlay):
        return _merge_by_name(base, overlay)
    return overlay


def _merge_maps(base: MapNode, overlay: MapNode) -> MapNode:
    base_uses = base.get("uses")
    overlay_uses = overlay.get("uses")
    if (
        isinstance(base_uses, ScalarNode)
        and isinstance(overlay_uses, ScalarNode)
        and base_uses.value != overlay_uses.value
    ):
        base = base.without("with")  # its arguments belong to another target
    entries = dict(base.entries)
    for key, entry in overlay.entries.items():
        base_entry = entries.get(key)
        entries[key] = MapEntry(entry.key_location, merge(base_entry.node, entry.node) if base_entry else entry.node)
    return MapNode(entries, overlay.location)


def _entry_names(entries: ListNode) -> list[str]:
    """Return the names of a list's entries; empty if any entry has no name."""
    names = [item.get_text("name") if isinstance(item, MapNode) else None for item in entries.items]
    return [] if None in names else [name for name in names if name is not None]


def _merge_by_name(base: ListNode, overlay: ListNode) -> ListNode:
    merged = dict(zip(_entry_names(base), base.items, strict=True))
    repeated = []
    for index, (name, item) in enumerate(zip(_entry_names(overlay), overlay.items, strict=True)):
        if name in _entry_names(overlay)[:index]:
            repeated.append(item)  # kept, so that cross_checks reports the duplicate name
        else:
            merged[name] = merge(merged[name], item) if name in merged else item
    return ListNode((*merged.values(), *repeated), overlay.location)
