"""Checks the keys and values of a config, and combinations of keys that exclude each other.

Turns mistakes into problems, each with its location and a hint. Warns about settings that are valid but risky.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stagepipe.config.document import (
    ListNode,
    MapNode,
    Node,
    ScalarNode,
    SourceLocation,
    find_location,
    find_node,
    is_null,
    iter_children,
    map_children,
    to_plain,
    write_flow_yaml,
)
from stagepipe.config.schema import MODEL_BY_MAPPING_PATH, ConfigPath, Mistake, MistakeKind, check_pipeline
from stagepipe.config.suggestions import UNKNOWN_KEY_HINTS, find_intended_key, make_key_hint
from stagepipe.config.target_checks import SinkTraits, StageTraits, get_sinks, get_stages
from stagepipe.config.value_types import InvalidValueError, check_workers, format_value
from stagepipe.core import Problem
from stagepipe.spec import (
    SOURCE_NAME,
    Capabilities,
    EngineDeclaration,
    EngineSpec,
    PipelineSpec,
    SinkSpec,
    SourceReading,
    StageSpec,
    WorkerRange,
    find_engine,
    get_capabilities,
    iter_keys,
    iter_options,
    list_engines,
)

_MAPPING_LABELS: Final = {
    "": "at the top level",
    "stages[]": "in an entry of `stages`",
    "transport": "in `transport`",
    "report": "in `report`",
    "source": "in `source`",
}
_CALL_LABELS: Final = {"": "in `.with_options(...)`", "stages[]": "in the call of a stage"}
_TARGET_EXAMPLE: Final = "write {uses: pkg.module.name, with: {...}}"
_HINT_BY_MAPPING_PATH: Final = {
    "source": _TARGET_EXAMPLE,
    "sink": _TARGET_EXAMPLE,
    "sink[]": _TARGET_EXAMPLE,
    "stages": "write `- {name: decode, uses: pkg.module.name}` lines under it",
    "stages[]": "write {name: decode, uses: pkg.module.name}",
    "source.batch": "write {size: 32}",
    "stages[].batch": "write {size: 32}",
    "transport": "write {mode: auto}",
    "report": "write {json: FILE}",
}
_HINT_BY_MISSING_KEY: Final = {
    "name": "add `name: NAME`",
    "source": "add `source: {uses: stagepipe.sources.files, with: {glob: ...}}`",
    "uses": "add `uses: pkg.module.name`",
    "size": "add `size: 32`, in Python `batch_size=32`",
}


def get_known_keys(mapping_path: str, *, is_call: bool = False) -> frozenset[str]:
    """Return the keys of a mapping; with `is_call`, only the options of a call.

    `mapping_path` is "" for the top level, "stages[]" for a stage.
    """
    model = MODEL_BY_MAPPING_PATH[mapping_path]
    return frozenset(key.key for key in iter_options(model.spec_type)) if is_call else frozenset(model.keys)


def validate(
    root: MapNode, derived_fields: Mapping[ConfigPath, Mapping[str, Any]], problems: list[Problem]
) -> dict[str, Any] | None:
    """Return the fields of the spec that a config sets. If it is invalid, append its problems and return None.

    `derived_fields` are the fields of inner specs that no key sets, by path.
    """
    values, mistakes = check_pipeline(to_plain(drop_null_keys(root)), derived_fields)
    misspelt = {
        (mistake.path[:-1], _find_intended_key(mistake.path))
        for mistake in mistakes
        if mistake.kind is MistakeKind.UNKNOWN_KEY
    }
    # Do not report a misspelt key as missing too.
    problems += [
        _to_problem(root, mistake)
        for mistake in mistakes
        if mistake.kind is not MistakeKind.MISSING_KEY or (mistake.path[:-1], mistake.path[-1]) not in misspelt
    ]
    return None if mistakes else values


def _find_intended_key(path: ConfigPath) -> str | None:
    return find_intended_key(str(path[-1]), get_known_keys(_to_mapping_path(path[:-1])))


def drop_null_keys(node: Node, mapping_path: str = "") -> Node:
    """Return the config without its null keys, because null has the same meaning as a missing key."""
    if isinstance(node, MapNode):
        if mapping_path not in MODEL_BY_MAPPING_PATH:
            return node
        node = node.without(*(key for key, child in iter_children(node) if is_null(child)))
    is_list = isinstance(node, ListNode)
    return map_children(
        node, lambda key, child: drop_null_keys(child, f"{mapping_path}{'[]' if is_list else f'.{key}'}".lstrip("."))
    )


def _to_problem(root: MapNode, mistake: Mistake) -> Problem:
    path = mistake.path
    if mistake.kind is MistakeKind.UNKNOWN_KEY:
        return _unknown_key_problem(root, path, mapping_path=_to_mapping_path(path[:-1]))
    if mistake.kind is MistakeKind.MISSING_KEY:
        return _missing_key_problem(root, path)
    error = mistake.cause
    location = find_location(root, path, prefer_key=getattr(error, "is_key", False))
    hint = getattr(error, "hint", "") or _HINT_BY_MAPPING_PATH.get(_to_mapping_path(path), "")
    return location.make_problem(f"`{_format_path(root, path, location)}`: {error}", hint)


def _missing_key_problem(root: MapNode, path: ConfigPath) -> Problem:
    key, parent_path = str(path[-1]), _to_mapping_path(path[:-1])
    stage = find_node(root, path[:-1])
    if (
        (parent_path, key) == ("stages[]", "uses")
        and isinstance(stage, MapNode)
        and stage.get_text("name") == "dataset"
    ):
        settings = {name: to_plain(entry.node) for name, entry in stage.entries.items() if name != "name"}
        message = (
            "the stage `dataset` has no `uses`: the keys for reading the source's items belong to the source itself"
        )
        hint = f"remove the stage, and write its keys into `source`: {write_flow_yaml(settings)}"
        return stage.location.make_problem(message, hint if settings else "remove the stage")
    label = f" {_MAPPING_LABELS.get(parent_path, f'in `{parent_path}`')}" if parent_path else ""
    return find_location(root, path[:-1]).make_problem(f"`{key}` is missing{label}", _HINT_BY_MISSING_KEY.get(key, ""))


def check_option_names(root: MapNode, path: ConfigPath, parameters: Iterable[str]) -> list[Problem]:
    """Return a problem for each unknown option of a builder's call. `parameters` are the method's own."""
    mapping_path = _to_mapping_path(path)
    node = find_node(root, path)
    keys = node.entries if isinstance(node, MapNode) else ()
    unknown = [key for key in keys if key not in get_known_keys(mapping_path)]
    return [_unknown_key_problem(root, (*path, key), mapping_path, parameters) for key in unknown]


def _unknown_key_problem(root: MapNode, path: ConfigPath, mapping_path: str, parameters: Iterable[str] = ()) -> Problem:
    """Make the problem of a key that is unknown in its mapping."""
    location = find_location(root, path, prefer_key=True)
    is_call = bool(location.call)
    labels = _CALL_LABELS if is_call else _MAPPING_LABELS
    other_mappings = [
        (label, get_known_keys(other, is_call=is_call)) for other, label in labels.items() if other != mapping_path
    ]
    known_keys = {*get_known_keys(mapping_path, is_call=is_call), *parameters}
    intended_parameter = find_intended_key(str(path[-1]), parameters)
    hint = (
        (f"did you mean `{intended_parameter}`?" if intended_parameter else "")
        or _make_argument_hint(root, path, location)
        or make_key_hint(str(path[-1]), known_keys, mapping_path, other_mappings)
    )
    if is_call:
        return location.make_problem(f"unknown option `{path[-1]}`", hint)
    key = path[-1] if isinstance(path[-1], str) else format_value(path[-1])
    label = labels.get(mapping_path, f"in `{mapping_path.replace('[]', '')}`")
    return location.make_problem(f"unknown key `{key}` {label}", hint)


def _make_argument_hint(root: MapNode, path: ConfigPath, location: SourceLocation) -> str:
    """Suggest to write an argument of a target into `with`; "" if the unknown key cannot be one."""
    parent, key = find_node(root, path[:-1]), str(path[-1])
    mapping_path = _to_mapping_path(path[:-1])
    if location.call or mapping_path not in {"source", "sink", "sink[]"}:
        return ""
    if not isinstance(parent, MapNode) or not isinstance(path[-1], str):
        return ""
    intended = find_intended_key(key, get_known_keys(mapping_path))
    if (mapping_path, key) in UNKNOWN_KEY_HINTS or (intended is not None and parent.get(intended) is None):
        return ""
    override_path, _, value = location.file.removeprefix("override ").partition("=")
    head, _, last = override_path.rpartition(".")
    if location.file.startswith("override ") and last == key:
        return f"did you mean `{head}.with.{key}={value}`?"
    return f"if it is an argument of the {mapping_path.removesuffix('[]')}: `with: {{{key}: ...}}`"


def _to_mapping_path(path: ConfigPath) -> str:
    """`("stages", 3, "batch")` -> `stages[].batch`."""
    parts = ["[]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(parts).lstrip(".")


def _format_path(root: MapNode, path: ConfigPath, location: SourceLocation) -> str:
    """Return a path such as `stages.decode.workers`: stages by name, or by index if they have none.

    For Python, return the path inside the stage, because the location names the stage.
    """
    if location.stage and path[0] == "stages":
        return ".".join(map(str, path[2:]))
    parts = []
    for index, step in enumerate(path):
        stage = find_node(root, path[: index + 1]) if isinstance(step, int) else None
        parts.append((stage.get_text("name") if isinstance(stage, MapNode) else None) or str(step))
    return ".".join(parts)


_SAMPLERS: Final = ("sampler", "batch_sampler")
_IDENTITY: Final = "its items have no identity that stagepipe can determine"


def check_caches(
    root: MapNode, stages: Sequence[MapNode], stage_traits: Sequence[StageTraits], reading: SourceReading
) -> Iterator[Problem]:
    """Yield the problems of each `cache` in `stages` and in the source. `reading`: how its items are read."""
    grouping_stage = stateful_stage = ""
    source = root.get("source")
    readers = [(source, StageTraits(label=SOURCE_NAME))] if isinstance(source, MapNode) and reading else []
    for stage, traits in (*readers, *zip(stages, stage_traits, strict=True)):
        name = stage.get_text("name") or traits.label
        is_stateful = _is_true(stage.get("stateful"))
        if stage.get("cache") is not None:
            message, hint = "", "remove `cache`"
            if traits.is_order_point:
                message = f"`{traits.label}` cannot have `cache`: its outputs consist of many items"
                hint = "set it on an earlier stage"
            elif stage.get("batch") is not None:
                message = (
                    "a stage with `batch` cannot have `cache`: its results may depend on the other items of a call"
                )
                hint = "remove `cache`, or `batch`"
            elif is_stateful:
                message = "a stateful stage cannot have `cache`: its results depend on earlier items"
            elif grouping_stage:
                message = f"a stage after `{grouping_stage}` cannot have `cache`: its items have no identity"
                hint = f"set it on a stage before `{grouping_stage}`"
            elif stateful_stage:
                message = (
                    f"a stage after the stateful `{stateful_stage}` cannot have `cache`: its results depend on "
                    "earlier items"
                )
                hint = f"set it on a stage before `{stateful_stage}`"
            if message:
                yield stage.entries["cache"].key_location.make_problem(message, hint)
            else:
                yield from _check_cached_source(source, stage, reading if stage is source else "")
        grouping_stage = name if traits.is_order_point else grouping_stage
        stateful_stage = name if is_stateful else stateful_stage


def _check_cached_source(source: Node | None, stage: MapNode, reading: SourceReading) -> Iterator[Problem]:
    """Refuse a cache of items that may differ in the next run, unless the user gives a key for them.

    `reading` is set if the cache belongs to the source; otherwise it is empty.
    """
    from stagepipe.sources import is_known_source  # with NumPy: only where a stage has a cache

    cache = to_plain(stage.entries["cache"].node)
    settings: dict[Any, Any] = cache if isinstance(cache, dict) else {}
    uses, arguments = _read_source(source)
    is_known = is_known_source(uses, arguments)
    location = stage.entries["cache"].key_location
    if not is_known and not settings.get("key"):
        label = uses if isinstance(uses, str) else getattr(uses, "__qualname__", type(uses).__qualname__)
        example = "cache: {path: ..., key: ...}"
        message = f"the source `{label}` cannot have `cache`: {_IDENTITY}"
        yield location.make_problem(message, f"set `key` to a version that changes with its data: `{example}`")
    if settings.get("deterministic") is not True:
        return
    sampler = next((name for name in _SAMPLERS if arguments.get(name) is not None), None)
    finds_items = (is_known and sampler is None) or reading == "index"
    if reading == "shards" or not finds_items:
        cause = f"`{sampler}` draws the order" if sampler else _IDENTITY
        message = f"`deterministic` cannot be set: {cause}, so the outputs of another epoch cannot be found"
        yield location.make_problem(message, "remove `deterministic`: the next run can then use the cache")


def _read_source(source: Node | None) -> tuple[Any, dict[Any, Any]]:
    if not isinstance(source, MapNode):
        return None, {}
    uses, arguments = source.get("uses"), source.get("with")
    plain = to_plain(arguments) if isinstance(arguments, MapNode) else {}
    value = to_plain(uses) if uses is not None else None
    return value, plain if isinstance(plain, dict) else {}


PROCESS_KEYS: Final = tuple(key.key for key in iter_keys(StageSpec) if key.info.is_process_key)
_REJECTED_ITEMS: Final = (
    "an item that it cannot accept ends the run",
    "; set it on an earlier stage that rejects such items",
)
_NOT_FOR_ORDER_POINTS: Final = {
    "workers": ("it restores the item order in one process", ""),
    "group": ("it restores the item order in one process", ""),
    "concurrency": ("it takes the items one by one, in order", ""),
    "retries": _REJECTED_ITEMS,
    "on_error": _REJECTED_ITEMS,
    "when": (
        "it groups all items",
        "; to group some of the items, drop the others first with `stagepipe.stages.Filter`",
    ),
    "allow_none": ("it may group None like any other item", ""),
}
"""Keys that an order point does not take, with the reason and an addition to the hint."""
_PART_SINK_KEYS: Final = tuple(key.key for key in iter_keys(SinkSpec) if key.key not in {"uses", "with"})
_COUNT_ARGUMENTS: Final = ("part_items", "shard_items")
_FUNCTION_KEYS: Final = ("field", "as", "into", "batch")


def check_sinks(root: MapNode, sink_traits: Sequence[SinkTraits]) -> Iterator[Problem]:
    """Yield the problems of sinks with keys that are valid on their own. `sink_traits` has the traits of each sink."""
    stage_names = {stage.get_text("name") for stage in get_stages(root)}
    for sink, traits in zip(get_sinks(root), sink_traits, strict=True):
        name = sink.get_text("name")
        if name is not None and name in stage_names:
            location = sink.entries["name"].node.location
            yield location.make_problem(
                f"the name `{name}` belongs to a stage", f"use a unique name such as `{name}_2`"
            )
        stage_names.add(name)
        for key in () if traits.writes_parts or traits.is_missing else _PART_SINK_KEYS:
            if sink.get(key) is not None:
                message = f"this sink cannot have `{key}`: it is called with each item in the calling process"
                hint = f"remove `{key}`, or use a sink with workers: a subclass of stagepipe.sinks.PartSink"
                yield sink.entries[key].key_location.make_problem(message, hint)
        if traits.part_multiple > 1 and sink.get("when") is not None:
            message = f"this sink cannot have `when`: its workers write whole chunks of {traits.part_multiple} items"
            hint = "drop the other items in a stage before the sinks, or set `chunk_items: 1`"
            yield sink.entries["when"].key_location.make_problem(message, hint)
        if traits.writes_parts:
            yield from _check_counts(sink, traits)


def _check_counts(sink: MapNode, traits: SinkTraits) -> Iterator[Problem]:
    """Check the numbers of items that the planner reads. The sink also checks them, but only when it is built."""
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
    """Yield the problems of keys that are valid on their own but not together. `stage_traits` has one entry per stage.

    `reading`: how the items of the source are read.
    """
    yield from _check_unique_names(root)
    yield from _check_fused_source(root, reading)
    source = root.get("source")
    process_stage = source if isinstance(source, MapNode) else MapNode({}, root.location)
    yield from _check_concurrency(process_stage, argument="shards" if reading == "shards" else "")
    process_name = "source"
    lone_reason = _find_lone_reason(process_stage)
    for stage, traits in zip(get_stages(root), stage_traits, strict=True):
        if not _is_true(stage.get("fuse")):
            process_name = stage.get_text("name") or process_name
            process_stage = stage
            lone_reason = _find_lone_reason(stage, traits)
        elif lone_reason:
            message = f"`{process_name}` {lone_reason}, so no stage is fused into it"
            hint = f"remove `fuse`, or call both from one function in `{process_name}`"
            yield stage.entries["fuse"].key_location.make_problem(message, hint)
        yield from _check_fused(stage, process_name, is_async=traits.is_async)
        yield from _check_concurrency(stage, is_async=traits.is_async)
        if _exceeds_one(stage, "group") and _exceeds_one(stage, "concurrency"):
            message = "a stage with `group` cannot have `concurrency`: its processes work on the same item"
            yield stage.entries["concurrency"].key_location.make_problem(message, "remove `concurrency`, or `group`")
        elif _exceeds_one(stage, "group") and traits.is_async:
            message = f"a stage with `group` cannot be an `async def` (`{traits.label}`): its processes work in step"
            hint = "remove `group`, or call a function that is not an `async def`"
            yield stage.entries["group"].key_location.make_problem(message, hint)
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


def _check_fused_source(root: MapNode, reading: SourceReading) -> Iterator[Problem]:
    source = root.get("source")
    if isinstance(source, MapNode) and reading in {"index", "shards"} and _is_true(source.get("fuse")):
        for key in PROCESS_KEYS:
            if source.get(key) is not None and not _is_one_worker(source, key):
                message = f"a source with `fuse` cannot have `{key}`: one process draws the order and reads"
                yield source.entries[key].key_location.make_problem(message, f"remove `{key}`, or `fuse`")
    uses = source.get("uses") if isinstance(source, MapNode) else None
    if isinstance(uses, ListNode):  # from Python, a list is a source and arrives here as a ScalarNode
        yield uses.location.make_problem(
            "`source.uses`: expected an import path, found a list", "write pkg.module.name"
        )


def _is_one_worker(entry: MapNode, key: str) -> bool:
    """Whether a key is `workers: 1`. A fused stage may have it, because it has no separate workers."""
    node = entry.get(key)
    return key == "workers" and isinstance(node, ScalarNode) and node.value == 1


def _check_fused(stage: MapNode, process_name: str, *, is_async: bool) -> Iterator[Problem]:
    """Reject keys that a stage cannot have when it is fused into the process of `process_name`."""
    if not _is_true(stage.get("fuse")):
        return
    if is_async:
        message = "an `async def` stage cannot have `fuse: true`: it needs its own process, with an event loop"
        yield stage.entries["fuse"].key_location.make_problem(message, "remove `fuse`")
    for key in PROCESS_KEYS:
        if stage.get(key) is not None and not _is_one_worker(stage, key):
            message = f"a fused stage cannot have `{key}`: it runs in the previous stage's process"
            hint = f"remove `{key}`, or set it on the previous stage"
            yield stage.entries[key].key_location.make_problem(message, hint)
    if stage.get_text("transport") not in {None, "auto"}:
        message = "a fused stage cannot have `transport`: it receives items through a function call"
        yield stage.entries["transport"].key_location.make_problem(message, "remove `transport`")
    if _is_true(stage.get("mutable")):
        message = (
            f"a fused stage cannot have `mutable`: only items that enter the process, at `{process_name}`, are "
            "read-only"
        )
        owner = f"set `mutable: true` on `{process_name}`, which it is fused into"
        hint = "remove `mutable`" if process_name == "source" else owner
        yield stage.entries["mutable"].key_location.make_problem(message, hint)


_NOT_WITH_THREADS: Final = {
    "batch": ("a call takes one item", "remove `concurrency`, or `batch`"),
    "stateful": ("it processes several items at the same time", "remove `concurrency`, or `stateful`"),
    "reseed": (
        "its concurrent items share the global generators",
        "remove `reseed`, and draw from `stagepipe.context().rng`",
    ),
}
"""Keys that a stage with threads cannot set, with the reason and the hint."""
_NOT_WITH_TASKS: Final = {
    **_NOT_WITH_THREADS,
    "batch": (
        "a call takes one item",
        "remove `batch`; for calls with several items, put stages.Batch before it and stages.Unbatch after it",
    ),
    "stateful": (
        "it processes several items at the same time",
        "remove `stateful`, or call a function that is not an `async def`",
    ),
}
"""The same for an `async def`."""


def _exceeds_one(stage: MapNode, key: str) -> bool:
    node = stage.get(key)
    return isinstance(node, ScalarNode) and isinstance(node.value, int) and node.value > 1


def _find_lone_reason(stage: MapNode, traits: StageTraits | None = None) -> str:
    """Return why no stage can share the process of a stage; "" if one can."""
    key = next((key for key in ("concurrency", "group") if _exceeds_one(stage, key)), None)
    is_async = traits is not None and traits.is_async
    return f"has `{key}`" if key is not None else "is an `async def`" if is_async else ""


def _check_concurrency(stage: MapNode, *, is_async: bool = False, argument: str = "") -> Iterator[Problem]:
    """Reject keys that exclude threads and tasks.

    `argument`: an argument that makes the source read in one thread.
    """
    if not (is_async or _exceeds_one(stage, "concurrency")):
        return
    for key, (reason, hint) in (_NOT_WITH_TASKS if is_async else _NOT_WITH_THREADS).items():
        node = stage.get(key)
        if isinstance(node, MapNode) or _is_true(node):
            message = (
                f"{'an `async def` stage' if is_async else 'a stage with `concurrency`'} cannot have `{key}`: {reason}"
            )
            yield stage.entries[key].key_location.make_problem(message, hint)
    if argument:
        message = (
            f"a source with `{argument}` cannot have `concurrency`: a process reads one shard of the dataset at a time"
        )
        yield stage.entries["concurrency"].key_location.make_problem(message, "set `workers`")


def _check_order_point(stage: MapNode, label: str) -> Iterator[Problem]:
    for key, (reason, hint) in _NOT_FOR_ORDER_POINTS.items():
        if stage.get(key) is not None:
            message = f"`{label}` cannot have `{key}`: {reason}"
            yield stage.entries[key].key_location.make_problem(message, f"remove `{key}`{hint}")
    if _is_true(stage.get("fuse")) or stage.get_text("fuse") == "auto":
        message = f"`{label}` cannot be fused: it restores the item order in its own process"
        yield stage.entries["fuse"].key_location.make_problem(message, "remove `fuse`")


def _check_whole_item_stage(stage: MapNode, label: str) -> Iterator[Problem]:
    for key in _FUNCTION_KEYS:
        if stage.get(key) is not None:
            message = f"`{label}` cannot have `{key}`: it works on whole items"
            yield stage.entries[key].key_location.make_problem(message, f"remove `{key}`")


def _is_true(node: Node | None) -> bool:
    return isinstance(node, ScalarNode) and node.value is True


# ------------------------------------------------------------------ features that the engine lacks

_OWN_PROCESS_KEYS: Final = ("env", "resources", "device")
"""Keys that need a separate process for the stage."""
_OUTPUT_KEYS: Final = ("trace", "prometheus")


def check_engine(root: MapNode, stages: Sequence[MapNode], stage_traits: Sequence[StageTraits]) -> Iterator[Problem]:
    """Yield a problem for each key of a stage or a sink that the engine does not support."""
    engine, capabilities = _read_engine(root.get("engine"))
    source, sinks = root.get("source"), get_sinks(root)
    sources = [source] if isinstance(source, MapNode) else []
    yield from _check_ranges((*sources, *stages))
    if capabilities.refused_outputs:
        yield from _check_report(engine, capabilities, root.get("report"))
    if not capabilities.yields_items:
        for entry in sinks:
            yield from _check_replicated_sink(entry)
    keys = _KeyChecks(engine, capabilities)
    for entry in sources:
        yield from keys.check(entry, "", "source")
    order_point = ""
    for stage, traits in zip(stages, stage_traits, strict=True):
        order_point = order_point or (traits.label.rpartition(".")[2] if traits.is_order_point else "")
        yield from keys.check(stage, "" if _has_pool(stage) else order_point, "stage")
    for entry in sinks:
        yield from keys.check(entry, "", "sink")


def _read_engine(node: Node | None) -> tuple[EngineDeclaration, Capabilities]:
    """Return the engine of a config and its capabilities. Another check reports an unknown engine."""
    name, options = EngineSpec().kind, dict[str, str | None]()
    if isinstance(node, ScalarNode) and isinstance(node.value, str):
        name = node.value
    elif isinstance(node, MapNode):
        given = [key for key in node.entries if node.get(key) is not None]
        name = given[0] if given else name
        if isinstance(inner := node.get(name), MapNode):
            options = {key: inner.get_text(key) for key in inner.entries if inner.get(key) is not None}
    engine = find_engine(name) or list_engines()[0]
    return engine, engine.get_capabilities(options)


def _check_replicated_sink(sink: MapNode) -> Iterator[Problem]:
    arguments = sink.get("with")
    if not (isinstance(arguments, MapNode) and arguments.get("path") is not None):
        yield sink.location.make_problem(
            "with `inside: local`, a sink needs a `path` in its `with`: each node writes to its own folder below it",
            "add `with: {path: ...}`, or run with `engine=local`",
        )


def _check_ranges(stages: Sequence[MapNode]) -> Iterator[Problem]:
    """Refuse a range of workers for a stateful stage: a worker that ends would lose its state."""
    for stage in stages:
        if _is_true(stage.get("stateful")) and isinstance(_read_workers(stage), WorkerRange):
            message = "a stateful stage cannot have a range of `workers`: a worker that ends loses its state"
            yield stage.entries["workers"].key_location.make_problem(message, "write `workers: 1`")


def _read_workers(stage: MapNode) -> Any:
    """Return the value of `workers`; 1 without one. Another check reports an invalid value."""
    node = stage.get("workers")
    try:
        return 1 if node is None or is_null(node) else check_workers(to_plain(node))
    except InvalidValueError:
        return 1


def _check_report(engine: EngineDeclaration, capabilities: Capabilities, report: Node | None) -> Iterator[Problem]:
    for key in _OUTPUT_KEYS:
        if isinstance(report, MapNode) and report.get(key) is not None:
            message = f"with `engine: {engine.name}`, a report cannot have `{key}`: {capabilities.refused_outputs}"
            yield report.entries[key].key_location.make_problem(message, f"remove `{key}`, or {engine.way_out}")


@dataclass(frozen=True)
class _KeyChecks:
    """The checks of the keys of a source, a stage or a sink."""

    engine: EngineDeclaration
    capabilities: Capabilities

    def check(self, stage: MapNode, order_point: str, kind: str) -> Iterator[Problem]:
        """Yield a problem for each refused key. After `order_point`, if set, the stage runs in the calling process."""
        is_in_caller = bool(order_point) or (
            self.capabilities.runs_tail_in_caller and kind == "sink" and not _has_pool(stage)
        )
        for key, entry in stage.entries.items():
            if stage.get(key) is None or (key == "stateful" and not _is_true(entry.node)):
                continue
            if reason := self._find_reason(stage, key, order_point, is_in_caller=is_in_caller):
                is_missing = key == "device" and not is_in_caller
                hint = "add `resources: {gpus: 1}`" if is_missing else f"remove `{key}`"
                message = f"with `engine: {self.engine.name}`, a {kind} cannot have `{key}`: {reason}"
                yield entry.key_location.make_problem(message, f"{hint}, or {self.engine.way_out}")

    def _find_reason(self, stage: MapNode, key: str, order_point: str, *, is_in_caller: bool) -> str:
        title = self.engine.title
        if key in _OWN_PROCESS_KEYS and is_in_caller and self.capabilities.runs_tail_in_caller:
            if order_point:
                return f"it comes after the order point `{order_point}`, so it runs in the calling process"
            return f"on {title}, a sink without several workers writes in the calling process"
        if key == "device" and self.capabilities.takes_resources and not _asks_for_gpus(stage):
            is_cpu = stage.get_text("device") == "cpu"
            return "" if is_cpu else f"{title} gives a worker a GPU only if its stage asks for one"
        return self.capabilities.refused_keys.get(key, "")


def find_engine_notes(spec: PipelineSpec) -> Iterator[str]:
    """Yield the keys that the engine ignores, because they change no item."""
    capabilities = get_capabilities(spec.engine)
    defaults = PipelineSpec.__dataclass_fields__
    ignored = [key for key in capabilities.ignored_keys if getattr(spec, key) != defaults[key].default]
    names = [f"`{key.removesuffix('_bytes')}`" for key in ignored]
    if names:
        yield f"engine: {spec.engine} ignores {', '.join(names)}: {capabilities.ignored_reason}"
    tail = list(_find_tail(spec)) if capabilities.runs_tail_in_caller else []
    if tail:
        yield (
            f"engine: {spec.engine} runs {', '.join(tail)} in the calling process, one after the other: after an "
            "order point, stages with one worker or `batch` run there"
        )


def _find_tail(spec: PipelineSpec) -> Iterator[str]:
    is_after = False
    for stage in spec.stages:
        if is_after and stage.fuse is not True and (stage.workers == 1 or stage.batch is not None):
            yield stage.name if stage.workers == 1 else f"{stage.name} ({stage.format_workers()} workers)"
        is_after = is_after or stage.is_order_point


def _has_pool(stage: MapNode) -> bool:
    """Whether a stage after an order point, or a sink, is a pool of actors: it has several workers and no batches."""
    workers = _read_workers(stage)
    is_several = isinstance(workers, WorkerRange) or (isinstance(workers, int) and workers > 1)
    return is_several and stage.get("batch") is None


def _asks_for_gpus(stage: MapNode) -> bool:
    resources = stage.get("resources")
    return isinstance(resources, MapNode) and resources.get("gpus") is not None


# ------------------------------------------------------------------ a spec in words


def summarize_spec(spec: PipelineSpec) -> str:
    """Return the stages in order with their workers. `+` joins a fused stage to the previous stage.

    >>> from stagepipe.spec import SourceSpec, StageSpec, Target
    >>> decode = StageSpec(name="decode", target=Target("my_ops.decode"), workers=2)
    >>> flip = StageSpec(name="flip", target=Target("my_ops.flip"), fuse=True)
    >>> summarize_spec(PipelineSpec(source=SourceSpec(target=Target("my_ops.read")), stages=(decode, flip)))
    'source -> decode (2) + flip'
    """
    text = ""
    for stage in (spec.source, *spec.stages):
        worker_suffix = f" ({stage.format_workers()})" if stage.workers != 1 else ""
        arrow = "" if stage is spec.source else " + " if stage.fuse is True else " -> "
        text += f"{arrow}{stage.name}{worker_suffix}"
    if not spec.sinks:
        return text
    sink_workers = (sink.worker_bounds or sink.workers for sink in spec.sinks)
    sink_names = (f"sink ({workers})" if workers != 1 else "sink" for workers in sink_workers)
    return f"{text} -> {' + '.join(sink_names)}"


def find_spec_warnings(spec: PipelineSpec) -> Iterator[str]:
    """Yield warnings about settings that are valid but may fail a run, and about settings that the engine ignores."""
    yield from find_engine_notes(spec)
    sender_name = spec.source.name
    sender_workers = spec.source.workers
    process_stages = [(stage.name, stage.workers, stage.transport) for stage in spec.stages if stage.fuse is not True]
    for name, workers, mode in (
        () if "transport" in get_capabilities(spec.engine).ignored_keys else (*process_stages, ("sink", 1, "auto"))
    ):
        uses_pipe_only = (spec.transport.mode if mode == "auto" else mode) == "pipe"
        if uses_pipe_only and (sender_workers, workers) != (1, 1):
            yield (
                f"hop {sender_name} -> {name} has `transport: pipe` and several workers: an item that does not fit a "
                "packet (3.5 kB) ends the run; use `transport: auto` for items of any size"
            )
        sender_name = name
        sender_workers = workers
