"""The counts of all workers -> RunRecord. Pure; in the caller's process.

Each worker counts by its own clock, and only durations of one clock are compared: no time is taken between two nodes.
What only Ray knows (queues, transfers between nodes, spilled bytes) comes from `store_statistics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stagepipe.engine.ray.counts import StageCounts
from stagepipe.engine.ray.hop_recording import make_hop_records
from stagepipe.engine.ray.layout import RayLayout
from stagepipe.engine.ray.process_counts import ProcessCounts, RayCounts
from stagepipe.engine.recording import find_slowest_items, make_fused_fields, make_run_fields, make_stage_record
from stagepipe.plan import Plan, ProcessPlan, StagePlan
from stagepipe.report import (
    DeadLetter,
    RunRecord,
    SharedMemoryReport,
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
    slow_items = {
        stage.name: stage_counts.slow_items
        for process, process_counts in zip(plan.processes, counts.processes, strict=True)
        for stage, stage_counts in zip(process.stages, process_counts.stages, strict=False)
    }
    return RunRecord(
        **make_run_fields(plan, deliveries, stages, status, error_message),
        dead_letters=dead_letters,
        items_in=counts.source_items,
        source_end_ns=deliveries.wall_ns,
        hops=tuple(make_hop_records(plan, layout, counts, own_regions)),
        timing_overhead=TimingOverhead(),
        calibration={},
        memory=SharedMemoryReport(),
        slowest=find_slowest_items(plan, slow_items),
        store_nodes=counts.store.nodes if counts.store else (),
        scheduler="Ray",
        store_option="ray start --object-store-memory=BYTES",
    )


def _make_worker_records(process: ProcessPlan, counts: ProcessCounts) -> list[StageRecord]:
    clocks = counts.workers.values()
    setup_ns = sum(clock.setup_ns for clock in clocks)
    wall_ns = sum(clock.ended_ns - clock.began_ns for clock in clocks) + setup_ns
    records = []
    fields: dict[str, Any] = {
        "wall_ns": wall_ns,
        "starting_ns": setup_ns,
        "starved_ns": wall_ns - setup_ns - sum(clock.in_blocks_ns for clock in clocks),
        "cpu_ns": sum(clock.cpu_ns for clock in clocks),
        "worker_loads": tuple(WorkerLoad(items=clock.items, busy_ns=clock.busy_ns) for clock in clocks),
    }
    for index, stage in enumerate(process.stages):
        stage_counts = counts.stages[index] if counts.stages else _NO_COUNTS
        records.append(
            make_stage_record(
                stage,
                stage_counts.counters,
                stage_counts.run_histogram,
                workers=max(len(counts.workers), 1),
                is_blocked_measured=False,
                **(fields if index == 0 else make_fused_fields(process, stage_counts.counters)),
            )
        )
    return records


def _make_own_records(
    stages: Sequence[StagePlan], regions: Mapping[str, StageRegion], deliveries: DeliverySnapshot
) -> list[StageRecord]:
    """Make the records of this process's stages: they share the time in which its caller waits for an item."""
    busy_ns = sum(regions[stage.name][StageCounter.BUSY_NS] for stage in stages)
    return [
        make_stage_record(
            stage,
            region.read_counters(),
            Histogram.from_words(region.run_histogram_words),
            workers=1,
            wall_ns=deliveries.wait_ns,
            starved_ns=max(deliveries.wait_ns - busy_ns, 0),
            is_blocked_measured=False,
            worker_loads=(WorkerLoad(items=region[StageCounter.ITEMS], busy_ns=region[StageCounter.BUSY_NS]),),
        )
        for stage, region in ((stage, regions[stage.name]) for stage in stages)
    ]


_NO_COUNTS: Final = StageCounts(
    counters=(0,) * (int(StageCounter.LAST_RESERVED) + 1), run_histogram=Histogram(), slow_items=()
)
