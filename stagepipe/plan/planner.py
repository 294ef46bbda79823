"""Makes the plan: splits the source, groups fused stages into processes and chooses hop modes and windows.

Pure; runs in the caller's process.
"""

from __future__ import annotations

from dataclasses import fields

from stagepipe.costs import CostCurves, negotiate
from stagepipe.machine import Machine
from stagepipe.plan.chunks import CHUNK_WINDOW_ITEMS, mark_chunks
from stagepipe.plan.devices import assign_devices
from stagepipe.plan.lowering import count_max_writers, count_parts_in_flight, split_source
from stagepipe.plan.model import SINK_NAME, HopPlan, Plan, ProcessPlan, ProcessRole, SegmentPlan, StagePlan
from stagepipe.spec import PipelineSpec, StageSpec

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
    rule = negotiate(mode, spec.transport.threshold_bytes, workers, curves)
    return HopPlan(
        source=source.name,
        target=SINK_NAME if target is None else target.name,
        mode=rule.mode,
        threshold_bytes=rule.threshold_bytes,
        reason=rule.reason,
        capacity_packets=_SMALL_ITEM_WINDOW_ITEMS if spec.window == "auto" else spec.window,
        large_in_pipe=rule.large_in_pipe,
        is_threshold_fixed=spec.transport.threshold_bytes is not None,
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
