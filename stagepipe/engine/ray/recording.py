"""The counts of all workers -> RunRecord. Pure; in the caller's process.

Each worker counts by its own clock, and only durations of one clock are compared: no time is taken between two nodes.
What only Ray knows (queues, transfers between nodes, spilled bytes) comes from `store_statistics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from stagepipe.engine.ray.counts import StageCounts
from stagepipe.engine.ray.hop_recording import make_hop_records
from stagepipe.engine.ray.layout import RayLayout
from stagepipe.engine.ray.process_counts import ProcessCounts, RayCounts
from stagepipe.engine.recording import MAX_SLOW_ITEMS, make_consumer_report
from stagepipe.machine import describe_host
from stagepipe.plan import Plan, ProcessPlan, ProcessRole, StagePlan
from stagepipe.report import (
    DeadLetter,
    HostReport,
    RunRecord,
    SharedMemoryReport,
    SlowItem,
    StageRecord,
    TimingOverhead,
    WorkerLoad,
)
from stagepipe.runtime import DeliverySnapshot
from stagepipe.timing import Histogram, StageCounter, StageRegion


def make_ray_record(
    plan: Plan,
    layout: RayLayout,
    counts: RayCounts,
    deliveries: DeliverySnapshot,
    own_regions: Mapping[str, StageRegion],
    *,
    status: str,
    error_message: str | None,
    dead_letters: tuple[DeadLetter, ...],
) -> RunRecord:
    """Make the record of a run that is under way or has ended. `own_regions` are of the stages of this process."""
    own_stages = [
        stage for index, process in enumerate(plan.processes) if not layout.is_on_ray(index) for stage in process.stages
    ]
    own_records = {record.name: record for record in _make_own_records(own_stages, own_regions, deliveries)}
    stages: list[StageRecord] = []
    for index, process in enumerate(plan.processes):
        if layout.is_on_ray(index):
            stages += _make_worker_records(process, counts.processes[index])
        else:
            stages += [own_records[stage.name] for stage in process.stages]
    source_items = counts.source_items
    return RunRecord(
        name=plan.name,
        config_sha256=plan.config_sha256,
        status=status,
        error=error_message,
        items_in=source_items,
        items_out=deliveries.items,
        samples_out=deliveries.samples,
        items_skipped=sum(stage.skipped for stage in stages),
        wall_ns=deliveries.wall_ns,
        first_item_ns=deliveries.first_item_ns,
        source_end_ns=deliveries.wall_ns,
        delivery_points=deliveries.points,
        consumer=make_consumer_report(deliveries),
        stages=tuple(stages),
        hops=tuple(make_hop_records(plan, layout, counts, own_regions)),
        timing_overhead=TimingOverhead(),
        host=HostReport(**describe_host()),
        calibration={},
        memory=SharedMemoryReport(),
        cpus=plan.cpu_count,
        slowest=_find_slowest(plan, counts),
        dead_letters=dead_letters,
        order_point_names=tuple(each.name for each in plan.processes if each.role is ProcessRole.ORDER_POINT),
        is_ordered=not plan.any_order,
        store_nodes=counts.store.nodes if counts.store else (),
    )


def _make_worker_records(process: ProcessPlan, counts: ProcessCounts) -> list[StageRecord]:
    clocks = counts.workers.values()
    setup_ns = sum(clock.setup_ns for clock in clocks)
    wall_ns = sum(clock.ended_ns - clock.began_ns for clock in clocks) + setup_ns
    records = []
    for index, stage in enumerate(process.stages):
        stage_counts = counts.stages[index] if counts.stages else _NO_COUNTS
        counters = stage_counts.counters
        busy_ns = counters[StageCounter.BUSY_NS]
        is_fused = index > 0
        records.append(
            _make_stage_record(
                stage,
                counters,
                stage_counts.run_histogram,
                workers=max(len(counts.workers), 1),
                wall_ns=busy_ns if is_fused else wall_ns,
                starting_ns=0 if is_fused else setup_ns,
                starved_ns=0 if is_fused else wall_ns - setup_ns - sum(clock.in_blocks_ns for clock in clocks),
                cpu_ns=0 if is_fused else sum(clock.cpu_ns for clock in clocks),
                fused_into=process.name if is_fused else None,
                worker_loads=() if is_fused else tuple(WorkerLoad(items=c.items, busy_ns=c.busy_ns) for c in clocks),
            )
        )
    return records


def _make_own_records(
    stages: Sequence[StagePlan], regions: Mapping[str, StageRegion], deliveries: DeliverySnapshot
) -> list[StageRecord]:
    """Make the records of this process's stages: they share the time in which its caller waits for an item."""
    busy_ns = sum(regions[stage.name][StageCounter.BUSY_NS] for stage in stages)
    return [
        _make_stage_record(
            stage,
            regions[stage.name].read_counters(),
            Histogram.from_words(regions[stage.name].run_histogram_words),
            workers=1,
            wall_ns=deliveries.wait_ns,
            starting_ns=0,
            starved_ns=max(deliveries.wait_ns - busy_ns, 0),
            worker_loads=(
                WorkerLoad(
                    items=regions[stage.name][StageCounter.ITEMS], busy_ns=regions[stage.name][StageCounter.BUSY_NS]
                ),
            ),
        )
        for stage in stages
    ]


def _make_stage_record(  # noqa: PLR0913 - a record has all of it
    stage: StagePlan,
    counters: Sequence[int],
    run_histogram: Histogram,
    *,
    workers: int,
    wall_ns: int,
    starting_ns: int,
    starved_ns: int,
    cpu_ns: int = 0,
    fused_into: str | None = None,
    worker_loads: tuple[WorkerLoad, ...],
) -> StageRecord:
    return StageRecord(
        name=stage.name,
        config_path=stage.config_path,
        part_of=stage.part_of,
        workers=workers,
        items=counters[StageCounter.ITEMS],
        wall_ns=wall_ns,
        starting_ns=starting_ns,
        busy_ns=counters[StageCounter.BUSY_NS],
        starved_ns=starved_ns,
        blocked_ns=0,
        is_blocked_measured=False,
        run_histogram=run_histogram,
        cpu_ns=cpu_ns,
        errors=counters[StageCounter.FAILED_ATTEMPTS],
        skipped=counters[StageCounter.SKIPPED],
        passed_by=counters[StageCounter.PASSED_BY],
        retries=counters[StageCounter.RETRIES],
        repeated_ns=counters[StageCounter.REPEATED_NS],
        threads=stage.threads or 1,
        fused_into=fused_into,
        worker_loads=worker_loads,
    )


def _find_slowest(plan: Plan, counts: RayCounts) -> tuple[SlowItem, ...]:
    slow_items = [
        SlowItem(item=str(row.item), stage=stage.row, run_ns=row.run_ns, queue_ns=0, label=row.label)
        for process, process_counts in zip(plan.processes, counts.processes, strict=True)
        for stage, stage_counts in zip(process.stages, process_counts.stages, strict=False)
        for row in stage_counts.slow_items
    ]
    return tuple(sorted(slow_items, key=lambda item: -item.run_ns)[:MAX_SLOW_ITEMS])


_NO_COUNTS: Final = StageCounts(
    counters=(0,) * (int(StageCounter.LAST_RESERVED) + 1), run_histogram=Histogram(), slow_items=()
)
