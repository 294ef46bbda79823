"""Writes out the arguments of `source: {uses: stagepipe.sources.dataset}`, and says how its items are read. Pure.

No other module knows the shorthand: paths without `uses`, and the dataset's own `with`. The long form goes through the
same checks as any other target. Every node keeps its location. The plan splits the source into its processes.

Runs in the process that loads the config.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Final

from stagepipe.config.dataset_arguments import check_arguments, check_source_keys, check_stream_arguments
from stagepipe.config.record_sources import expand_record_source
from stagepipe.config.static_analysis import is_known_stream
from stagepipe.config.yaml import MapEntry, MapNode, Node, ScalarNode
from stagepipe.core import Problem, get_class_path
from stagepipe.spec import SourceReading

SHORTHAND_ARGUMENTS: Final = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn")
"""Arguments of the source that may be just a path."""
CALLED_ARGUMENTS: Final = ("collate_fn", "worker_init_fn")
"""Those that are called with samples or a worker, and not to create something."""

_DATASET_SOURCE_PATHS: Final = ("stagepipe.sources.dataset", "stagepipe.sources.DatasetSource")
"""The alias and the class."""


def is_dataset_source(source: Node | None) -> bool:
    """Return whether a config's `source` is `stagepipe.sources.dataset`, given as a path or a class."""
    uses = source.get("uses") if isinstance(source, MapNode) else None
    value = uses.value if isinstance(uses, ScalarNode) else None
    if inspect.isclass(value):
        value = get_class_path(value)
    return isinstance(value, str) and value.replace(":", ".") in _DATASET_SOURCE_PATHS


def normalize_source(root: MapNode, config_dir: Path | None, problems: list[Problem]) -> tuple[MapNode, SourceReading]:
    """Return the config with its dataset or record source in its long form, and how its items are read.

    Append mistakes in its arguments, and keys that such a source does not take, to `problems`.
    """
    root = expand_record_source(root)
    source = root.get("source")
    if not isinstance(source, MapNode):
        return root, ""
    if not is_dataset_source(source):
        problems += check_source_keys(source, "")
        return root, ""
    given = source.get("with")
    arguments = given if isinstance(given, MapNode) else MapNode(location=source.location)
    problems += check_arguments(arguments, takes_with=_is_factory(arguments.get("dataset")))
    if arguments.get("shards") is not None:
        reading: SourceReading = "shards"
    else:
        reading = "stream" if _is_stream_dataset(arguments, config_dir) else "index"
    if reading == "stream":
        problems += check_stream_arguments(arguments)
    problems += check_source_keys(source, reading)
    if isinstance(given, MapNode):
        root = root.with_entry("source", source.with_entry("with", _expand_shorthand(arguments)))
    return root, reading


def _expand_shorthand(source_arguments: MapNode) -> MapNode:
    entries = {
        key: replace(entry, node=_to_target_node(entry.node))
        for key, entry in source_arguments.entries.items()
        if key in SHORTHAND_ARGUMENTS and not (key in CALLED_ARGUMENTS and _is_plain_class(entry.node))
    }
    dataset, arguments = entries.get("dataset"), source_arguments.entries.get("with")
    if dataset is not None and arguments is not None and isinstance(dataset.node, MapNode):
        node = dataset.node.with_entry("with", arguments.node, arguments.key_location)
        entries["dataset"] = replace(dataset, node=node)
    return MapNode({**source_arguments.entries, **entries}, source_arguments.location).without("with")


def _is_plain_class(node: Node) -> bool:
    """Return whether an argument is a class without `__call__`, such as `tuple`: it is called itself."""
    value = node.value if isinstance(node, ScalarNode) else None
    return inspect.isclass(value) and not any("__call__" in base.__dict__ for base in value.__mro__)


def _to_target_node(node: Node) -> Node:
    """Return `{uses: node}` for a path, a class or a function; return an object unchanged."""
    return MapNode({"uses": MapEntry(node.location, node)}, node.location) if _is_factory(node) else node


def _is_factory(node: Node | None) -> bool:
    """Return whether an argument is a path, a class or a function, which is called to create what is meant."""
    if not isinstance(node, ScalarNode):
        return False
    value = node.value
    is_called = inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, functools.partial)
    return is_called or isinstance(value, str)


def _is_stream_dataset(source_arguments: MapNode, config_dir: Path | None) -> bool:
    dataset = source_arguments.get("dataset")
    uses = dataset.get("uses") if isinstance(dataset, MapNode) else dataset
    return isinstance(uses, ScalarNode) and is_known_stream(uses.value, config_dir)
