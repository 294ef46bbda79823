"""Makes the plan: splits source and sinks into stages, groups fused stages into processes, chooses modes and windows.

A source that is read by index becomes a source of indices and a stage that reads the items. Sinks become one order
point, which makes parts, and a writer for each sink. The last writer sends records of the written parts, and the
calling process makes shards of them. `part_of` of an inner stage names the row of the config to which it belongs. The
name of an inner stage has a dot, so it never equals the name of a user's stage.

A source and the `Batch` after it exchange chunks where they can: the source sends the indices of many items at once,
and a reader sends their samples, stacked; `Batch` copies ranges of rows. A tiny sample thus does not pay for two
packets.

The plan of a probe runs the first few items one at a time, so that no other stage disturbs the measured one. Pure; runs
in the caller's process.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from stagepipe.core import UsageError, get_class_path, parse_bytes
from stagepipe.costs import CostCurves, negotiate
from stagepipe.machine import Machine
from stagepipe.plan.model import SINK_NAME, HopPlan, Plan, ProcessPlan, ProcessRole, SegmentPlan, StagePlan
from stagepipe.spec import (
    SOURCE_NAME,
    PipelineSpec,
    SinkSpec,
    SourceSpec,
    StageSpec,
    Target,
    WorkerRange,
    get_common_fields,
)
from stagepipe.transport import find_transport_target

# ------------------------------------------------------------------ sources and sinks as stages

_DATASET_PATH: Final = "stagepipe.sources.dataset"
_FETCH_PATH: Final = "stagepipe.stages.Fetch"
_FETCH_SHARD_PATH: Final = "stagepipe.stages.FetchShard"
_STREAM_ARGUMENTS: Final = ("dataset", "batch_size", "drop_last", "worker_init_fn")
_SOURCE_ARGUMENTS: Final = {
    "index": (*_STREAM_ARGUMENTS, "shuffle", "sampler", "batch_sampler"),
    "shards": ("dataset", "shards"),
    "stream": _STREAM_ARGUMENTS,
}
"""Arguments of the source of indices or of a stream's samples, by `reading`."""
_READER_ARGUMENTS: Final = {
    "index": ("dataset", "collate_fn", "worker_init_fn"),
    "shards": ("dataset", "shards", "batch_size", "drop_last", "collate_fn", "worker_init_fn"),
    "stream": ("dataset", "collate_fn"),
}
"""Arguments of the stage that reads the items, or collates a stream's samples."""
_SINK_ROW: Final = "sink"
"""The row of the stages that several sinks share; overrides use this name."""
_PARTS_PATH: Final = "stagepipe.sinks.Parts"
_MAX_PART_ITEMS: Final = 1024
_PART_BYTES: Final = 16_000_000
"""Fixed, whatever `memory` and the workers are: parts, and therefore shards, are the same in every run."""
PARTS_MEMORY_FRACTION: Final = 0.8
"""The share of `memory` that parts may take; items on their way to the order point take the rest."""
_PARTS_OUTSIDE_WORKERS: Final = 2
"""One part that grows, and one that waits."""


_AutoSpec = TypeVar("_AutoSpec", StageSpec, SourceSpec, SinkSpec)


class WorkerStart(NamedTuple):
    """The resolved `workers: auto`: the number at the start, and the bounds for changes (None: it is fixed)."""

    workers: int = 1
    bounds: WorkerRange | None = None

    def apply(self, spec: _AutoSpec) -> _AutoSpec:
        """Copy a stage or a sink with this start if its `workers` is `auto`; return any other unchanged."""
        return replace(spec, workers=self.workers, worker_bounds=self.bounds) if spec.workers == "auto" else spec


class PartSize(NamedTuple):
    """The limits of a part: the most items, the bytes at which it ends, and a divisor of its number of items."""

    items: int
    bytes: int
    multiple: int = 1


def split_source(spec: PipelineSpec) -> PipelineSpec:
    """Return the spec with a source of indices and a first stage `source` that reads the items. Idempotent.

    The source reads a stream itself; if the stream has batches, a stage fused to the source collates them.

    >>> source = SourceSpec(target=Target("stagepipe.sources.dataset", {"dataset": "abc"}), workers=2, reading="index")
    >>> split = split_source(PipelineSpec(source=source))
    >>> split.source.name, [(stage.name, stage.workers) for stage in split.stages]
    ('source.indices', [('source', 2)])
    """
    source, arguments = spec.source, spec.source.target.arguments
    if not source.reading:
        return spec
    sender = SourceSpec(
        name=f"{SOURCE_NAME}.indices",
        target=Target(_DATASET_PATH, _select(arguments, _SOURCE_ARGUMENTS[source.reading])),
        start_timeout_ns=source.start_timeout_ns,
        allow_none=True,  # the reading stage checks its items
        part_of=SOURCE_NAME,
    )
    is_batched = arguments.get("batch_size") is not None or arguments.get("batch_sampler") is not None
    if source.reading == "stream" and not is_batched:
        return replace(spec, source=replace(source, target=sender.target, reading=""))
    reader_arguments = _select(arguments, _READER_ARGUMENTS[source.reading])
    if source.reading != "shards":
        flags = {"batched": is_batched, "takes_lists": source.batch is not None}
        reader_arguments |= {name: True for name, is_set in flags.items() if is_set}
    path = _FETCH_SHARD_PATH if source.reading == "shards" else _FETCH_PATH
    reader = StageSpec(**{**get_common_fields(source, StageSpec), "target": Target(path, reader_arguments)})
    if source.reading == "stream":
        sender = replace(sender, name=SOURCE_NAME, part_of="", reseed=source.reseed)
        reader = replace(reader, name=f"{SOURCE_NAME}.batches", part_of=SOURCE_NAME, workers=1, fuse=True)
    return replace(spec, source=sender, stages=(reader, *spec.stages))


def _select(arguments: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: arguments[name] for name in names if arguments.get(name) is not None}


def lower_sinks(spec: PipelineSpec) -> PipelineSpec:
    """Return the spec with a stage for each sink that has workers. `sinks` keeps all sinks.

    >>> from stagepipe.spec import SourceSpec
    >>> jsonl = SinkSpec(target=Target("stagepipe.sinks.jsonl", {"path": "out"}), workers=2, writes_parts=True)
    >>> lowered = lower_sinks(PipelineSpec(source=SourceSpec(target=Target(range(3))), sinks=(jsonl,)))
    >>> [(stage.name, stage.workers) for stage in lowered.stages]
    [('jsonl.collect', 1), ('jsonl', 2)]
    """
    writers = [sink for sink in spec.sinks if sink.writes_parts]
    if not writers:
        return spec
    size = choose_part_size(spec)
    names = list(_make_unique_names(spec, writers))
    row = names[0]  # with several sinks too: the first one collects for all
    parts = StageSpec(
        name=f"{row}.collect",
        target=Target(
            _PARTS_PATH,
            {
                "max_items": size.items,
                "max_bytes": size.bytes,
                "sink_count": len(writers),
                **({"keeps_items": True} if len(writers) < len(spec.sinks) else {}),
                **({"multiple": size.multiple} if size.multiple > 1 else {}),
            },
        ),
        is_order_point=True,
        items_per_output=size.items,
        sink_path=_SINK_ROW,
        part_of=row,
    )
    stages = [
        StageSpec(**{**get_common_fields(sink, StageSpec), "name": name, "sink_path": _get_path(spec, sink)})
        for sink, name in zip(writers, names, strict=True)
    ]
    return replace(spec, stages=(*spec.stages, parts, *stages))


def _get_path(spec: PipelineSpec, sink: SinkSpec) -> str:
    """Return where an override finds a sink."""
    return _SINK_ROW if len(spec.sinks) == 1 else f"{_SINK_ROW}.{spec.sinks.index(sink)}"


def set_sink_workers(spec: PipelineSpec, starts_by_path: Mapping[str, WorkerStart]) -> PipelineSpec:
    """Return the spec with the number of workers of each sink, by its path; other sinks with `auto` get 1.

    >>> from stagepipe.spec import SourceSpec
    >>> jsonl = SinkSpec(target=Target("stagepipe.sinks.jsonl", {"path": "out"}), workers="auto", writes_parts=True)
    >>> spec = PipelineSpec(source=SourceSpec(target=Target(range(3))), sinks=(jsonl,))
    >>> set_sink_workers(spec, {"sink": WorkerStart(2)}).sinks[0].workers
    2
    """
    starts = (starts_by_path.get(_get_path(spec, sink), WorkerStart()) for sink in spec.sinks)
    sinks = (start.apply(sink) for sink, start in zip(spec.sinks, starts, strict=True))
    return replace(spec, sinks=tuple(sinks))


def choose_part_size(spec: PipelineSpec) -> PartSize:
    """Return the limits of the parts: those that the sinks set, or limits with which whole parts fill their shards."""
    writers = [sink for sink in spec.sinks if sink.writes_parts]
    given_items = [value for sink in writers if isinstance(value := _get_setting(sink, "part_items"), int)]
    given_items += [
        value
        for sink in writers
        if not sink.appends_parts and isinstance(value := _get_setting(sink, "shard_items"), int)
    ]
    given_bytes = [parse_bytes(value) for sink in writers if (value := _get_setting(sink, "part_bytes")) is not None]
    shard_items = [value for sink in writers if isinstance(value := _get_setting(sink, "shard_items"), int)]
    items = min(given_items) if given_items else _choose_part_items(shard_items)
    multiple = math.lcm(*(sink.part_multiple for sink in writers))
    return PartSize(
        items=max(items // multiple, 1) * multiple,
        bytes=min(given_bytes, default=_PART_BYTES),
        multiple=multiple,
    )


def count_max_writers(spec: PipelineSpec, memory_bytes: int) -> int | None:
    """Return the number of workers that each sink may have, so that all can write at a time; None without a limit."""
    writers = [sink for sink in spec.sinks if sink.writes_parts]
    if not writers:
        return None
    return max((_count_parts_that_fit(spec, memory_bytes) - _PARTS_OUTSIDE_WORKERS) // len(writers), 1)


def count_parts_in_flight(spec: PipelineSpec, workers: int, memory_bytes: int) -> int:
    """Return the number of parts in memory at a time: one in each worker and two more, or as many as fit."""
    return min(workers + _PARTS_OUTSIDE_WORKERS, max(_count_parts_that_fit(spec, memory_bytes), 1))


def _count_parts_that_fit(spec: PipelineSpec, memory_bytes: int) -> int:
    return int(memory_bytes * PARTS_MEMORY_FRACTION) // choose_part_size(spec).bytes


def _choose_part_items(shard_items: Sequence[int]) -> int:
    """Return the number of items, up to 1,024, with which whole parts fill the shards best."""
    most = min([_MAX_PART_ITEMS, *shard_items])
    candidates = range(most // 2 + 1, most + 1)
    return max(
        candidates, key=lambda items: (min([1.0, *(count // items * items / count for count in shard_items)]), items)
    )


def _get_setting(sink: SinkSpec, name: str) -> Any:
    """Return an argument of a sink; for a sink that is an object, its attribute."""
    own = None if isinstance(sink.target.uses, str | type) else getattr(sink.target.uses, name, None)
    return sink.target.arguments.get(name, own)


def _make_unique_names(spec: PipelineSpec, writers: Sequence[SinkSpec]) -> Iterator[str]:
    """Yield a unique name for each writer."""
    used = {stage.name for stage in spec.stages} | {sink.name for sink in writers if sink.name is not None}
    for sink in writers:
        if sink.name is not None:
            yield sink.name
            continue
        name = name_sink(sink.target)
        free = next(text for n in itertools.count(1) if (text := name if n == 1 else f"{name}-{n}") not in used)
        used.add(free)
        yield free


def name_sink(target: Target) -> str:
    """Return the name of a sink's class or function: the last name of an import path, or the class of an object."""
    uses = target.uses
    path = uses if isinstance(uses, str) else getattr(uses, "__name__", type(uses).__name__)
    return re.sub(r"[^A-Za-z0-9_-]+", "-", re.split(r"[.:]", path)[-1]).strip("-") or "writer"


# ------------------------------------------------------------------ the plan


def assign_devices(stage: StageSpec, workers: int, available_devices: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the CUDA_VISIBLE_DEVICES of each worker, or None to leave the variable unchanged.

    `cuda` spreads the workers over all `available_devices`. Each worker sees one device, as `cuda`, or one for each
    process of its `group`. `cuda:1` gives every worker the second device. `cpu` hides all devices.

    >>> from stagepipe.spec import Target
    >>> assign_devices(StageSpec(name="detect", target=Target("a.b"), device="cuda"), 3, ("0", "1"))
    ('0', '1', '0')
    >>> assign_devices(StageSpec(name="llm", target=Target("a.b"), device="cuda", group=2), 2, ("0", "1", "2"))
    ('0,1', '2,0')

    Raises UsageError if the device does not exist.
    """
    device = stage.device
    if device is None:
        return None
    if device == "cpu":
        return ("",) * workers
    _, _, index = device.partition(":")
    if not available_devices:
        raise UsageError(
            f"{stage.config_path}.device: {device}, but no CUDA device is visible (looked at CUDA_VISIBLE_DEVICES and "
            f"/proc/driver/nvidia/gpus); set `{stage.config_path}.device=cpu`, or set no device"
        )
    if not index:
        count = min(stage.group, len(available_devices))  # CUDA takes no device twice
        firsts = (worker * stage.group for worker in range(workers))
        return tuple(
            ",".join(available_devices[(first + rank) % len(available_devices)] for rank in range(count))
            for first in firsts
        )
    if int(index) >= len(available_devices):
        last = len(available_devices) - 1
        existing = f"cuda:0 to cuda:{last} exist" if last else "cuda:0 exists"
        raise UsageError(f"{stage.config_path}.device: {device}, but only {existing}; choose an existing device")
    return (available_devices[int(index)],) * workers


_DATASET_SOURCES: Final = frozenset({"stagepipe.sources.dataset", "stagepipe.sources.DatasetSource"})
_NOT_ONE_BY_ONE: Final = ("batch_size", "batch_sampler", "shards")
"""Arguments with which an item of the source is not a single index."""
_BATCH: Final = "stagepipe.stages.Batch"
CHUNK_WINDOW_ITEMS: Final = 2048
"""Small items in flight if they travel in chunks: several chunks for each worker. `SMALL_ITEM_BUDGET_BYTES` in
`admission` limits their memory.

"""


def mark_chunks(processes: tuple[ProcessPlan, ...], hops: tuple[HopPlan, ...]) -> tuple[ProcessPlan, ...]:
    """Return the processes, with `sends_chunks` set in the first two if they can send chunks."""
    if len(processes) < 3 or not _can_send_chunks(processes, hops):  # noqa: PLR2004 - indices, readers, Batch
        return processes
    size = processes[2].first_stage.target.arguments.get("size")
    chunk_keys: dict[str, Any] = {"sends_chunks": True, "chunk_batch_size": size if isinstance(size, int) else 0}
    return (*(replace(process, **chunk_keys) for process in processes[:2]), *processes[2:])


def _can_send_chunks(processes: tuple[ProcessPlan, ...], hops: tuple[HopPlan, ...]) -> bool:
    source, reader, batch = processes[:3]
    return (
        len(source.stages) == 1
        and _get_target_path(source.first_stage) in _DATASET_SOURCES
        and all(source.first_stage.target.arguments.get(name) is None for name in _NOT_ONE_BY_ONE)
        and _get_target_path(reader.first_stage) == _FETCH_PATH
        and not any(stage.stateful or stage.batch is not None for stage in reader.stages)
        and not reader.thread_count
        and _get_target_path(batch.first_stage) == _BATCH
        and batch.first_stage.field is None
        and batch.first_stage.as_ is None
        and all(hop.mode != "pipe" for hop in hops[:2])  # a chunk may exceed a packet
    )


def _get_target_path(stage: StagePlan) -> str:
    """Return the import path of a stage's target, for a class too; empty for another object."""
    uses: Any = stage.target.uses
    if isinstance(uses, type):
        return get_class_path(uses)
    return uses.replace(":", ".") if isinstance(uses, str) else ""


_ARENA_MEMORY_FRACTION = 0.25
"""Share of the machine's memory for shared memory, unless the config sets `memory`."""
_DEFAULT_WINDOW_ITEMS = 16
_SMALL_ITEM_WINDOW_ITEMS = 256
"""A packet pipe holds at most 256 packets; further items in flight would wait inside processes."""


def make_plan(spec: PipelineSpec, machine: Machine, curves: CostCurves, **choices: Any) -> Plan:
    """Plan a run. `choices` are fields of the plan that have no config key, such as `limit` and `shard`."""
    spec = split_source(spec)
    processes = _plan_processes(spec, machine)
    hops = tuple(
        _plan_hop(source, target, spec, curves)
        for source, target in zip(processes, (*processes[1:], None), strict=True)
    )
    processes = mark_chunks(processes, hops)
    memory = spec.memory_bytes or int(machine.memory_bytes * _ARENA_MEMORY_FRACTION)
    return Plan(
        **{**get_common_fields(spec, Plan), "memory_bytes": memory},
        **choices,
        processes=processes,
        hops=hops,
        segments=_plan_segments(spec, processes, memory),
        any_order=spec.order == "any",
        curves=curves,
        cpu_count=machine.cpus,
        max_writers=count_max_writers(spec, memory),
    )


def _plan_processes(spec: PipelineSpec, machine: Machine) -> tuple[ProcessPlan, ...]:
    groups: list[list[StagePlan]] = []
    for index, stage in enumerate((spec.source, *spec.stages)):
        if stage.fuse is not True or not groups:
            groups.append([])
        groups[-1].append(StagePlan(**get_common_fields(stage, StageSpec), index=index))
    processes: list[ProcessPlan] = []
    segment = 0
    for stages in groups:
        first = stages[0]
        restores_order = first.is_order_point
        workers, bounds = (1, None) if restores_order else _get_workers(first)
        role = ProcessRole.ORDER_POINT if restores_order else ProcessRole.STAGE
        slots = workers if bounds is None else bounds.maximum
        processes.append(
            ProcessPlan(
                role=role if first.index else ProcessRole.SOURCE,
                stages=tuple(stages),
                workers=workers,
                worker_bounds=bounds,
                input_segment=segment,
                output_segment=segment + restores_order,
                visible_devices=assign_devices(first, slots, machine.cuda_devices),
            )
        )
        segment += restores_order
    return tuple(processes)


def _get_workers(stage: StagePlan) -> tuple[int, WorkerRange | None]:
    """Return the workers at the start and their bounds. For an unresolved `auto`: the minimum, and no bounds."""
    if stage.workers != "auto":
        return stage.workers, stage.worker_bounds
    return (1 if stage.worker_bounds is None else stage.worker_bounds.minimum), None


def _plan_hop(source: ProcessPlan, target: ProcessPlan | None, spec: PipelineSpec, curves: CostCurves) -> HopPlan:
    stage_mode = target.first_stage.transport if target is not None else "auto"
    mode = spec.transport.mode if stage_mode == "auto" else stage_mode
    workers = (source.slot_count, 1 if target is None else target.slot_count)  # several writers need whole packets
    return HopPlan(
        source=source.name,
        target=SINK_NAME if target is None else target.name,
        rule=negotiate(mode, spec.transport.threshold_bytes, workers, curves),
        capacity_packets=_SMALL_ITEM_WINDOW_ITEMS if spec.window == "auto" else spec.window,
        is_threshold_fixed=spec.transport.threshold_bytes is not None,
        transport=find_transport_target(mode),
    )


def _plan_segments(
    spec: PipelineSpec, processes: tuple[ProcessPlan, ...], memory_bytes: int
) -> tuple[SegmentPlan, ...]:
    segments: list[SegmentPlan] = []
    source_items_per_item = 1
    for index in range(processes[-1].output_segment + 1):
        stage_processes = [p for p in processes if p.role is ProcessRole.STAGE and p.input_segment == index]
        needed = max([1, *(p.stages[0].batch.size * p.slot_count for p in stage_processes if p.stages[0].batch)])
        needed = max([needed, *(p.thread_count * p.slot_count for p in stage_processes)])
        if stage_processes and all(p.first_stage.sink_path for p in stage_processes):
            window = count_parts_in_flight(spec, sum(p.slot_count for p in stage_processes), memory_bytes)
            segments.append(SegmentPlan(window, window))
        elif spec.window != "auto":
            window = max(-(-spec.window // source_items_per_item), needed)
            segments.append(SegmentPlan(window, window))
        else:
            slots = sum(p.slot_count for p in stage_processes)
            window = max(_DEFAULT_WINDOW_ITEMS if index == 0 else 4, 4 * slots, 2 * needed)
            has_chunks = index == 0 and processes[0].sends_chunks
            small_item_window = CHUNK_WINDOW_ITEMS if has_chunks else _SMALL_ITEM_WINDOW_ITEMS
            segments.append(SegmentPlan(window, max(small_item_window, window)))
        source_items_per_item *= next(
            (p.first_stage.items_per_output for p in processes if p.output_segment > index), 1
        )
    return tuple(segments)


_MIN_OUTPUT_GROUPS = 3
"""Groups to get from the last order point. The first group pays for untouched pages; the others are representative."""

_MIN_PROBE_ITEMS = 48
"""With fewer items, a forecast is unreliable if their costs vary."""

_MAX_PROBE_ITEMS = 2048
"""More items take too long. The engine also limits the probe's duration."""

_MAX_PROBE_PART_ITEMS = 8
"""Maximum items of a part for sinks in a probe, fewer after a `Batch`, so that a part comes soon. `MeasuredSink`
separates the time of a row from the time of a part.

"""

_MAX_PART_SOURCE_ITEMS = 48
_MEASURED_SINK_PATH: Final = "stagepipe.sinks.MeasuredSink"


def make_probe_plan(plan: Plan, sink_folder: Path = Path()) -> Plan:
    """Copy `plan` with one worker per stage, few items, and one item in flight. Sinks write to `sink_folder`.

    With several items in flight, the stages would run at the same time and look slower than they are on a busy machine.
    A stage with `batch` gets a window of two batches: it gathers the next one while it works on the first.
    """
    single = [replace(process, workers=1, worker_bounds=None) for process in plan.processes]
    processes = redirect_sinks(single, sink_folder)
    plan = replace(plan, processes=processes)
    windows = [1] * len(plan.segments)
    for process in processes:
        batch = process.stages[0].batch
        if batch is not None:
            windows[process.input_segment] = max(windows[process.input_segment], 2 * batch.size)
    return replace(
        plan,
        processes=processes,
        segments=tuple(SegmentPlan(window, window) for window in windows),
        limit=min(_choose_item_count(plan), plan.limit or _MAX_PROBE_ITEMS),
        is_probe=True,
    )


def redirect_sinks(processes: Sequence[ProcessPlan], folder: Path) -> tuple[ProcessPlan, ...]:
    """Copy the processes with small parts. Stand-ins of the sinks with workers write the parts to `folder`."""
    redirected: list[ProcessPlan] = []
    source_items = 1
    multiple = 1
    for process in processes:
        stage = process.first_stage
        if stage.sink_path and stage.is_order_point:
            multiple = stage.target.arguments.get("multiple", 1)
            items = max(min(_MAX_PROBE_PART_ITEMS, _MAX_PART_SOURCE_ITEMS // source_items), 2)
            items = min(-(-items // multiple) * multiple, stage.items_per_output)
            target = replace(stage.target, arguments={**stage.target.arguments, "max_items": items})
            stage = replace(stage, target=target, items_per_output=items)
        elif stage.sink_path:
            sink = {"uses": stage.target.uses, "with": stage.target.arguments}
            arguments = {"sink": sink, "folder": str(folder), "multiple": multiple}
            stage = replace(stage, target=Target(_MEASURED_SINK_PATH, arguments))
        source_items *= stage.items_per_output
        redirected.append(replace(process, stages=(stage, *process.stages[1:])))
    return tuple(redirected)


def _choose_item_count(plan: Plan) -> int:
    """The number of source items that fill a few groups of the last order point."""
    group_items = 1
    for process in plan.processes:
        group_items *= process.first_stage.items_per_output
    return min(max(_MIN_OUTPUT_GROUPS * group_items, _MIN_PROBE_ITEMS), _MAX_PROBE_ITEMS)
