"""The evidence for a verdict: the process with the highest utilization, its neighbours' waits, the wording. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.core import format_ns, format_percent
from stagepipe.report.advice import ConfigAdvice
from stagepipe.report.model import Verdict
from stagepipe.report.record import HopRecord, RunRecord
from stagepipe.report.utilization import CONSUMER, ProcessLoad, compute_process_loads, get_consumer_row

MAX_CONFIDENCE = 0.95
"""The highest confidence: one run on one machine is no proof."""

MIN_LIMITING_UTILIZATION = 0.6
"""Below this utilization a process is not called the limit: it could do over half as much work again."""

_MIN_REPORTED_WAIT_SHARE = 0.05
"""Smaller shares of waiting are not mentioned in the evidence."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The process with the highest utilization, and the waits of its neighbours."""

    record: RunRecord
    loads: tuple[ProcessLoad, ...]
    most_used: ProcessLoad
    second_most_used: ProcessLoad | None
    most_blocked_upstream: ProcessLoad | None  # the most blocked process before it
    most_starved_downstream: ProcessLoad | None  # the most starved process after it

    @property
    def has_busy_process(self) -> bool:
        """Whether the utilization of one process is high enough to call it the limit."""
        return self.most_used.utilization >= MIN_LIMITING_UTILIZATION

    @property
    def items(self) -> int:
        """The items of the stage that had most."""
        return max(stage.items for stage in self.record.stages)


def gather_evidence(record: RunRecord) -> Evidence:
    """Return the evidence of a run with at least one stage."""
    loads = compute_process_loads(record)
    index = max(range(len(loads)), key=lambda i: (loads[i].is_evidence, loads[i].utilization))
    upstream = [load for load in loads[:index] if load.row != loads[index].row]  # not the other parts of the same row
    downstream = [load for load in loads[index + 1 :] if load.row != loads[index].row]
    return Evidence(
        record=record,
        loads=loads,
        most_used=loads[index],
        second_most_used=max(
            (load for load in (*upstream, *downstream) if load.is_evidence),
            key=lambda load: load.utilization,
            default=None,
        ),
        most_blocked_upstream=max(upstream, key=lambda load: load.blocked_share, default=None),
        most_starved_downstream=max(downstream, key=lambda load: load.starved_share, default=None),
    )


def compute_confidence(evidence: Evidence) -> float:
    """Return how far the evidence agrees: high utilization, a lead, neighbours that wait, enough items."""
    utilization = evidence.most_used.utilization
    second_utilization = evidence.second_most_used.utilization if evidence.second_most_used else 0.0
    utilization_score = scale_to_unit(utilization, 0.4, 0.9)
    lead_score = scale_to_unit(utilization - second_utilization, 0.0, 0.3)
    blocked = evidence.most_blocked_upstream.blocked_share if evidence.most_blocked_upstream else 0.0
    starved = evidence.most_starved_downstream.starved_share if evidence.most_starved_downstream else 0.0
    waiting_score = scale_to_unit(max(blocked, starved), 0.0, 0.3)
    sample_score = scale_to_unit(evidence.items, 0, 100)
    neighbour_factor = 0.5 + 0.3 * lead_score + 0.2 * waiting_score
    return round(MAX_CONFIDENCE * utilization_score * neighbour_factor * (0.6 + 0.4 * sample_score), 2)


def scale_to_unit(value: float, low: float, high: float) -> float:
    """Map `low` to `high` onto 0 to 1. Values outside are clipped."""
    return min(max((value - low) / (high - low), 0.0), 1.0)


def make_verdict(limited_by: str, kind: str, confidence: float, sentence: str, advice: ConfigAdvice) -> Verdict:
    """Return the verdict with this advice."""
    return Verdict(
        limited_by=limited_by, kind=kind, confidence=confidence, sentence=sentence, fix=advice.fix, advice=advice.text
    )


def describe_waiting_neighbours(evidence: Evidence) -> str:
    """Describe which processes wait for it: the most blocked one before it, the most starved one after it."""
    upstream = evidence.most_blocked_upstream
    downstream = evidence.most_starved_downstream
    record = evidence.record
    waits = []
    if upstream is not None and upstream.blocked_share >= _MIN_REPORTED_WAIT_SHARE:
        name = name_process(upstream, record)
        waits.append(f"{name} was blocked {format_percent(upstream.blocked_share)} of the time")
    if downstream is not None and downstream.starved_share >= _MIN_REPORTED_WAIT_SHARE:
        name = name_process(downstream, record)
        waits.append(f"{name} waited for input {format_percent(downstream.starved_share)} of the time")
    return f", while {' and '.join(waits)}" if waits else ""


def name_process(load: ProcessLoad, record: RunRecord) -> str:
    """Return what a sentence calls a process: `decode`, `the source`, `the training step`, `the sink jsonl`."""
    if load.name == CONSUMER:
        return f"the sink {get_consumer_row(record)}" if record.consumer.is_sink else f"the {record.consumer.name}"
    if load.row == get_source_row(record):
        return "the source"
    return f"the sink {load.row}".removesuffix(" sink") if load.member_stages[0].is_sink else load.name


def get_source_row(record: RunRecord) -> str:
    """Return the row of the source."""
    return record.stages[0].row


def capitalize(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def format_utilization(load: ProcessLoad) -> str:
    """Format `98 % of the time after start-up`."""
    return f"{format_percent(load.utilization)} of the time after start-up"


def format_hop(hop: HopRecord, record: RunRecord) -> str:
    """Format `decode -> augment`, with the rows of the report. A hop inside a row is the one that leads into it."""
    rows = {stage.name: stage.row for stage in record.stages}
    source, target = rows.get(hop.source, hop.source), rows.get(hop.target, hop.target)
    if source == target:
        before = [stage.row for stage in record.stages[: list(rows.values()).index(target)]]
        source = before[-1] if before else source
    return f"{source} -> {target}"


def format_hop_cost(hop: HopRecord) -> str:
    """Format `13 ms per message, 13 s in total`."""
    return f"{format_ns(hop.cost_histogram.mean_ns)} per message, {format_ns(hop.cost_histogram.sum_ns)} in total"


def format_count(number: int, noun: str) -> str:
    """Format `1 item`, `1,000 items`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
