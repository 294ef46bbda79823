"""Checks what a single key cannot show: stage names, and keys that exclude each other. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from stagepipe.config.cache_checks import check_caches
from stagepipe.config.engine_checks import check_engine
from stagepipe.config.stage_traits import SinkTraits, StageTraits
from stagepipe.config.yaml import ListNode, MapNode, Node, ScalarNode, SourceLocation
from stagepipe.core import Problem
from stagepipe.spec import SinkSpec, SourceReading, StageSpec, iter_keys

PROCESS_KEYS: Final = tuple(key.key for key in iter_keys(StageSpec) if key.info.is_process_key)
_ERROR_HANDLING_KEYS: Final = ("retries", "on_error")
_PART_SINK_KEYS: Final = tuple(key.key for key in iter_keys(SinkSpec) if key.key not in {"uses", "with"})
_COUNT_ARGUMENTS: Final = ("part_items", "shard_items")
_FUNCTION_KEYS: Final = ("field", "as", "into", "batch")


def get_stages(root: MapNode) -> list[MapNode]:
    """Return the entries of `stages` that are mappings."""
    stages = root.get("stages")
    return [stage for stage in stages.items if isinstance(stage, MapNode)] if isinstance(stages, ListNode) else []


def get_sinks(root: MapNode) -> list[MapNode]:
    """Return the sinks that are mappings: `sink` itself, or its entries."""
    sink = root.get("sink")
    sinks = sink.items if isinstance(sink, ListNode) else [sink]
    return [entry for entry in sinks if isinstance(entry, MapNode)]


def check_sinks(root: MapNode, sink_traits: Sequence[SinkTraits]) -> Iterator[Problem]:
    """Yield the problems of keys of sinks that are valid alone. `sink_traits` are those of the sinks."""
    stage_names = {stage.get_text("name") for stage in get_stages(root)}
    for sink, traits in zip(get_sinks(root), sink_traits, strict=True):
        name = sink.get_text("name")
        if name is not None and name in stage_names:
            location = sink.entries["name"].node.location
            yield location.make_problem(
                f"the name `{name}` is that of a stage", f"use a unique name such as `{name}_2`"
            )
        stage_names.add(name)
        for key in () if traits.writes_parts else _PART_SINK_KEYS:
            if sink.get(key) is not None:
                message = f"this sink takes no `{key}`: it is called with each item in the calling process"
                hint = f"remove `{key}`, or use a sink with workers: a subclass of stagepipe.sinks.PartSink"
                yield sink.entries[key].key_location.make_problem(message, hint)
        if traits.part_multiple > 1 and sink.get("when") is not None:
            message = f"this sink takes no `when`: its workers write whole chunks of {traits.part_multiple} items"
            hint = "drop the other items in a stage before the sinks, or set `chunk_items: 1`"
            yield sink.entries["when"].key_location.make_problem(message, hint)
        if traits.writes_parts:
            yield from _check_counts(sink, traits)


def _check_counts(sink: MapNode, traits: SinkTraits) -> Iterator[Problem]:
    """Check the numbers of items that the planner reads. The sink checks them too, but only once it is built."""
    arguments = sink.get("with")
    entries = arguments.entries if isinstance(arguments, MapNode) else {}
    for name in entries.keys() & {*_COUNT_ARGUMENTS, traits.multiple_argument}:
        node = entries[name].node
        value = node.value if isinstance(node, ScalarNode) else None
        if isinstance(value, int) and value < 1:
            hint = f"write a number, or remove `{name}` for the default"
            yield node.location.make_problem(f"`{name}` is {value!r}; it must be a whole number of at least 1", hint)


def check_key_combinations(
    root: MapNode, stage_traits: Sequence[StageTraits], reading: SourceReading
) -> Iterator[Problem]:
    """Yield the problems of keys that are valid alone but not together. `stage_traits` are those of the stages.

    `reading`: how the items of the source are read.
    """
    yield from _check_unique_names(root)
    yield from _check_source(root, reading)
    process_name = "source"
    for stage, traits in zip(get_stages(root), stage_traits, strict=True):
        if not _is_true(stage.get("fuse")):
            process_name = stage.get_text("name") or process_name
        yield from _check_fused(stage, process_name)
        if traits.is_order_point:
            yield from _check_order_point(stage, traits.label)
        if traits.takes_whole_items:
            yield from _check_whole_item_stage(stage, traits.label)
    yield from check_caches(root, get_stages(root), stage_traits, reading)
    yield from check_engine(root, get_stages(root), stage_traits)


def _check_unique_names(root: MapNode) -> Iterator[Problem]:
    location_by_name: dict[str, SourceLocation] = {}
    for stage in get_stages(root):
        name = stage.get_text("name")
        if name is None:
            continue
        location = stage.entries["name"].node.location
        if name in location_by_name:
            line = location_by_name[name].line
            first_use = f"at line {line}" if line else "by an earlier stage"
            message = f"duplicate stage name `{name}`; first used {first_use}"
            yield location.make_problem(message, f"use a unique name such as `{name}_2`")
        location_by_name.setdefault(name, location)


def _check_source(root: MapNode, reading: SourceReading) -> Iterator[Problem]:
    source = root.get("source")
    if isinstance(source, MapNode) and reading in {"index", "shards"} and _is_true(source.get("fuse")):
        for key in PROCESS_KEYS:
            if source.get(key) is not None and not _is_one_worker(source, key):
                message = f"a source with `fuse` takes no `{key}`: one process draws the order and reads"
                yield source.entries[key].key_location.make_problem(message, f"remove `{key}`, or `fuse`")
    uses = source.get("uses") if isinstance(source, MapNode) else None
    if isinstance(uses, ListNode):  # from Python, a list is a source and arrives here as a ScalarNode
        yield uses.location.make_problem(
            "`source.uses`: expected an import path, found a list", "write pkg.module.name"
        )


def _is_one_worker(entry: MapNode, key: str) -> bool:
    """Whether a key is `workers: 1`, which says of a fused stage what `fuse` does: it has no workers apart."""
    node = entry.get(key)
    return key == "workers" and isinstance(node, ScalarNode) and node.value == 1


def _check_fused(stage: MapNode, process_name: str) -> Iterator[Problem]:
    """Reject keys that a stage cannot have when it is fused into the process of `process_name`."""
    if not _is_true(stage.get("fuse")):
        return
    for key in PROCESS_KEYS:
        if stage.get(key) is not None and not _is_one_worker(stage, key):
            message = f"a fused stage takes no `{key}`: it runs in the previous stage's process"
            hint = f"remove `{key}`, or set it on the previous stage"
            yield stage.entries[key].key_location.make_problem(message, hint)
    if stage.get_text("transport") not in {None, "auto"}:
        message = "a fused stage takes no `transport`: it receives items through a function call"
        yield stage.entries["transport"].key_location.make_problem(message, "remove `transport`")
    if _is_true(stage.get("mutable")):
        message = (
            f"a fused stage takes no `mutable`: only items that enter the process, at `{process_name}`, are read-only"
        )
        location = stage.entries["mutable"].key_location
        setting = location.syntax.format_setting("mutable", value=True)
        hint = (
            "remove `mutable`"
            if process_name == "source"
            else f"set `{setting}` on `{process_name}`, which it is fused into"
        )
        yield location.make_problem(message, hint)


def _check_order_point(stage: MapNode, label: str) -> Iterator[Problem]:
    if stage.get("workers") is not None:
        message = f"`{label}` takes no `workers`: it restores the item order in one process"
        yield stage.entries["workers"].key_location.make_problem(message, "remove `workers`")
    if _is_true(stage.get("fuse")) or stage.get_text("fuse") == "auto":
        message = f"`{label}` cannot be fused: it restores the item order in its own process"
        yield stage.entries["fuse"].key_location.make_problem(message, "remove `fuse`")
    for key in _ERROR_HANDLING_KEYS:
        if stage.get(key) is not None:
            message = f"`{label}` takes no `{key}`: an item that it cannot accept ends the run"
            hint = f"remove `{key}`; set it on an earlier stage that rejects such items"
            yield stage.entries[key].key_location.make_problem(message, hint)
    if stage.get("when") is not None:
        message = f"`{label}` takes no `when`: it groups all items"
        hint = "remove `when`; to group some of the items, drop the others before with `stagepipe.stages.Filter`"
        yield stage.entries["when"].key_location.make_problem(message, hint)
    if stage.get("allow_none") is not None:
        message = f"`{label}` takes no `allow_none`: it may group None like any other item"
        yield stage.entries["allow_none"].key_location.make_problem(message, "remove `allow_none`")


def _check_whole_item_stage(stage: MapNode, label: str) -> Iterator[Problem]:
    for key in _FUNCTION_KEYS:
        if stage.get(key) is not None:
            message = f"`{label}` takes no `{key}`: it works on whole items"
            yield stage.entries[key].key_location.make_problem(message, f"remove `{key}`")


def _is_true(node: Node | None) -> bool:
    return isinstance(node, ScalarNode) and node.value is True
