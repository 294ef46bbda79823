"""Expands `source: {uses: stagepipe.sources.dataset}` into a source of indices and a first stage, `dataset`.

No other module knows the shorthand: paths without `uses`, and the dataset's own `with`. The expanded source and stage
look like any other and go through the same checks. Every node keeps its location. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stagepipe.config.cross_checks import PROCESS_KEYS, get_stages
from stagepipe.config.dataset_arguments import (
    DATASET_STAGE_NAME,
    check_arguments,
    check_source_keys,
    check_stage_keys,
    check_stream_keys,
)
from stagepipe.config.record_sources import expand_record_source
from stagepipe.config.static_analysis import is_known_stream
from stagepipe.config.yaml import ListNode, MapEntry, MapNode, Node, ScalarNode
from stagepipe.core import Problem, get_class_path

SHORTHAND_ARGUMENTS: Final = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn")
"""Arguments of the source that may be just a path."""
_CALLED_ARGUMENTS: Final = ("collate_fn", "worker_init_fn")
"""Those that are called with samples or a worker, and not to create something."""

_DATASET_SOURCE_PATHS: Final = ("stagepipe.sources.dataset", "stagepipe.sources.DatasetSource")
"""The alias and the class."""
_FETCH_STAGE_PATH: Final = "stagepipe.stages.Fetch"
_FETCH_SHARD_STAGE_PATH: Final = "stagepipe.stages.FetchShard"
_SOURCE_ARGUMENTS: Final = (
    "dataset",
    "shuffle",
    "sampler",
    "batch_sampler",
    "batch_size",
    "drop_last",
    "worker_init_fn",
)
_SHARD_ARGUMENTS: Final = ("dataset", "shards")
_FETCH_ARGUMENTS: Final = ("collate_fn", "worker_init_fn")
_FETCH_SHARD_ARGUMENTS: Final = ("shards", "batch_size", "drop_last", "collate_fn", "worker_init_fn")


def is_dataset_source(source: Node | None) -> bool:
    """Return whether a config's `source` is `stagepipe.sources.dataset`, given as a path or a class."""
    uses = source.get("uses") if isinstance(source, MapNode) else None
    value = uses.value if isinstance(uses, ScalarNode) else None
    if inspect.isclass(value):
        value = get_class_path(value)
    return isinstance(value, str) and value.replace(":", ".") in _DATASET_SOURCE_PATHS


def add_dataset_stage(root: MapNode) -> MapNode:
    """Return the config with the stage `dataset` as the first entry of `stages`, if its source needs one.

    An entry that the user wrote under that name, at any position, becomes that stage. A record source becomes a dataset
    source.
    """
    root = expand_record_source(root)
    source = root.get("source")
    stages = root.get("stages") or ListNode(location=root.location)
    if source is None or not is_dataset_source(source) or not isinstance(stages, ListNode):
        return root
    explicit_stage = next(
        (s for s in stages.items if isinstance(s, MapNode) and s.get_text("name") == DATASET_STAGE_NAME), None
    )
    dataset_stage = (
        MapNode({"name": MapEntry(source.location, ScalarNode(DATASET_STAGE_NAME, source.location))}, source.location)
        if explicit_stage is None
        else explicit_stage
    )
    other_stages = tuple(stage for stage in stages.items if stage is not explicit_stage)
    return root.with_entry("stages", replace(stages, items=(dataset_stage, *other_stages)))


def expand_dataset_source(root: MapNode, config_dir: Path | None, problems: list[Problem]) -> MapNode:
    """Return the config with its dataset source expanded. Append mistakes in the shorthand to `problems`."""
    root = add_dataset_stage(root)
    source = root.get("source")
    arguments = source.get("with") if isinstance(source, MapNode) else None
    stages = root.get("stages")
    if not is_dataset_source(source) or not isinstance(source, MapNode) or not isinstance(stages, ListNode):
        return root
    source_arguments = arguments if isinstance(arguments, MapNode) else MapNode(location=source.location)
    stage = next(s for s in get_stages(root) if s.get_text("name") == DATASET_STAGE_NAME)
    problems += check_source_keys(source)
    problems += check_arguments(source_arguments, takes_with=_is_factory(source_arguments.get("dataset")))
    problems += check_stage_keys(stage, source_arguments)
    expanded_arguments = _expand_shorthand(source_arguments)
    has_shards = source_arguments.get("shards") is not None
    if not has_shards and _is_stream_dataset(source_arguments, config_dir):
        problems += check_stream_keys(stage, source_arguments)
        stage = stage.without(*PROCESS_KEYS)
        if "fuse" not in stage.entries:
            stage = stage.with_entry("fuse", ScalarNode(value=True, location=source.location))
    if isinstance(arguments, MapNode):
        source_names = _SHARD_ARGUMENTS if has_shards else _SOURCE_ARGUMENTS
        entries = {key: entry for key, entry in expanded_arguments.entries.items() if key in source_names}
        root = root.with_entry("source", source.with_entry("with", MapNode(entries, arguments.location)))
    make_stage = _make_fetch_shard_stage if has_shards else _make_fetch_stage
    fetch_stage = make_stage(stage, expanded_arguments, source)
    return root.with_entry("stages", replace(stages, items=(fetch_stage, *stages.items[1:])))


def _expand_shorthand(source_arguments: MapNode) -> MapNode:
    entries = {
        key: replace(entry, node=_to_target_node(entry.node))
        for key, entry in source_arguments.entries.items()
        if key in SHORTHAND_ARGUMENTS and not (key in _CALLED_ARGUMENTS and _is_plain_class(entry.node))
    }
    dataset, arguments = entries.get("dataset"), source_arguments.entries.get("with")
    if dataset is not None and arguments is not None and isinstance(dataset.node, MapNode):
        node = dataset.node.with_entry("with", arguments.node, arguments.key_location)
        entries["dataset"] = replace(dataset, node=node)
    return MapNode({**source_arguments.entries, **entries}, source_arguments.location)


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


def _make_fetch_stage(stage: MapNode, arguments: MapNode, source: MapNode) -> MapNode:
    """Return the stage `dataset` that turns indices into samples."""
    true = ScalarNode(value=True, location=source.location)
    has_batches = arguments.get("batch_sampler") is not None or arguments.get("batch_size") is not None
    flags = {"batched": has_batches, "takes_lists": stage.get("batch") is not None}
    extra = {name: MapEntry(source.location, true) for name, is_set in flags.items() if is_set}
    return _make_stage(_FETCH_STAGE_PATH, stage, source, extra | _select(arguments, _FETCH_ARGUMENTS), arguments)


def _make_fetch_shard_stage(stage: MapNode, arguments: MapNode, source: MapNode) -> MapNode:
    """Return the stage `dataset` that reads shards."""
    selected = _select(arguments, _FETCH_SHARD_ARGUMENTS)
    return _make_stage(_FETCH_SHARD_STAGE_PATH, stage, source, selected, arguments)


def _make_stage(
    path: str, stage: MapNode, source: MapNode, entries: dict[Any, MapEntry], arguments: MapNode
) -> MapNode:
    """Return the stage with `uses` and `with`; its `uses` has the location of the source's `uses`."""
    missing_dataset = MapEntry(source.location, ScalarNode(None, source.location))
    dataset = arguments.entries.get("dataset", missing_dataset)
    location = source.entries["uses"].node.location
    stage_arguments = MapNode({"dataset": dataset, **entries}, source.location)
    return stage.with_entry("uses", ScalarNode(path, location)).with_entry("with", stage_arguments)


def _select(arguments: MapNode, names: tuple[str, ...]) -> dict[Any, MapEntry]:
    return {name: arguments.entries[name] for name in names if arguments.get(name) is not None}
