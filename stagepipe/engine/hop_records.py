"""Makes the hop records of a run from what both sides of each hop wrote on the board. In the supervisor's process."""

from __future__ import annotations

from functools import reduce
from operator import add

from stagepipe.core import format_bytes, format_ns
from stagepipe.costs import HopCostEstimate, predict_hop_cost, summarize_ledgers
from stagepipe.plan import SINK_NAME, HopPlan
from stagepipe.report import PHASES, HopRecord, HopThresholdChange
from stagepipe.runtime import Supervisor
from stagepipe.timing import SEND_PHASES, Histogram, ProcessCounter, ProcessRegion, StageCounter


def make_hop_records(supervisor: Supervisor) -> tuple[HopRecord, ...]:
    """Return all hops in pipeline order, including those between fused stages."""
    board = supervisor.board
    regions_by_group = [
        [board.region(process_index) for process_index in process_indices]
        for process_indices in supervisor.resources.process_indices_by_group
    ]
    records = []
    for hop_number, process in enumerate(supervisor.plan.processes):
        senders = regions_by_group[hop_number]
        for stage_index, (source, target) in enumerate(zip(process.stages, process.stages[1:], strict=False), 1):
            message_count = sum(region.stage_region(stage_index)[StageCounter.ITEMS] for region in senders)
            records.append(_make_fused_hop_record(source.name, target.name, message_count))
        records.append(_make_hop_record(supervisor, hop_number, senders, regions_by_group[hop_number + 1]))
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
    supervisor: Supervisor, hop_number: int, senders: list[ProcessRegion], receivers: list[ProcessRegion]
) -> HopRecord:
    plan = supervisor.plan
    hop = plan.hops[hop_number]
    rule_changes = supervisor.adaptive_transport.get_rule_changes(hop_number)
    sender_phases = [region.phase_histograms() for region in senders]
    receiver_phases = [region.phase_histograms() for region in receivers]
    phase_histograms = {
        phase: reduce(
            add, (histograms[phase] for histograms in (sender_phases if phase in SEND_PHASES else receiver_phases))
        )
        for phase in PHASES
    }
    measured_costs = summarize_ledgers(
        [region.send_ledger for region in senders], [region.receive_ledger for region in receivers]
    )
    estimate = predict_hop_cost(measured_costs, plan.curves)
    pickling_phases = ("encode_ns", "decode_ns") if measured_costs else ()
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
        cost_histogram=reduce(add, (histograms["cost_ns"] for histograms in receiver_phases)),
        phase_histograms=phase_histograms,
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


def _sum_message_counts(senders: list[ProcessRegion]) -> dict[str, int]:
    counters = {
        "pipe": ProcessCounter.PIPE_MESSAGES,
        "shared_memory": ProcessCounter.SHARED_MEMORY_MESSAGES,
        "mixed": ProcessCounter.MIXED_MESSAGES,
    }
    return {"local": 0, **{name: sum(region[counter] for region in senders) for name, counter in counters.items()}}


def _sum_byte_counts(senders: list[ProcessRegion]) -> dict[str, int]:
    counters = {
        "inline": ProcessCounter.INLINE_BYTES,
        "copied": ProcessCounter.COPIED_BYTES,
        "zero_copy": ProcessCounter.ZERO_COPY_BYTES,
    }
    return {name: sum(region[counter] for region in senders) for name, counter in counters.items()}


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
