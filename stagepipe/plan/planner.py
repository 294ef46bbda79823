"""Makes the plan: splits source and sinks into stages, groups fused stages into processes, chooses modes and windows.

A source and the `Batch` after it exchange chunks where they can: the source sends the indices of many items at once,
and a reader their samples, stacked; `Batch` copies ranges of rows. So a tiny sample does not pay for two packets.

The plan of a probe is a run of the first few items, one at a time, so that each stage is measured alone.
Pure; runs in the caller's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from stagepipe.core import UsageError, get_class_path
from stagepipe.costs import CostCurves, negotiate
from stagepipe.machine import Machine
from stagepipe.plan.lowering import count_max_writers, count_parts_in_flight, split_source
from stagepipe.plan.model import SINK_NAME, HopPlan, Plan, ProcessPlan, ProcessRole, SegmentPlan, StagePlan
from stagepipe.spec import PipelineSpec, StageSpec, Target
from stagepipe.transport import find_transport_target


def assign_devices(stage: StageSpec, workers: int, available_devices: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the CUDA_VISIBLE_DEVICES of each worker, or None to leave the variable unchanged.

    `cuda` spreads the workers over all `available_devices`; each worker sees one, as its device `cuda`. `cuda:1` gives
    every worker the second device. `cpu` hides all devices.

    >>> from stagepipe.spec import Target
    >>> assign_devices(StageSpec(name="detect", target=Target("a.b"), device="cuda"), 3, ("0", "1"))
    ('0', '1', '0')

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
        return tuple(available_devices[worker % len(available_devices)] for worker in range(workers))
    if int(index) >= len(available_devices):
        last = len(available_devices) - 1
        existing = f"cuda:0 to cuda:{last} exist" if last else "cuda:0 exists"
        raise UsageError(f"{stage.config_path}.device: {device}, but only {existing}; choose an existing device")
    return (available_devices[int(index)],) * workers


_DATASET_SOURCES: Final = frozenset({"stagepipe.sources.dataset", "stagepipe.sources.DatasetSource"})
_FETCH_PATH: Final = "stagepipe.stages.Fetch"
_NOT_ONE_BY_ONE: Final = ("batch_size", "batch_sampler", "shards")
"""Arguments that make an item of the source something else than one index."""
_BATCH: Final = "stagepipe.stages.Batch"
CHUNK_WINDOW_ITEMS: Final = 2048
"""Small items in flight where they travel in chunks: some chunks for each worker. The memory that they take is bounded
by `SMALL_ITEM_BUDGET_BYTES` in `admission`."""


def mark_chunks(processes: tuple[ProcessPlan, ...], hops: tuple[HopPlan, ...]) -> tuple[ProcessPlan, ...]:
    """Return the processes, with `sends_chunks` where the first two can."""
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


def make_plan(spec: PipelineSpec, machine: Machine, curves: CostCurves, *, limit: int | None = None) -> Plan:
    """Plan a run of at most `limit` source items (None: all)."""
    spec = split_source(spec)
    processes = _plan_processes(spec, machine)
    hops = tuple(
        _plan_hop(source, target, spec, curves)
        for source, target in zip(processes, (*processes[1:], None), strict=True)
    )
    processes = mark_chunks(processes, hops)
    memory = spec.memory_bytes or int(machine.memory_bytes * _ARENA_MEMORY_FRACTION)
    return Plan(
        name=spec.name,
        processes=processes,
        hops=hops,
        segments=_plan_segments(spec, processes, memory),
        memory_bytes=memory,
        seed=spec.seed,
        any_order=spec.order == "any",
        curves=curves,
        cpu_count=machine.cpus,
        config_dir=spec.config_dir,
        sinks=spec.sinks,
        limit=limit,
        config_sha256=spec.config_sha256,
        source_sha256=spec.source_sha256,
        max_restarts=spec.max_restarts,
        start=spec.start,
        preload=spec.preload,
        uses_torch=spec.uses_torch,
        max_skipped=spec.max_skipped,
        attach=spec.attach,
        max_writers=count_max_writers(spec, memory),
    )


def _plan_processes(spec: PipelineSpec, machine: Machine) -> tuple[ProcessPlan, ...]:
    groups: list[list[StagePlan]] = []
    for index, stage in enumerate((spec.source, *spec.stages)):
        if stage.fuse is not True or not groups:
            groups.append([])
        settings = {field.name: getattr(stage, field.name) for field in fields(StageSpec)}
        groups[-1].append(StagePlan(**settings, index=index))
    processes: list[ProcessPlan] = []
    segment = 0
    for stages in groups:
        first = stages[0]
        restores_order = first.is_order_point
        workers = 1 if restores_order or first.workers == "auto" else first.workers
        role = ProcessRole.ORDER_POINT if restores_order else ProcessRole.STAGE
        processes.append(
            ProcessPlan(
                role=role if first.index else ProcessRole.SOURCE,
                stages=tuple(stages),
                workers=workers,
                input_segment=segment,
                output_segment=segment + restores_order,
                visible_devices=assign_devices(first, workers, machine.cuda_devices),
            )
        )
        segment += restores_order
    return tuple(processes)


def _plan_hop(source: ProcessPlan, target: ProcessPlan | None, spec: PipelineSpec, curves: CostCurves) -> HopPlan:
    stage_mode = target.first_stage.transport if target is not None else "auto"
    mode = spec.transport.mode if stage_mode == "auto" else stage_mode
    workers = (source.workers, 1 if target is None else target.workers)
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
        needed = max([1, *(p.stages[0].batch.size * p.workers for p in stage_processes if p.stages[0].batch)])
        if stage_processes and all(p.first_stage.sink_path for p in stage_processes):
            window = count_parts_in_flight(spec, sum(p.workers for p in stage_processes), memory_bytes)
            segments.append(SegmentPlan(window, window))
        elif spec.window != "auto":
            window = max(-(-spec.window // source_items_per_item), needed)
            segments.append(SegmentPlan(window, window))
        else:
            workers = sum(p.workers for p in stage_processes)
            window = max(_DEFAULT_WINDOW_ITEMS if index == 0 else 4, 4 * workers, 2 * needed)
            has_chunks = index == 0 and processes[0].sends_chunks
            small_item_window = CHUNK_WINDOW_ITEMS if has_chunks else _SMALL_ITEM_WINDOW_ITEMS
            segments.append(SegmentPlan(window, max(small_item_window, window)))
        source_items_per_item *= next(
            (p.first_stage.items_per_output for p in processes if p.output_segment > index), 1
        )
    return tuple(segments)


_MIN_OUTPUT_GROUPS = 3
"""Groups to get from the last order point. The first one pays for untouched pages; the others are representative."""

_MIN_PROBE_ITEMS = 48
"""Fewer items say too little if their costs vary."""

_MAX_PROBE_ITEMS = 2048
"""More items take too long. The engine also limits the probe's duration."""

_MAX_PART_ITEMS = 8
"""Items of a part for sinks in a probe, or fewer after a `Batch`: a part comes soon. `MeasuredSink` tells the time of a
row from that of a part."""

_MAX_PART_SOURCE_ITEMS = 48
_MEASURED_SINK_PATH: Final = "stagepipe.sinks.MeasuredSink"


def make_probe_plan(plan: Plan, sink_folder: Path = Path()) -> Plan:
    """Copy `plan` with one worker per stage, few items, and one item in flight. Sinks write to `sink_folder`.

    With several items in flight the stages would run at the same time, and on a busy machine each would look slower
    than it is. A stage with `batch` gets a window of two batches: it gathers the next one while it works on the first.
    """
    processes = redirect_sinks([replace(process, workers=1) for process in plan.processes], sink_folder)
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
    """Copy the processes with small parts, which stand-ins of the sinks with workers write to `folder`."""
    redirected: list[ProcessPlan] = []
    source_items = 1
    multiple = 1
    for process in processes:
        stage = process.first_stage
        if stage.sink_path and stage.is_order_point:
            multiple = stage.target.arguments.get("multiple", 1)
            items = max(min(_MAX_PART_ITEMS, _MAX_PART_SOURCE_ITEMS // source_items), 2)
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
