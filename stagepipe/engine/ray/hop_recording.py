"""The counts of both sides of each hop -> HopRecords. Pure; in the caller's process."""

from __future__ import annotations

from collections.abc import Mapping

from stagepipe.engine.ray.counts import HopClock
from stagepipe.engine.ray.layout import RayLayout
from stagepipe.engine.ray.process_counts import ProcessCounts, RayCounts
from stagepipe.plan import SINK_NAME, Plan, StagePlan
from stagepipe.report import (
    PHASES,
    ByteCounts,
    CostPrediction,
    HopRecord,
    HopTransport,
    MessageCounts,
    StoreHopReport,
)
from stagepipe.timing import Histogram, StageCounter, StageRegion


def make_hop_records(
    plan: Plan, layout: RayLayout, counts: RayCounts, own_regions: Mapping[str, StageRegion]
) -> list[HopRecord]:
    """Make the records of all hops, in the order of the plan. `own_regions` are of the stages of this process."""
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
