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
    get_source_row,
    make_verdict,
    name_process,
    scale_to_unit,
)
from stagepipe.report.model import Verdict
from stagepipe.report.utilization import (
    FULL_MACHINE_CPU_SHARE,
    MIN_OTHER_CPU_SHARE,
    compute_cpus_used,
    is_slowed_by_others,
    wants_cpu,
)

_MIN_THROTTLED_SHARE = 0.2
"""Share of the quota's periods in which it was used up, from which it is the limit."""

_MIN_COSTLIEST_SHARE = 1 / 3
"""Share of the run's CPU time from which the stage with the most of it is named as the limit of a full machine."""

_MIN_OTHER_TO_OWN_RATIO = 0.5
"""CPUs of other programs, relative to those of the run, from which these programs are the limit of a full machine."""


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
    costliest = max(evidence.loads, key=lambda load: load.cpu_ns).costliest_row
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
    is_full_alone = cpus_used >= FULL_MACHINE_CPU_SHARE * record.cpus
    if not is_full_alone and not (evidence.has_busy_process and is_slowed_by_others(record, evidence.most_used)):
        return None
    costliest = max((load for load in evidence.loads if load.is_evidence), key=lambda load: load.started_cpu_ns)
    advice = advise_on_full_machine(costliest, record)
    if not advice.fix and record.other_cpus >= max(
        MIN_OTHER_CPU_SHARE * record.cpus, _MIN_OTHER_TO_OWN_RATIO * cpus_used
    ):
        return judge_other_programs(evidence)
    full_text = f"The machine is full: {cpus_used:.1f} of {format_count(record.cpus, 'CPU')} in use"
    if not is_full_alone:
        full_text += f", and {record.other_cpus:.1f} by other programs"
    confidence = _compute_confidence(evidence)
    hop = max(record.hops, key=lambda each_hop: each_hop.cost_histogram.sum_ns, default=None)
    if hop is not None and hop.cost_histogram.sum_ns > max(load.cpu_ns - load.total_hop_ns for load in evidence.loads):
        sentence = f"{full_text}; the hop {format_hop(hop, record)} takes the most time: {format_hop_cost(hop)}."
        return make_verdict(
            format_hop(hop, record), "hop", confidence, sentence, advise_on_hop(hop, None, record, evidence.loads)
        )
    name, kind = costliest.costliest_row, "stage"
    cpu_share = costliest.started_cpu_ns / max(sum(load.started_cpu_ns for load in evidence.loads), 1)
    full_text += ", so more workers will not help"
    if cpu_share < _MIN_COSTLIEST_SHARE and not advice.fix:
        sentence = f"{full_text}; no stage takes more than {format_percent(cpu_share)} of the CPU time."
        return make_verdict("cpus", "machine", confidence, sentence, advice)
    sentence = f"{full_text}; {name} takes {format_percent(cpu_share)} of the CPU time."
    if costliest.row == get_source_row(record) and name == costliest.name:
        name, kind = costliest.row, "source"
    elif name_process(costliest, record).startswith("the sink"):
        name, kind = costliest.row, "sink"
    return make_verdict(name, kind, confidence, sentence, advice)


def judge_other_programs(evidence: Evidence) -> Verdict:
    """Return the verdict on a run whose processes wait for CPUs that other programs have."""
    record, most_used = evidence.record, evidence.most_used
    cpus_text = format_count(record.cpus, "CPU")
    sentence = (
        f"Other programs take the CPUs: {record.other_cpus:.1f} of {cpus_text}; the run had "
        f"{compute_cpus_used(record):.1f}"
    )
    if most_used.cpu_wait_ns:
        name = name_process(most_used, record)
        sentence += f", and {name} waited for a CPU {format_percent(most_used.cpu_wait_share)} of its time"
    text = "No config change will help: end the other programs, or run this when they have finished."
    return Verdict(
        limited_by="other programs",
        kind="machine",
        confidence=_compute_confidence(evidence),
        sentence=f"{sentence}.",
        advice=text,
    )


def _compute_confidence(evidence: Evidence) -> float:
    """Return how sure it is that the CPUs are the limit: all are in use, or the busiest process waits for one."""
    record = evidence.record
    in_use = min(compute_cpus_used(record) + record.other_cpus, float(record.cpus)) / record.cpus
    score = max(scale_to_unit(in_use, FULL_MACHINE_CPU_SHARE, 1.0), evidence.most_used.cpu_wait_share)
    return round(0.6 + (MAX_CONFIDENCE - 0.6) * score, 2)


def _format_cpus(cpus: float) -> str:
    return f"{cpus:.1f}".removesuffix(".0")
