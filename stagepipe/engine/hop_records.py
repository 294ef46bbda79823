"""Makes the hop records of a run from a snapshot: what both sides of each hop have counted. Pure."""

from __future__ import annotations

from stagepipe.core import format_bytes, format_ns
from stagepipe.costs import HopCostEstimate, predict_hop_cost
from stagepipe.plan import SINK_NAME, HopPlan, Plan
from stagepipe.report import PHASES, HopRecord, HopThresholdChange
from stagepipe.runtime import HopTimings, RunSnapshot, RunTimings, WorkerSnapshot
from stagepipe.timing import Histogram, ProcessCounter, StageCounter


def make_hop_records(plan: Plan, snapshot: RunSnapshot, timings: RunTimings) -> tuple[HopRecord, ...]:
    """Return all hops in pipeline order, including those between fused stages."""
    records = []
    for hop_number, (process, senders) in enumerate(zip(plan.processes, snapshot.worker_groups, strict=True)):
        for stage_index, (source, target) in enumerate(zip(process.stages, process.stages[1:], strict=False), 1):
            message_count = sum(sender.stage_counters[stage_index][StageCounter.ITEMS] for sender in senders)
            records.append(_make_fused_hop_record(source.name, target.name, message_count))
        records.append(_make_hop_record(plan, hop_number, senders, timings.hops[hop_number]))
    return tuple(records)


def _make_fused_hop_record(source: str, target: str, message_count: int) -> HopRecord:
    return HopRecord(
        source=source,
        target=target,
        mode="local",
        threshold_bytes=0,
        reason="fused: a function call",
        message_counts={"local": message_count, "pipe": 0, "shared_memory": 0, "mixed": 0},
        byte_counts={"inline": 0, "copied": 0, "zero_copy": 0},
        cost_histogram=Histogram(),
        phase_histograms={name: Histogram() for name in PHASES},
    )


def _make_hop_record(
    plan: Plan, hop_number: int, senders: tuple[WorkerSnapshot, ...], timings: HopTimings
) -> HopRecord:
    hop = plan.hops[hop_number]
    rule_changes = timings.rule_changes
    phase_histograms = timings.phase_histograms
    estimate = predict_hop_cost(timings.measured_costs, plan.curves)
    pickling_phases = ("encode_ns", "decode_ns") if timings.measured_costs else ()
    pickling_ns = sum(phase_histograms[phase].percentile_ns(50) for phase in pickling_phases)
    message_counts = _sum_message_counts(senders)
    byte_counts = _sum_byte_counts(senders)
    message_count = sum(message_counts.values())
    alternative_ns = _predict_alternative_ns(estimate, message_counts)
    threshold_bytes = rule_changes[-1].after.threshold_bytes if rule_changes else hop.threshold_bytes
    reason = hop.reason
    if message_count:
        reason = _format_transport_reason(hop, sum(byte_counts.values()) // message_count, estimate)
    return HopRecord(
        source=plan.processes[hop_number].stages[-1].name,
        target=SINK_NAME if hop.target == SINK_NAME else hop.target,
        mode=hop.mode,
        threshold_bytes=threshold_bytes if hop.mode == "auto" else 0,
        reason=reason,
        message_counts=message_counts,
        byte_counts=byte_counts,
        cost_histogram=phase_histograms["cost_ns"],
        phase_histograms={phase: phase_histograms[phase] for phase in PHASES},
        predicted_pipe_ns=estimate.pipe_ns + pickling_ns,
        predicted_shared_memory_ns=estimate.shared_memory_ns + pickling_ns,
        predicted_median_ns=estimate.predicted_median_ns + pickling_ns,
        measured_median_ns=estimate.measured_median_ns + pickling_ns,
        saved_ns=(alternative_ns - estimate.as_sent_ns) * message_count,
        threshold_changes=tuple(
            HopThresholdChange(
                change.messages, change.before.threshold_bytes, change.after.threshold_bytes, change.reason
            )
            for change in rule_changes
        ),
    )


def _sum_message_counts(senders: tuple[WorkerSnapshot, ...]) -> dict[str, int]:
    counters = {
        "pipe": ProcessCounter.PIPE_MESSAGES,
        "shared_memory": ProcessCounter.SHARED_MEMORY_MESSAGES,
        "mixed": ProcessCounter.MIXED_MESSAGES,
    }
    return {
        "local": 0,
        **{name: sum(sender.counters[counter] for sender in senders) for name, counter in counters.items()},
    }


def _sum_byte_counts(senders: tuple[WorkerSnapshot, ...]) -> dict[str, int]:
    counters = {
        "inline": ProcessCounter.INLINE_BYTES,
        "copied": ProcessCounter.COPIED_BYTES,
        "zero_copy": ProcessCounter.ZERO_COPY_BYTES,
    }
    return {name: sum(sender.counters[counter] for sender in senders) for name, counter in counters.items()}


def _predict_alternative_ns(estimate: HopCostEstimate, message_counts: dict[str, int]) -> int:
    """Return the predicted mean cost of the transport that most messages did not use."""
    mostly_pipe = message_counts["pipe"] > message_counts["shared_memory"] + message_counts["mixed"]
    return estimate.shared_memory_ns if mostly_pipe else estimate.pipe_ns


def _format_transport_reason(hop: HopPlan, mean_bytes: int, estimate: HopCostEstimate) -> str:
    """Format `1.2 MB per message: predicted 46 µs by shared memory, 2.1 ms by pipe`."""
    figures = (
        f"{format_bytes(mean_bytes)} per message: predicted {format_ns(estimate.shared_memory_ns)} by shared memory, "
        f"{format_ns(estimate.pipe_ns)} by pipe"
    )
    return figures if hop.mode == "auto" else f"{hop.reason}; {figures}"
