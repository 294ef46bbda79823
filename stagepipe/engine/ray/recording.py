"""The counts of all workers -> RunRecord. Pure; runs in the caller's process.

Each worker uses its own clock, and durations come from one clock only: the code never compares times of two nodes.
Figures that only Ray knows (queues, transfers between nodes, spilled bytes) come from `StoreStatistics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, Final

from stagepipe.engine.ray.blocks import BlockCounts, HopClock, StageCounts
from stagepipe.engine.ray.execution import StoreStatistics
from stagepipe.engine.ray.operators import RayLayout
from stagepipe.engine.recording import (
    MAX_SLOW_ITEMS,
    find_slowest_items,
    make_call_record,
    make_common_fields,
    make_fused_fields,
    make_stage_record,
)
from stagepipe.plan import SINK_NAME, Plan, ProcessPlan, StagePlan
from stagepipe.report import (
    PHASES,
    ByteCounts,
    CostPrediction,
    HopRecord,
    HopTransport,
    MessageCounts,
    RunRecord,
    SharedMemoryReport,
    StageRecord,
    StageTally,
    StoreHopReport,
    TimingOverhead,
    WorkerLoad,
)
from stagepipe.runtime import DeliverySnapshot
from stagepipe.timing import Histogram, StageCounter, StageRegion


@dataclass(kw_only=True)
class WorkerClock:
    """The times of one worker by its own clock, in ns: from its first block to its last, and within blocks."""

    began_ns: int
    ended_ns: int = 0
    in_blocks_ns: int = 0
    setup_ns: int = 0
    cpu_ns: int = 0
    items: int = 0
    busy_ns: int = 0


@dataclass(kw_only=True)
class ProcessCounts:
    """The counts of a process, summed over its workers."""

    stages: list[StageCounts] = field(default_factory=list)
    workers: dict[str, WorkerClock] = field(default_factory=dict)
    encode_ns: Histogram = field(default_factory=Histogram)
    decode_ns: Histogram = field(default_factory=Histogram)
    cost_ns: Histogram = field(default_factory=Histogram)
    messages: int = 0
    sent_bytes: int = 0

    def add(self, counts: BlockCounts) -> None:
        """Add the counts of a block."""
        if not self.stages:
            self.stages = list(counts.stages)
        else:
            self.stages = [_add_stages(old, new) for old, new in zip(self.stages, counts.stages, strict=True)]
        clock = self.workers.setdefault(counts.worker, WorkerClock(began_ns=counts.began_ns))
        clock.ended_ns = max(clock.ended_ns, counts.ended_ns)
        clock.began_ns = min(clock.began_ns, counts.began_ns)
        clock.in_blocks_ns += counts.ended_ns - counts.began_ns
        clock.setup_ns += counts.setup_ns
        clock.cpu_ns += counts.cpu_ns
        clock.items += counts.stages[0].counters[StageCounter.ITEMS]
        clock.busy_ns += sum(stage.counters[StageCounter.BUSY_NS] for stage in counts.stages)
        self.add_hops(counts.clock)

    def add_hops(self, clock: HopClock) -> None:
        """Add the times and sizes of received and sent items."""
        self.encode_ns += Histogram.from_values_ns(clock.encode_ns)
        self.decode_ns += Histogram.from_values_ns(clock.decode_ns)
        self.cost_ns += Histogram.from_values_ns(clock.cost_ns)
        self.messages += len(clock.sent_bytes)
        self.sent_bytes += sum(clock.sent_bytes)


class RayCounts:
    """The counts of a run so far."""

    def __init__(self, plan: Plan) -> None:
        """Start with zero counts."""
        self.processes = [ProcessCounts() for _ in plan.processes]
        self.own_clocks = [HopClock() for _ in plan.processes]
        """Per process: the items that this process received from it, or sent in its place."""
        self.store: StoreStatistics | None = None
        """Ray's own counters; None until the cluster exists."""

    def add(self, counts: BlockCounts) -> None:
        """Add the counts of a block."""
        self.processes[counts.process_index].add(counts)

    @property
    def source_items(self) -> int:
        """The number of items that the source has read."""
        source = self.processes[0].stages
        return source[0].counters[StageCounter.ITEMS] if source else 0


def _add_stages(old: StageCounts, new: StageCounts) -> StageCounts:
    slow_items = sorted((*old.slow_items, *new.slow_items), key=lambda row: -row.run_ns)
    return StageCounts(
        counters=tuple(map(add, old.counters, new.counters)),
        run_histogram=old.run_histogram + new.run_histogram,
        slow_items=tuple(slow_items[:MAX_SLOW_ITEMS]),
    )


def make_ray_record(
    plan: Plan,
    layout: RayLayout,
    counts: RayCounts,
    deliveries: DeliverySnapshot,
    own_regions: Mapping[str, StageRegion],
    **fields: Any,
) -> RunRecord:
    """Return the record of a running or finished run.

    `own_regions` are the counters of the stages in this process. `fields` are further fields of the record.
    """
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
        **make_common_fields(plan, deliveries, stages),
        **fields,
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
        tally = StageTally.from_counters(stage.name, stage_counts.counters)
        records.append(
            make_stage_record(
                stage,
                tally,
                stage_counts.run_histogram,
                workers=max(len(counts.workers), 1),
                is_blocked_measured=False,
                **(fields if index == 0 else make_fused_fields(process, tally)),
            )
        )
    return records


def _make_own_records(
    stages: Sequence[StagePlan], regions: Mapping[str, StageRegion], deliveries: DeliverySnapshot
) -> list[StageRecord]:
    """Return the records of this process's stages, which share the time in which the caller waits for an item."""
    busy_ns = sum(regions[stage.name][StageCounter.BUSY_NS] for stage in stages)
    return [
        make_stage_record(
            stage,
            StageTally.from_counters(stage.name, region.read_counters()),
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


def make_hop_records(
    plan: Plan, layout: RayLayout, counts: RayCounts, own_regions: Mapping[str, StageRegion]
) -> list[HopRecord]:
    """Return the records of all hops, in plan order. `own_regions` are the counters of the stages in this process."""
    hops = []
    store_hops = counts.store.make_hops() if counts.store else [None] * layout.count
    for number, process in enumerate(plan.processes):
        process_counts = counts.processes[number]
        for index, (source, target) in enumerate(zip(process.stages, process.stages[1:], strict=False), 1):
            messages = _count_items(target, index, process_counts, own_regions)
            hops.append(make_call_record(source.name, target.name, messages, "fused: a function call"))
        last_name = process.stages[-1].name
        target_name = plan.processes[number + 1].name if number + 1 < len(plan.processes) else SINK_NAME
        is_sent, is_received = layout.is_on_ray(number), layout.is_on_ray(number + 1)
        if not (is_sent or is_received):
            messages = _count_items(process.stages[-1], 0, process_counts, own_regions)
            hops.append(make_call_record(last_name, target_name, messages, "both run in the calling process"))
            continue
        own = ProcessCounts()
        own.add_hops(counts.own_clocks[number])
        hops.append(
            _make_store_hop(
                last_name,
                target_name,
                sender=process_counts if is_sent else own,
                receiver=counts.processes[number + 1] if is_received else own,
                store=store_hops[number] if number < layout.count else None,
            )
        )
    return hops


def _count_items(stage: StagePlan, index: int, counts: ProcessCounts, own_regions: Mapping[str, StageRegion]) -> int:
    if stage.name in own_regions:
        return own_regions[stage.name][StageCounter.ITEMS]
    return counts.stages[index].counters[StageCounter.ITEMS] if counts.stages else 0


def _make_store_hop(
    source: str, target: str, *, sender: ProcessCounts, receiver: ProcessCounts, store: StoreHopReport | None
) -> HopRecord:
    phases = {name: Histogram() for name in PHASES}
    return HopRecord(
        source=source,
        target=target,
        transport=HopTransport("object_store", 0, "Ray moves blocks of items through its object store"),
        messages=MessageCounts(object_store=sender.messages),
        bytes=ByteCounts(copied=sender.sent_bytes),
        cost_histogram=receiver.cost_ns,
        phase_histograms={**phases, "encode_ns": sender.encode_ns, "decode_ns": receiver.decode_ns},
        predicted=CostPrediction(),
        store=store,
    )
