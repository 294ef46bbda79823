"""The counts of all workers -> RunRecord. Pure; in the caller's process.

Each worker counts by its own clock, and only durations of one clock are compared: no time is taken between two nodes.
What only Ray knows (queues, transfers between nodes, spilled bytes) comes from `store_statistics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Final

from stagepipe.engine.ray.counts import BlockCounts, HopClock, StageCounts
from stagepipe.engine.ray.layout import RayLayout
from stagepipe.engine.ray.store_statistics import StoreStatistics
from stagepipe.engine.recording import MAX_SLOW_ITEMS, make_consumer_report
from stagepipe.machine import describe_host
from stagepipe.plan import SINK_NAME, Plan, ProcessPlan, ProcessRole, StagePlan
from stagepipe.report import (
    PHASES,
    ByteCounts,
    CostPrediction,
    DeadLetter,
    HopRecord,
    HopTransport,
    HostReport,
    MessageCounts,
    RunRecord,
    SharedMemoryReport,
    SlowItem,
    StageRecord,
    StoreHopReport,
    TimingOverhead,
    WorkerLoad,
)
from stagepipe.runtime import DeliverySnapshot
from stagepipe.timing import Histogram, StageCounter, StageRegion


@dataclass(kw_only=True)
class WorkerClock:
    """The time of one worker, by its own clock, in ns: from its first block to its last, and within blocks."""

    began_ns: int
    ended_ns: int = 0
    in_blocks_ns: int = 0
    setup_ns: int = 0
    cpu_ns: int = 0
    items: int = 0
    busy_ns: int = 0


@dataclass(kw_only=True)
class ProcessCounts:
    """What the workers of a process have counted, added up."""

    stages: list[StageCounts] = field(default_factory=list)
    workers: dict[str, WorkerClock] = field(default_factory=dict)
    encode_ns: Histogram = field(default_factory=Histogram)
    decode_ns: Histogram = field(default_factory=Histogram)
    cost_ns: Histogram = field(default_factory=Histogram)
    messages: int = 0
    sent_bytes: int = 0

    def add(self, counts: BlockCounts) -> None:
        """Add those of a block."""
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
        self.encode_ns += Histogram.from_values_ns(list(counts.encode_ns))
        self.decode_ns += Histogram.from_values_ns(list(counts.received.decode_ns))
        self.cost_ns += Histogram.from_values_ns(list(counts.received.cost_ns))
        self.messages += len(counts.sent_bytes)
        self.sent_bytes += sum(counts.sent_bytes)


class RayCounts:
    """The counts of a run so far."""

    def __init__(self, plan: Plan) -> None:
        """Start with nothing."""
        self.processes = [ProcessCounts() for _ in plan.processes]
        self.own_clocks = [HopClock() for _ in plan.processes]
        """What this process has received of the items of each process, and what it has sent as this process itself."""
        self.store: StoreStatistics | None = None
        """What Ray itself has counted; None before a cluster is there."""

    def add(self, counts: BlockCounts) -> None:
        """Add those of a block."""
        self.processes[counts.process_index].add(counts)

    @property
    def source_items(self) -> int:
        """The items that the source has read."""
        source = self.processes[0].stages
        return source[0].counters[StageCounter.ITEMS] if source else 0


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
        hops=tuple(_make_hops(plan, layout, counts, own_regions)),
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


def _make_hops(
    plan: Plan, layout: RayLayout, counts: RayCounts, own_regions: Mapping[str, StageRegion]
) -> list[HopRecord]:
    hops = []
    store_hops = counts.store.make_hops() if counts.store else [None] * layout.count
    for number, process in enumerate(plan.processes):
        process_counts = counts.processes[number]
        for index, (source, target) in enumerate(zip(process.stages, process.stages[1:], strict=False), 1):
            messages = _count_items(target, index, process_counts, own_regions)
            hops.append(_make_local_hop(source.name, target.name, messages, "fused: a function call"))
        last_name = process.stages[-1].name
        target_name = plan.processes[number + 1].name if number + 1 < len(plan.processes) else SINK_NAME
        is_sent, is_received = layout.is_on_ray(number), layout.is_on_ray(number + 1)
        if not (is_sent or is_received):
            messages = _count_items(process.stages[-1], 0, process_counts, own_regions)
            hops.append(_make_local_hop(last_name, target_name, messages, "both run in the calling process"))
            continue
        clock = counts.own_clocks[number]
        receiver = counts.processes[number + 1] if is_received else None
        hops.append(
            _make_store_hop(
                last_name,
                target_name,
                process_counts if is_sent else _count_own(clock),
                decode_ns=receiver.decode_ns if receiver else Histogram.from_values_ns(clock.decode_ns),
                cost_ns=receiver.cost_ns if receiver else Histogram.from_values_ns(clock.cost_ns),
                store=store_hops[number] if number < layout.count else None,
            )
        )
    return hops


def _count_own(clock: HopClock) -> ProcessCounts:
    """Return what this process has sent to a pool."""
    return ProcessCounts(
        encode_ns=Histogram.from_values_ns(clock.encode_ns),
        messages=len(clock.sent_bytes),
        sent_bytes=sum(clock.sent_bytes),
    )


def _count_items(stage: StagePlan, index: int, counts: ProcessCounts, own_regions: Mapping[str, StageRegion]) -> int:
    if stage.name in own_regions:
        return own_regions[stage.name][StageCounter.ITEMS]
    return counts.stages[index].counters[StageCounter.ITEMS] if counts.stages else 0


def _make_local_hop(source: str, target: str, messages: int, reason: str) -> HopRecord:
    return HopRecord(
        source=source,
        target=target,
        transport=HopTransport("local", 0, reason),
        messages=MessageCounts(local=messages),
        bytes=ByteCounts(),
        cost_histogram=Histogram(),
        phase_histograms={name: Histogram() for name in PHASES},
        predicted=CostPrediction(),
    )


def _make_store_hop(
    source: str,
    target: str,
    sender: ProcessCounts,
    *,
    decode_ns: Histogram,
    cost_ns: Histogram,
    store: StoreHopReport | None,
) -> HopRecord:
    phases = {name: Histogram() for name in PHASES}
    return HopRecord(
        source=source,
        target=target,
        transport=HopTransport("object_store", 0, "Ray moves blocks of items through its object store"),
        messages=MessageCounts(object_store=sender.messages),
        bytes=ByteCounts(copied=sender.sent_bytes),
        cost_histogram=cost_ns,
        phase_histograms={**phases, "encode_ns": sender.encode_ns, "decode_ns": decode_ns},
        predicted=CostPrediction(),
        store=store,
    )


def _find_slowest(plan: Plan, counts: RayCounts) -> tuple[SlowItem, ...]:
    slow_items = [
        SlowItem(str(row.item), stage.name, row.run_ns, 0)
        for process, process_counts in zip(plan.processes, counts.processes, strict=True)
        for stage, stage_counts in zip(process.stages, process_counts.stages, strict=False)
        for row in stage_counts.slow_items
    ]
    return tuple(sorted(slow_items, key=lambda item: -item.run_ns)[:MAX_SLOW_ITEMS])


def _add_stages(old: StageCounts, new: StageCounts) -> StageCounts:
    slow_items = sorted((*old.slow_items, *new.slow_items), key=lambda row: -row.run_ns)
    return StageCounts(
        counters=tuple(map(add, old.counters, new.counters)),
        run_histogram=old.run_histogram + new.run_histogram,
        slow_items=tuple(slow_items[:MAX_SLOW_ITEMS]),
    )


_NO_COUNTS: Final = StageCounts(
    counters=(0,) * (int(StageCounter.LAST_RESERVED) + 1), run_histogram=Histogram(), slow_items=()
)
