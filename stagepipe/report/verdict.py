"""What limits a run, how sure that is, and the one config change to try. Pure: a `RunRecord` in, a `Verdict` out.

The questions, most decisive first:

1. Is there enough to judge? A few items, or a start-up that outlasts the work, are not enough.
2. Which process has the highest utilization (`utilization` defines it)? If it is the consumer, tuning ends here.
3. Is the machine full? Then more workers will not help, however busy a process seems: only less work will.
4. Is the utilization low even there? Then no process is the limit: too few items are in flight.
5. Within that process, does one hop cost more than the stages' functions? Then the hop is the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.core import format_ns, format_percent
from stagepipe.report.advice import (
    ConfigAdvice,
    advise_on_full_machine,
    advise_on_hop,
    advise_on_source,
    advise_on_stage,
    advise_on_window,
    is_writer,
)
from stagepipe.report.model import Verdict
from stagepipe.report.record import HopRecord, RunRecord
from stagepipe.report.utilization import (
    CONSUMER,
    FULL_MACHINE_CPU_SHARE,
    ProcessLoad,
    compute_cpus_used,
    compute_process_loads,
    is_machine_full,
)

_MIN_ITEMS_TO_JUDGE = 16
"""Fewer items than this (or than four per worker) only fill the queues."""

_MIN_WORK_TO_JUDGE_NS = 5_000_000_000
"""A run that works this long after its start-up is judged, however long the start-up took."""

_MAX_STARTUP_SHARE = 0.75
"""A run whose start-up takes a larger share of the wall time is not judged."""

_MIN_LIMITING_UTILIZATION = 0.6
"""Below this utilization a process is not called the limit: it could do over half as much work again."""

_MIN_WINDOW_BLOCKED_SHARE = 0.2
"""If no stage is busy but the source is blocked for this share of its time, the window is the limit."""

_MIN_REPORTED_WAIT_SHARE = 0.05
"""Smaller shares of waiting are not mentioned in the evidence."""

_MAX_CONFIDENCE = 0.95
"""The highest confidence: one run on one machine is no proof."""

_NEED_MORE_ITEMS_ADVICE = "No config change to suggest yet: run it on more items."


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """The process with the highest utilization, and the waits of its neighbours."""

    record: RunRecord
    loads: tuple[ProcessLoad, ...]
    most_used: ProcessLoad
    second_most_used: ProcessLoad | None
    most_blocked_upstream: ProcessLoad | None  # the most blocked process before it
    most_starved_downstream: ProcessLoad | None  # the most starved process after it


def is_comparable(verdict: Verdict) -> bool:
    """Whether the rate of the run says what its stages can do: it was long enough, and the consumer no limit."""
    return verdict.advice != _NEED_MORE_ITEMS_ADVICE and verdict.kind != "consumer"


def judge(record: RunRecord) -> Verdict:
    """Return the verdict on a run.

    >>> judge(record).fix  # doctest: +SKIP
    'stages.decode.workers=3'
    """
    if not record.stages:
        return Verdict(
            limited_by="",
            kind="none",
            confidence=0.0,
            sentence="Nothing to judge: no stage ran.",
            advice=_NEED_MORE_ITEMS_ADVICE,
        )
    evidence = _gather_evidence(record)
    too_short_verdict = _judge_too_short(evidence)
    if too_short_verdict is not None:
        return too_short_verdict
    has_high_utilization = evidence.most_used.utilization >= _MIN_LIMITING_UTILIZATION
    if evidence.most_used.name == CONSUMER and has_high_utilization:
        return _judge_most_used(evidence)
    if is_machine_full(record, evidence.most_used):
        return _judge_full_machine(evidence)
    return _judge_most_used(evidence) if has_high_utilization else _judge_no_bottleneck(evidence)


def _gather_evidence(record: RunRecord) -> _Evidence:
    loads = compute_process_loads(record)
    index = max(range(len(loads)), key=lambda i: loads[i].utilization)
    upstream = loads[:index]
    downstream = loads[index + 1 :]
    return _Evidence(
        record=record,
        loads=loads,
        most_used=loads[index],
        second_most_used=max((*upstream, *downstream), key=lambda load: load.utilization, default=None),
        most_blocked_upstream=max(upstream, key=lambda load: load.blocked_share, default=None),
        most_starved_downstream=max(downstream, key=lambda load: load.starved_share, default=None),
    )


def _judge_too_short(evidence: _Evidence) -> Verdict | None:
    record = evidence.record
    wall_ns = record.wall_ns
    items = max(stage.items for stage in record.stages)
    slowest_stage = max(record.stages, key=lambda stage: stage.starting_ns / max(stage.workers, 1))
    startup_ns = min(slowest_stage.starting_ns // max(slowest_stage.workers, 1), wall_ns)
    work_ns = wall_ns - max(startup_ns, min(record.first_item_ns, wall_ns))
    has_few_items = items < max(_MIN_ITEMS_TO_JUDGE, 4 * max(load.workers for load in evidence.loads))
    if not has_few_items and (work_ns >= _MIN_WORK_TO_JUDGE_NS or work_ns >= (1 - _MAX_STARTUP_SHARE) * wall_ns):
        return None
    startup_text = f"start-up took {format_ns(startup_ns)} of {format_ns(wall_ns)} (slowest: {slowest_stage.name})"
    sentence = f"Too short to judge: {_format_count(items, 'item')}; {startup_text}."
    return Verdict(limited_by="", kind="none", confidence=0.1, sentence=sentence, advice=_NEED_MORE_ITEMS_ADVICE)


def _judge_most_used(evidence: _Evidence) -> Verdict:
    """Judge a run that its most used process limits: by one of its hops, as the consumer, the source or a stage."""
    hop = _find_limiting_hop(evidence.most_used, evidence.record)
    if hop is not None:
        return _judge_hop(hop, evidence)
    name = evidence.most_used.costliest_stage
    busy_text = f"busy {_format_utilization(evidence)}{_describe_waiting_neighbours(evidence)}"
    confidence = _compute_confidence(evidence)
    if name == CONSUMER:
        consumer_name = evidence.record.consumer.name
        sentence = f"The {consumer_name} is the bottleneck: it was {busy_text}."
        text = (
            f"No config change will help: the pipeline keeps up. Stop tuning here, or make the {consumer_name} faster."
        )
        return Verdict(limited_by=CONSUMER, kind="consumer", confidence=confidence, sentence=sentence, advice=text)
    if name == evidence.record.stages[0].name:
        sentence = f"The source is the bottleneck: it was {busy_text}."
        return _make_verdict(name, "source", confidence, sentence, advise_on_source(evidence.most_used))
    workers = evidence.most_used.workers
    workers_text = f"its {workers} workers were" if workers > 1 else "its worker was"
    advice = advise_on_stage(evidence.most_used, evidence.second_most_used, evidence.record)
    subject = f"The sink {name}" if is_writer(name, evidence.record) else name
    return _make_verdict(name, "stage", confidence, f"{subject} is the bottleneck: {workers_text} {busy_text}.", advice)


def _find_limiting_hop(load: ProcessLoad, record: RunRecord) -> HopRecord | None:
    """Return the hop that costs this process more than its functions.

    If the whole hop costs more than the functions at both its ends, half of that is enough.
    """
    side = max(load.hop_sides, key=lambda hop_side: hop_side.spent_ns, default=None)
    if side is None:
        return None
    ends = {side.hop.source, side.hop.target}
    ends_ns = sum(stage.run_histogram.sum_ns for stage in record.stages if stage.name in ends)
    exceeds_ends = side.hop.cost_histogram.sum_ns > ends_ns and load.name != CONSUMER
    return side.hop if side.spent_ns > (load.run_ns / 2 if exceeds_ends else load.run_ns) else None


def _judge_hop(hop: HopRecord, evidence: _Evidence) -> Verdict:
    sentence = (
        f"The hop {_format_hop(hop)} is the bottleneck: {_format_hop_cost(hop)}, more than the functions at its ends; "
        f"{evidence.most_used.name} was busy {_format_utilization(evidence)}."
    )
    advice = advise_on_hop(hop, evidence.most_used, evidence.record, evidence.loads)
    return _make_verdict(_format_hop(hop), "hop", _compute_confidence(evidence), sentence, advice)


def _judge_full_machine(evidence: _Evidence) -> Verdict:
    """Judge a run in which all CPUs are in use: the stage or hop with the most CPU time is the limit."""
    record = evidence.record
    cpus_used = compute_cpus_used(record)
    full_text = f"The machine is full: {cpus_used:.1f} of {_format_count(record.cpus, 'CPU')} in use"
    if cpus_used < FULL_MACHINE_CPU_SHARE * record.cpus:
        full_text += f", and {record.other_cpus:.1f} by other programs"
    in_use = min(cpus_used + record.other_cpus, float(record.cpus))
    confidence = round(
        0.6 + (_MAX_CONFIDENCE - 0.6) * _scale_to_unit(in_use / record.cpus, FULL_MACHINE_CPU_SHARE, 1.0), 2
    )
    hop = max(record.hops, key=lambda each_hop: each_hop.cost_histogram.sum_ns, default=None)
    if hop is not None and hop.cost_histogram.sum_ns > max(load.cpu_ns - load.total_hop_ns for load in evidence.loads):
        sentence = f"{full_text}; the hop {_format_hop(hop)} takes the most time: {_format_hop_cost(hop)}."
        return _make_verdict(
            _format_hop(hop), "hop", confidence, sentence, advise_on_hop(hop, None, record, evidence.loads)
        )
    costliest_process = max(evidence.loads, key=lambda load: load.cpu_ns)
    name = costliest_process.costliest_stage
    cpu_share = format_percent(costliest_process.cpu_ns / sum(load.cpu_ns for load in evidence.loads))
    sentence = f"{full_text}, so more workers will not help; {name} takes {cpu_share} of the CPU time."
    kind = "source" if name == record.stages[0].name else "stage"
    return _make_verdict(name, kind, confidence, sentence, advise_on_full_machine(costliest_process, record))


def _judge_no_bottleneck(evidence: _Evidence) -> Verdict:
    source = evidence.loads[0]
    name = evidence.most_used.name
    kind_text = "process" if name == CONSUMER else "stage"
    busiest_text = f"the busiest {kind_text}, {_with_article(name)}, was busy {_format_utilization(evidence)}"
    if source.blocked_share < _MIN_WINDOW_BLOCKED_SHARE or evidence.most_used is source:
        advice = ConfigAdvice("", "No config change to suggest: measure a longer run on an otherwise idle machine.")
        return _make_verdict("", "none", 0.2, f"No clear bottleneck: {busiest_text}.", advice)
    confidence = round(0.3 + 0.4 * _scale_to_unit(source.blocked_share, _MIN_WINDOW_BLOCKED_SHARE, 0.8), 2)
    sentence = (
        f"Too few items in flight: {busiest_text}, but the source was blocked {format_percent(source.blocked_share)}."
    )
    return _make_verdict("window", "none", confidence, sentence, advise_on_window(evidence.record))


def _compute_confidence(evidence: _Evidence) -> float:
    """Return how far the evidence agrees: high utilization, a lead, neighbours that wait, enough items."""
    utilization = evidence.most_used.utilization
    second_utilization = evidence.second_most_used.utilization if evidence.second_most_used else 0.0
    utilization_score = _scale_to_unit(utilization, 0.4, 0.9)
    lead_score = _scale_to_unit(utilization - second_utilization, 0.0, 0.3)
    blocked = evidence.most_blocked_upstream.blocked_share if evidence.most_blocked_upstream else 0.0
    starved = evidence.most_starved_downstream.starved_share if evidence.most_starved_downstream else 0.0
    waiting_score = _scale_to_unit(max(blocked, starved), 0.0, 0.3)
    sample_score = _scale_to_unit(max(stage.items for stage in evidence.record.stages), 0, 100)
    neighbour_factor = 0.5 + 0.3 * lead_score + 0.2 * waiting_score
    return round(_MAX_CONFIDENCE * utilization_score * neighbour_factor * (0.6 + 0.4 * sample_score), 2)


def _scale_to_unit(value: float, low: float, high: float) -> float:
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _make_verdict(limited_by: str, kind: str, confidence: float, sentence: str, advice: ConfigAdvice) -> Verdict:
    return Verdict(
        limited_by=limited_by, kind=kind, confidence=confidence, sentence=sentence, fix=advice.fix, advice=advice.text
    )


def _describe_waiting_neighbours(evidence: _Evidence) -> str:
    """Describe which processes wait for it: the most blocked one before it, the most starved one after it."""
    upstream = evidence.most_blocked_upstream
    downstream = evidence.most_starved_downstream
    waits = []
    if upstream is not None and upstream.blocked_share >= _MIN_REPORTED_WAIT_SHARE:
        waits.append(f"{_with_article(upstream.name)} was blocked {format_percent(upstream.blocked_share)} of the time")
    if downstream is not None and downstream.starved_share >= _MIN_REPORTED_WAIT_SHARE:
        waits.append(
            f"{_with_article(downstream.name)} waited for input {format_percent(downstream.starved_share)} of the time"
        )
    return f", while {' and '.join(waits)}" if waits else ""


def _with_article(name: str) -> str:
    return f"the {name}" if name in {"source", CONSUMER} else name


def _format_utilization(evidence: _Evidence) -> str:
    return f"{format_percent(evidence.most_used.utilization)} of the time after start-up"


def _format_hop(hop: HopRecord) -> str:
    return f"{hop.source} -> {hop.target}"


def _format_hop_cost(hop: HopRecord) -> str:
    return f"{format_ns(hop.cost_histogram.mean_ns)} per message, {format_ns(hop.cost_histogram.sum_ns)} in total"


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
