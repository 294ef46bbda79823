"""Makes the hop records of a run from a snapshot: what both sides of each hop have counted. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stagepipe.core import format_bytes, format_ns
from stagepipe.costs import HopCostEstimate, TransportRuleChange, predict_hop_cost
from stagepipe.plan import SINK_NAME, HopPlan, Plan
from stagepipe.report import (
    PHASES,
    ByteCounts,
    CostPrediction,
    HopRecord,
    HopThresholdChange,
    HopTransport,
    MessageCounts,
    SizeCount,
)
from stagepipe.runtime import HopTimings, RunSnapshot, RunTimings, WorkerSnapshot
from stagepipe.timing import Histogram, ProcessCounter, StageCounter


def make_hop_records(plan: Plan, snapshot: RunSnapshot, timings: RunTimings) -> tuple[HopRecord, ...]:
    """Return all hops in pipeline order, including those between fused stages."""
    records = []
    for hop_number, (process, senders) in enumerate(zip(plan.processes, snapshot.worker_groups, strict=True)):
        for stage_index, (source, target) in enumerate(zip(process.stages, process.stages[1:], strict=False), 1):
            message_count = sum(sender.stage_counters[stage_index][StageCounter.ITEMS] for sender in senders)
            records.append(make_call_record(source.name, target.name, message_count, "fused: a function call"))
        records.append(_make_hop_record(plan, hop_number, senders, timings.hops[hop_number]))
    return tuple(records)


def make_call_record(source: str, target: str, message_count: int, reason: str) -> HopRecord:
    """Return the record of a hop between two stages of one process. It has no cost."""
    return HopRecord(
        source=source,
        target=target,
        transport=HopTransport("local", 0, reason),
        messages=MessageCounts(local=message_count),
        bytes=ByteCounts(),
        cost_histogram=Histogram(),
        phase_histograms={name: Histogram() for name in PHASES},
        predicted=CostPrediction(),
    )


def _make_hop_record(
    plan: Plan, hop_number: int, senders: tuple[WorkerSnapshot, ...], timings: HopTimings
) -> HopRecord:
    hop = plan.hops[hop_number]
    phase_histograms = timings.phase_histograms
    estimate = predict_hop_cost(timings.measured_costs, plan.curves)
    pickling_phases = ("encode_ns", "decode_ns") if timings.measured_costs else ()
    pickling_ns = sum(phase_histograms[phase].percentile_ns(50) for phase in pickling_phases)
    messages = _sum_messages(senders)
    byte_counts = _sum_bytes(senders)
    return HopRecord(
        source=plan.processes[hop_number].stages[-1].name,
        target=SINK_NAME if hop.target == SINK_NAME else hop.target,
        transport=_make_transport(hop, timings.rule_changes, messages, byte_counts, estimate),
        messages=messages,
        bytes=byte_counts,
        cost_histogram=phase_histograms["cost_ns"],
        phase_histograms={phase: phase_histograms[phase] for phase in PHASES},
        predicted=_make_prediction(estimate, pickling_ns),
        saved_ns=(_predict_alternative_ns(estimate, messages) - estimate.as_sent_ns) * messages.total,
        sizes=tuple(
            SizeCount(min_bytes=1 << bits >> 1, max_bytes=1 << bits, messages=count)
            for bits, count in timings.messages_by_size_bits.items()
        ),
    )


def _make_transport(
    hop: HopPlan,
    rule_changes: Sequence[TransportRuleChange],
    messages: MessageCounts,
    byte_counts: ByteCounts,
    estimate: HopCostEstimate,
) -> HopTransport:
    threshold_bytes = rule_changes[-1].after.threshold_bytes if rule_changes else hop.rule.threshold_bytes
    return HopTransport(
        mode=hop.mode,
        threshold_bytes=threshold_bytes if hop.mode == "auto" else 0,
        reason=_format_transport_reason(hop, byte_counts.total // messages.total, estimate)
        if messages.total
        else hop.rule.reason,
        changes=tuple(
            HopThresholdChange(
                change.messages, change.before.threshold_bytes, change.after.threshold_bytes, change.reason
            )
            for change in rule_changes
        ),
    )


def _make_prediction(estimate: HopCostEstimate, pickling_ns: int) -> CostPrediction:
    """Return the predicted and measured costs of a message, with pickling as measured."""
    median_ns = estimate.predicted_median_ns + pickling_ns
    measured_median_ns = estimate.measured_median_ns + pickling_ns
    return CostPrediction(
        pipe_ns=estimate.pipe_ns + pickling_ns,
        shared_memory_ns=estimate.shared_memory_ns + pickling_ns,
        median_ns=median_ns,
        measured_median_ns=measured_median_ns,
        measured_ratio=round(measured_median_ns / median_ns, 3) if median_ns else 0.0,
    )


def _sum_messages(senders: Sequence[WorkerSnapshot]) -> MessageCounts:
    return MessageCounts(
        pipe=sum_counter(senders, ProcessCounter.PIPE_MESSAGES),
        shared_memory=sum_counter(senders, ProcessCounter.SHARED_MEMORY_MESSAGES),
        mixed=sum_counter(senders, ProcessCounter.MIXED_MESSAGES),
    )


def _sum_bytes(senders: Sequence[WorkerSnapshot]) -> ByteCounts:
    return ByteCounts(
        inline=sum_counter(senders, ProcessCounter.INLINE_BYTES),
        copied=sum_counter(senders, ProcessCounter.COPIED_BYTES),
        zero_copy=sum_counter(senders, ProcessCounter.ZERO_COPY_BYTES),
    )


def sum_counter(workers: Sequence[WorkerSnapshot], counter: ProcessCounter) -> int:
    """Return the sum of a counter over the workers."""
    return sum(worker.counters[counter] for worker in workers)


def _predict_alternative_ns(estimate: HopCostEstimate, messages: MessageCounts) -> int:
    """Return the predicted mean cost of the transport that most messages did not use."""
    mostly_pipe = messages.pipe > messages.shared_memory + messages.mixed
    return estimate.shared_memory_ns if mostly_pipe else estimate.pipe_ns


def _format_transport_reason(hop: HopPlan, mean_bytes: int, estimate: HopCostEstimate) -> str:
    """Format `1.2 MB per message: predicted 46 µs by shared memory, 2.1 ms by pipe`."""
    figures = (
        f"{format_bytes(mean_bytes)} per message: predicted {format_ns(estimate.shared_memory_ns)} by shared memory, "
        f"{format_ns(estimate.pipe_ns)} by pipe"
    )
    return figures if hop.mode == "auto" else f"{hop.rule.reason}; {figures}"
