"""Expands `source: {uses: stagepipe.sources.dataset}` into a source of indices and a first stage, `dataset`.

No other module knows the shorthand: paths without `uses`, and the dataset's own `with`. The expanded source and stage
look like any other and go through the same checks. Every node keeps its location. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stagepipe.config.cross_checks import PROCESS_KEYS, get_stages
from stagepipe.config.schema import format_kind, format_value
from stagepipe.config.static_analysis import is_known_stream
from stagepipe.config.suggestions import DATALOADER_ARGUMENT_HINTS
from stagepipe.config.yaml import ListNode, MapEntry, MapNode, Node, ScalarNode, to_plain
from stagepipe.core import AdviceText, ConfigSyntax, Placeholder, Problem, closest_match

DATASET_STAGE_NAME: Final = "dataset"
"""The name of the stage that turns indices into samples."""

SHORTHAND_ARGUMENTS: Final = ("dataset", "sampler", "batch_sampler", "collate_fn")
"""Arguments of the source that may be just a path."""

_DATASET_SOURCE_PATH: Final = "stagepipe.sources.dataset"
_DATASET_SOURCE_PATHS: Final = (_DATASET_SOURCE_PATH, "stagepipe.sources.DatasetSource")
"""The alias and the class."""
_FETCH_STAGE_PATH: Final = "stagepipe.stages.Fetch"
_SOURCE_ARGUMENTS: Final = ("dataset", "shuffle", "sampler", "batch_sampler")
_KNOWN_ARGUMENTS: Final = ("dataset", "with", "shuffle", "sampler", "batch_sampler", "collate_fn")
_FORBIDDEN_STAGE_KEYS: Final = ("uses", "with", "field", "as")


def is_dataset_source(source: Node | None) -> bool:
    """Return whether a config's `source` is `stagepipe.sources.dataset`, given as a path or a class."""
    uses = source.get("uses") if isinstance(source, MapNode) else None
    value = uses.value if isinstance(uses, ScalarNode) else None
    if inspect.isclass(value):
        value = f"{value.__module__.rpartition('.')[0]}.{value.__qualname__}"
    return isinstance(value, str) and value.replace(":", ".") in _DATASET_SOURCE_PATHS


def add_dataset_stage(root: MapNode) -> MapNode:
    """Return the config with the stage `dataset` as the first entry of `stages`, if its source needs one.

    An entry that the user wrote under that name, at any position, becomes that stage.
    """
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
    problems += _check_source_keys(source)
    problems += _check_arguments(source_arguments)
    problems += _check_stage_keys(stage, source_arguments)
    expanded_arguments = _expand_shorthand(source_arguments)
    if _is_stream_dataset(source_arguments, config_dir):
        problems += _check_stream_keys(stage, source_arguments)
        stage = stage.without(*PROCESS_KEYS)
        if "fuse" not in stage.entries:
            stage = stage.with_entry("fuse", ScalarNode(value=True, location=source.location))
    if isinstance(arguments, MapNode):
        entries = {key: entry for key, entry in expanded_arguments.entries.items() if key in _SOURCE_ARGUMENTS}
        root = root.with_entry("source", source.with_entry("with", MapNode(entries, arguments.location)))
    fetch_stage = _make_fetch_stage(stage, expanded_arguments, source)
    return root.with_entry("stages", replace(stages, items=(fetch_stage, *stages.items[1:])))


def _expand_shorthand(source_arguments: MapNode) -> MapNode:
    entries = {
        key: replace(entry, node=_to_target_node(entry.node))
        for key, entry in source_arguments.entries.items()
        if key in SHORTHAND_ARGUMENTS
    }
    dataset, arguments = entries.get("dataset"), source_arguments.entries.get("with")
    if dataset is not None and arguments is not None and isinstance(dataset.node, MapNode):
        node = dataset.node.with_entry("with", arguments.node, arguments.key_location)
        entries["dataset"] = replace(dataset, node=node)
    return MapNode({**source_arguments.entries, **entries}, source_arguments.location)


def _to_target_node(node: Node) -> Node:
    """Return `{uses: node}` for a path, a class or a function; return an object unchanged."""
    if not isinstance(node, ScalarNode):
        return node
    value = node.value
    is_factory = inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, functools.partial)
    if not is_factory and not isinstance(value, str):
        return node
    return MapNode({"uses": MapEntry(node.location, node)}, node.location)


def _is_stream_dataset(source_arguments: MapNode, config_dir: Path | None) -> bool:
    dataset = source_arguments.get("dataset")
    uses = dataset.get("uses") if isinstance(dataset, MapNode) else dataset
    return isinstance(uses, ScalarNode) and is_known_stream(uses.value, config_dir)


def _check_stream_keys(stage: MapNode, source_arguments: MapNode) -> Iterator[Problem]:
    """Reject keys that need indices or workers: an iterable dataset has no indices, and its stage does no work."""
    for key in ("shuffle", "sampler", "batch_sampler"):
        node = source_arguments.get(key)
        if node is not None and not (isinstance(node, ScalarNode) and node.value is False):
            message = f"`{key}` does not apply to an iterable dataset: it has no indices"
            location = source_arguments.entries[key].key_location
            shuffle = location.syntax.format_built_in_stage("Shuffle", 1000)
            is_builder = location.syntax is ConfigSyntax.BUILDER
            hint = f"remove `{key}`; to shuffle, {f'call `{shuffle}`' if is_builder else f'add a stage {shuffle}'}"
            yield location.make_problem(message, hint)
    for key in PROCESS_KEYS:
        if stage.get(key) is not None:
            message = f"the stage `{DATASET_STAGE_NAME}` takes no `{key}`: the source itself reads an iterable dataset"
            hint = f"remove `{key}`; set it on the stage that does the work"
            yield stage.entries[key].key_location.make_problem(message, hint)


def _make_fetch_stage(stage: MapNode, expanded_arguments: MapNode, source: MapNode) -> MapNode:
    """Return the stage `dataset` with `uses` and `with`; its `uses` has the location of the source's `uses`."""
    missing_dataset = MapEntry(source.location, ScalarNode(None, source.location))
    dataset = expanded_arguments.entries.get("dataset", missing_dataset)
    arguments = MapNode({"dataset": dataset}, source.location)
    if expanded_arguments.get("batch_sampler") is not None:
        arguments = arguments.with_entry("batched", ScalarNode(value=True, location=source.location))
    collate = expanded_arguments.entries.get("collate_fn")
    if collate is not None and expanded_arguments.get("collate_fn") is not None:
        arguments = arguments.with_entry("collate_fn", collate.node, collate.key_location)
    location = source.entries["uses"].node.location
    return stage.with_entry("uses", ScalarNode(_FETCH_STAGE_PATH, location)).with_entry("with", arguments)


def _check_source_keys(source: MapNode) -> Iterator[Problem]:
    for key in ("retries", "on_error", "allow_none"):
        if source.get(key) is not None:
            message = (
                f"`{_DATASET_SOURCE_PATH}` takes no `{key}`: it only sends indices; "
                f"the stage `{DATASET_STAGE_NAME}` reads the samples"
            )
            location = source.entries[key].key_location
            stage = location.syntax.format_value({"name": DATASET_STAGE_NAME, key: Placeholder("...")})
            is_builder = location.syntax is ConfigSyntax.BUILDER
            hint = f"write from_dataset(..., {key}=...)" if is_builder else f"set it on that stage: {stage}"
            yield location.make_problem(message, hint)


def _check_arguments(source_arguments: MapNode) -> Iterator[Problem]:
    for key, entry in source_arguments.entries.items():
        if key not in _KNOWN_ARGUMENTS:
            closest = closest_match(str(key), _KNOWN_ARGUMENTS)
            known = f"it takes {', '.join(f'`{name}`' for name in _KNOWN_ARGUMENTS)}"
            hint: AdviceText = DATALOADER_ARGUMENT_HINTS.get(key) or (
                f"did you mean `{closest}`?" if closest else known
            )
            yield entry.key_location.make_problem(f"`{_DATASET_SOURCE_PATH}` has no argument `{key}`", hint)
    yield from _check_order_arguments(source_arguments)
    arguments, dataset = source_arguments.get("with"), source_arguments.get("dataset")
    if arguments is not None and not isinstance(arguments, MapNode):
        syntax = arguments.location.syntax
        kind, found = format_kind("a mapping", syntax), format_value(to_plain(arguments), syntax)
        message = f"`with`: expected {kind} of the dataset's arguments, found {found}"
        yield arguments.location.make_problem(message, f"write {syntax.format_value({'root': 'data'})}")
    elif arguments is not None and dataset is not None and not _accepts_with(dataset):
        message = (
            "`with` beside `dataset` needs a dataset given as a path; this one has its own `with`, or is an object"
        )
        yield source_arguments.entries["with"].key_location.make_problem(message, "remove `with`")


def _accepts_with(dataset: Node) -> bool:
    target: Any = _to_target_node(dataset)
    return isinstance(target, MapNode) and isinstance(dataset, ScalarNode)


def _check_order_arguments(source_arguments: MapNode) -> Iterator[Problem]:
    shuffle = source_arguments.get("shuffle")
    if shuffle is not None and not (isinstance(shuffle, ScalarNode) and isinstance(shuffle.value, bool)):
        syntax = shuffle.location.syntax
        expected, found = format_kind("true or false", syntax), format_value(to_plain(shuffle), syntax)
        yield shuffle.location.make_problem(f"`shuffle`: expected {expected}, found {found}", f"write {expected}")
    is_shuffled = isinstance(shuffle, ScalarNode) and shuffle.value is True
    order_keys = [key for key in ("shuffle", "sampler", "batch_sampler") if source_arguments.get(key) is not None]
    order_keys = [key for key in order_keys if key != "shuffle" or is_shuffled]
    for key in order_keys[1:]:
        message = f"`{order_keys[0]}` and `{key}` exclude each other: each defines the order of an epoch"
        yield source_arguments.entries[key].key_location.make_problem(message, f"remove `{order_keys[0]}` or `{key}`")
    if source_arguments.get("collate_fn") is not None and source_arguments.get("batch_sampler") is None:
        message = "`collate_fn` needs a `batch_sampler`: it is called with the samples of a batch"
        location = source_arguments.entries["collate_fn"].key_location
        batch = location.syntax.format_built_in_stage("Batch", Placeholder("N"))
        is_builder = location.syntax is ConfigSyntax.BUILDER
        fix = f"call `{batch}`" if is_builder else f"add a stage {batch}"
        yield location.make_problem(message, f"add a `batch_sampler`, or remove `collate_fn` and {fix}")


def _check_stage_keys(stage: MapNode, source_arguments: MapNode) -> Iterator[Problem]:
    for key in _FORBIDDEN_STAGE_KEYS:
        if stage.get(key) is not None:
            message = (
                f"the stage `{DATASET_STAGE_NAME}` takes no `{key}`: it calls the `__getitem__` of the source's dataset"
            )
            hint = f"remove `{key}`; if this is a different stage, give it another name"
            yield stage.entries[key].key_location.make_problem(message, hint)
    if stage.get("batch") is not None and source_arguments.get("batch_sampler") is not None:
        message = (
            f"the stage `{DATASET_STAGE_NAME}` takes no `batch`: the source's `batch_sampler` already forms the batches"
        )
        yield stage.entries["batch"].key_location.make_problem(message, "remove `batch`")
