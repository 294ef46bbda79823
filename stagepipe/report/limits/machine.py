"""The CPUs are the limit: the quota of the control group, other programs, or the run itself uses all. Pure."""

from __future__ import annotations

from stagepipe.core import format_percent
from stagepipe.report.advice import advise_on_full_machine, advise_on_hop
from stagepipe.report.limits.evidence import (
    MAX_CONFIDENCE,
    Evidence,
    format_count,
    format_hop,
    format_hop_cost,
    make_verdict,
    scale_to_unit,
)
from stagepipe.report.model import Verdict
from stagepipe.report.utilization import FULL_MACHINE_CPU_SHARE, compute_cpus_used, is_machine_full, wants_cpu

_MIN_THROTTLED_SHARE = 0.2
"""Share of the quota's periods in which it was used up, from which it is the limit."""

_MIN_OTHER_SHARE = 0.25
"""Share of the CPUs in use by other programs, from which these are the limit of a full machine."""


def judge_quota(evidence: Evidence) -> Verdict | None:
    """Judge a run whose processes the kernel stopped, because the CPU quota of their control group was used up."""
    record = evidence.record
    if record.cpu_quota <= 0 or record.throttled_share < _MIN_THROTTLED_SHARE or not wants_cpu(evidence.most_used):
        return None
    sentence = (
        f"The CPU quota is the limit: the control group may use {_format_cpus(record.cpu_quota)} of "
        f"{format_count(record.cpus, 'CPU')}, and was stopped in {format_percent(record.throttled_share)} of the "
        "periods because it had used them up."
    )
    costliest = max(evidence.loads, key=lambda load: load.cpu_ns).costliest_stage
    advice = (
        f"No config change will help: raise the quota (`cpu.max`, the CPU limit of the container), or make {costliest} "
        "cheaper. More workers share the same quota."
    )
    confidence = round(0.5 + (MAX_CONFIDENCE - 0.5) * record.throttled_share, 2)
    return Verdict(limited_by="cpu quota", kind="machine", confidence=confidence, sentence=sentence, advice=advice)


def judge_machine(evidence: Evidence) -> Verdict | None:
    """Judge a run in which all CPUs are in use: by other programs, or by the stage or hop with the most CPU time."""
    record = evidence.record
    cpus_used = compute_cpus_used(record)
    if not is_machine_full(record, evidence.most_used):
        return None
    if cpus_used < FULL_MACHINE_CPU_SHARE * record.cpus and not evidence.has_busy_process:
        return None  # other programs are busy, but no process of the run is
    full_text = f"The machine is full: {cpus_used:.1f} of {format_count(record.cpus, 'CPU')} in use"
    if cpus_used < FULL_MACHINE_CPU_SHARE * record.cpus:
        full_text += f", and {record.other_cpus:.1f} by other programs"
    in_use = min(cpus_used + record.other_cpus, float(record.cpus))
    confidence = round(
        0.6 + (MAX_CONFIDENCE - 0.6) * scale_to_unit(in_use / record.cpus, FULL_MACHINE_CPU_SHARE, 1.0), 2
    )
    costliest = max(evidence.loads, key=lambda load: load.cpu_ns)
    advice = advise_on_full_machine(costliest, record)
    if not advice.fix and _take_others_most(evidence):
        text = (
            f"No config change will help while other programs use {record.other_cpus:.1f} of "
            f"{format_count(record.cpus, 'CPU')}: end them, or run this when they have finished."
        )
        return Verdict(
            limited_by="other programs", kind="machine", confidence=confidence, sentence=f"{full_text}.", advice=text
        )
    hop = max(record.hops, key=lambda each_hop: each_hop.cost_histogram.sum_ns, default=None)
    if hop is not None and hop.cost_histogram.sum_ns > max(load.cpu_ns - load.total_hop_ns for load in evidence.loads):
        sentence = f"{full_text}; the hop {format_hop(hop)} takes the most time: {format_hop_cost(hop)}."
        return make_verdict(
            format_hop(hop), "hop", confidence, sentence, advise_on_hop(hop, None, record, evidence.loads)
        )
    name = costliest.costliest_stage
    cpu_share = format_percent(costliest.cpu_ns / sum(load.cpu_ns for load in evidence.loads))
    sentence = f"{full_text}, so more workers will not help; {name} takes {cpu_share} of the CPU time."
    kind = "source" if name == record.stages[0].name else "stage"
    return make_verdict(name, kind, confidence, sentence, advice)


def _take_others_most(evidence: Evidence) -> bool:
    """Whether other programs have so many CPUs that the run would be faster without them."""
    return evidence.record.other_cpus >= _MIN_OTHER_SHARE * evidence.record.cpus


def _format_cpus(cpus: float) -> str:
    return f"{cpus:.1f}".removesuffix(".0")
