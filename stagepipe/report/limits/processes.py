"""One process is busy: the consumer, a sink, the source, a stage or one of its hops; or two of them in turn. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from stagepipe.core import format_ns, format_percent, format_rate, join_names
from stagepipe.report.advice import (
    NO_CHANGE,
    ConfigAdvice,
    advise_on_hop,
    advise_on_item_sink,
    advise_on_repeated_attempts,
    advise_on_source,
    advise_on_stage,
    advise_on_stages,
    can_have_workers,
)
from stagepipe.report.limits.evidence import (
    MAX_CONFIDENCE,
    MIN_LIMITING_UTILIZATION,
    Evidence,
    capitalize,
    compute_confidence,
    describe_waiting_neighbours,
    format_count,
    format_hop,
    format_hop_cost,
    format_utilization,
    get_source_row,
    make_verdict,
    name_process,
    scale_to_unit,
)
from stagepipe.report.model import Verdict
from stagepipe.report.record import HopRecord, RunRecord, StageRecord
from stagepipe.report.series import Series
from stagepipe.report.utilization import (
    CONSUMER,
    FULL_MACHINE_CPU_SHARE,
    ProcessLoad,
    compute_cpus_used,
    compute_run_active_ns,
)

_MIN_EQUAL_RATIO = 0.9
"""A process that is busy for this share of the time of the busiest is a bottleneck too."""

_MIN_REPEATED_SHARE = 0.2
"""Share of a stage's work in attempts that failed and were repeated, from which these are to blame."""

_MIN_SLOW_CALLS_SHARE = 0.5
"""Share of a process's work in calls that happened once in a worker, from which they are the limit."""

_MIN_OWN_WORK_SHARE = 0.5
"""A process that works at least this share of its time in its functions is not too small."""

_MIN_HANDING_RATIO = 2.0
"""Ratio of what handing over an item costs to the work on it, from which the stages are too small for processes."""

_INLINE_ITEM_NS = 10_000
"""What an item of two stages costs in one process, without its work: `benchmarks.small_items` measures it."""

_MIN_INLINE_GAIN = 0.2
"""Gain from which one process is suggested: it is an estimate from a run in several."""

SMALL_STAGES = "hops"
"""`Verdict.limited_by` of stages that are too small for processes: all of their hops."""

_MAX_SMALL_MESSAGE_BYTES = 65_536
"""Larger messages cost by their size: the hop is the subject, not the number of items."""

_MIN_INTERVALS = 6
"""Intervals of the series from which its beginning is compared with its end: two for each."""

_MIN_CHANGE = 0.3
"""So much less busy is a bottleneck in the part of the run in which another one is."""


def judge_most_used(evidence: Evidence) -> Verdict | None:
    """Judge a run that its most used process limits; None if that is not busy enough to be the limit."""
    if not evidence.has_busy_process:
        return None
    most_used, record = evidence.most_used, evidence.record
    hop = _find_limiting_hop(most_used, record)
    if hop is not None:
        return _judge_hop(hop, evidence)
    name = most_used.costliest_stage
    busy_text = f"busy {format_utilization(most_used)}{describe_waiting_neighbours(evidence)}"
    confidence = compute_confidence(evidence)
    if name == CONSUMER:
        return _judge_consumer(evidence, busy_text, confidence)
    if most_used.row == get_source_row(record) and name == most_used.name:
        sentence = f"The source is the bottleneck: it was {busy_text}."
        advice = (
            advise_on_source(most_used)
            if most_used.member_stages[0] is record.stages[0]
            else advise_on_stage(most_used, evidence.second_most_used, record)
        )
        return make_verdict(most_used.row, "source", confidence, sentence, advice)
    return _judge_stage(evidence, busy_text, confidence)


def _judge_stage(evidence: Evidence, busy_text: str, confidence: float) -> Verdict:
    """Judge a run that a stage limits, or the writer of a sink."""
    most_used, record, name = evidence.most_used, evidence.record, evidence.most_used.costliest_stage
    equals = _find_equals(evidence)
    if equals:
        return _judge_equals([most_used, *equals], evidence, confidence)
    workers_text = f"its {most_used.workers} workers were" if most_used.workers > 1 else "its worker was"
    process_name = name_process(most_used, record)
    kind = "sink" if process_name.startswith("the sink") else "stage"
    subject = capitalize(process_name) if kind == "sink" else name
    advice = advise_on_stage(most_used, evidence.second_most_used, record)
    limited_by = most_used.row if kind == "sink" else name
    return make_verdict(
        limited_by, kind, confidence, f"{subject} is the bottleneck: {workers_text} {busy_text}.", advice
    )


def judge_retries(evidence: Evidence) -> Verdict | None:
    """Judge a run whose busiest process mostly repeats attempts that failed."""
    if not evidence.has_busy_process or not evidence.most_used.member_stages:
        return None
    stage = _find_repeating_stage(evidence.most_used)
    if stage is None:
        return None
    return _judge_repeated_attempts(stage, evidence, compute_confidence(evidence))


def judge_slow_calls(evidence: Evidence) -> Verdict | None:
    """Judge a run whose busiest process spent most of its work on one call in each worker, such as to load a model."""
    load = evidence.most_used
    if not evidence.has_busy_process or load.slow_calls_ns < _MIN_SLOW_CALLS_SHARE * max(load.work_ns, 1):
        return None
    stage = load.costliest_member
    if stage.is_sink:
        return None  # its first part loads the libraries that it writes with
    calls = stage.run_histogram
    subject = f"One call of {stage.row}" if stage.workers == 1 else f"One call in each worker of {stage.row}"
    sentence = (
        f"{subject} took {format_ns(calls.max_ns)}, most of its work: half of its calls take at most "
        f"{format_ns(calls.percentile_ns(50))}."
    )
    advice = (
        f"{NO_CHANGE}: if a model loads there, load it in the constructor of a class, which counts as start-up; else "
        "see what is special about that item (`-v` lists the slowest)."
    )
    return make_verdict(stage.row, "stage", compute_confidence(evidence), sentence, ConfigAdvice("", advice))


def judge_small_stages(evidence: Evidence) -> Verdict | None:
    """Judge a run whose stages work less on an item than it costs to hand it over, while its CPUs are busy."""
    record, most_used = evidence.record, evidence.most_used
    processes = [load for load in evidence.loads if load.member_stages]
    items = max(record.items_in, 1)
    work_ns = sum(load.run_ns * load.scheduled_share for load in processes) / items
    total_ns = sum(load.work_ns * load.scheduled_share for load in processes) / items
    handing_ns = total_ns - work_ns
    cpus_in_use = compute_cpus_used(record) + record.other_cpus
    is_idle = not evidence.has_busy_process and cpus_in_use < FULL_MACHINE_CPU_SHARE * record.cpus
    sinks = {stage.row for stage in record.stages if stage.is_sink}
    hops = [
        hop for hop in record.hops if hop.source not in {*sinks, *record.order_point_names}
    ]  # those of a sink carry parts
    is_own_cost = most_used.name == CONSUMER or most_used.run_ns >= _MIN_OWN_WORK_SHARE * most_used.work_ns
    if (
        len(processes) < 2  # noqa: PLR2004 - a source and a stage
        or is_idle
        or is_own_cost
        or handing_ns < _MIN_HANDING_RATIO * work_ns
        or any(hop.bytes.total > _MAX_SMALL_MESSAGE_BYTES * max(hop.messages.total, 1) for hop in hops)
        or any(hop.transport.mode in {"pipe", "shared_memory", "object_store"} for hop in hops)
    ):
        return None
    others = {*sinks, *record.order_point_names, get_source_row(record)}
    names = [load.row for load in processes[1:] if load.row not in others]
    subject = f"{join_names(names)} {'is' if len(names) == 1 else 'are'}" if names else "The items are"
    sentence = (
        f"{subject} too small for processes: an item takes {format_ns(round(work_ns))} of CPU in all stages, and "
        f"{format_ns(round(handing_ns))} to be handed over between {len(processes)} processes."
    )
    confidence = round(MAX_CONFIDENCE * scale_to_unit(handing_ns / max(total_ns, 1), 0.4, 0.9), 2)
    text = "Let an item be a batch of many, so that a hop carries more work."
    inline_ns = work_ns + record.consumer.busy_ns / items + _INLINE_ITEM_NS
    if (1 + _MIN_INLINE_GAIN) * inline_ns < compute_run_active_ns(record) / items:
        text = (
            f"Run it in one process, with `--inline` (in Python `inline=True`): at most {format_rate(1e9 / inline_ns)} "
            "items/s by the same times. Or let an item be a batch of many."
        )
    advice = ConfigAdvice("", text)
    return make_verdict(SMALL_STAGES, "hop", confidence, sentence, advice)


def judge_wasteful_hop(evidence: Evidence) -> Verdict | None:
    """Judge a run that a hop limits which can be made cheaper: that helps on a full machine too."""
    hop = _find_limiting_hop(evidence.most_used, evidence.record) if evidence.has_busy_process else None
    hop = hop or _find_alternating_hop(evidence.record)
    if hop is None:
        return None
    verdict = _judge_hop(hop, evidence)
    return verdict if verdict.fix and ".workers=" not in verdict.fix.partition(" ")[0] else None


def judge_change(evidence: Evidence) -> Verdict | None:
    """Judge a run in which one process is busy at the beginning, and another one at the end."""
    early, late = _split_series(evidence)
    if not early:
        return None
    first, last = max(early, key=early.__getitem__), max(late, key=late.__getitem__)
    is_change = (
        first != last
        and min(early[first], late[last]) >= MIN_LIMITING_UTILIZATION
        and late[first] <= late[last] - _MIN_CHANGE
        and early[last] <= early[first] - _MIN_CHANGE
    )
    if not is_change:
        return None
    loads = {load.name: load for load in evidence.loads}
    sentence = (
        f"The bottleneck changes during the run: in its first third {name_process(loads[first], evidence.record)} was "
        f"busy {format_percent(early[first])} of the time, in its last {name_process(loads[last], evidence.record)}, "
        f"{format_percent(late[last])}."
    )
    changing = [loads[name] for name in (first, last) if can_have_workers(loads[name], evidence.record)]
    advice = advise_on_stages(changing, 0.0, evidence.record) if changing else advise_on_source(loads[first])
    return make_verdict(loads[last].costliest_row, "stage", 0.7, sentence, advice)


def _judge_consumer(evidence: Evidence, busy_text: str, confidence: float) -> Verdict:
    """Judge a run that waits for what takes its items: a loop, or a sink without workers."""
    consumer = evidence.record.consumer
    subject = name_process(evidence.most_used, evidence.record)
    sentence = f"{capitalize(subject)} is the bottleneck: it was {busy_text}."
    if consumer.is_sink:
        return make_verdict(consumer.name, "sink", confidence, sentence, advise_on_item_sink(evidence.record))
    text = f"No config change will help: the pipeline keeps up. Stop tuning here, or make {subject} faster."
    return make_verdict(CONSUMER, "consumer", confidence, sentence, ConfigAdvice("", text))


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


def _find_alternating_hop(record: RunRecord) -> HopRecord | None:
    """Return a hop of a forced mode whose messages are under way for most of the time.

    Both sides may work by turns then, as with large messages by pipe, and neither is busy for most of the time.
    """
    active_ns = record.wall_ns - record.first_item_ns - record.consumer.outside_loop_ns
    functions_ns = max(stage.run_histogram.sum_ns / max(stage.workers, 1) for stage in record.stages)
    hop = max(record.hops, key=lambda each: each.cost_histogram.sum_ns, default=None)
    if hop is None or hop.transport.mode not in ("pipe", "shared_memory"):
        return None
    cost_ns = hop.cost_histogram.sum_ns
    return hop if cost_ns > max(MIN_LIMITING_UTILIZATION * active_ns, functions_ns) else None


def _judge_hop(hop: HopRecord, evidence: Evidence) -> Verdict:
    name = format_hop(hop, evidence.record)
    sentence = (
        f"The hop {name} is the bottleneck: {format_hop_cost(hop)}, more than the functions at its ends; "
        f"{name_process(evidence.most_used, evidence.record)} was busy {format_utilization(evidence.most_used)}."
    )
    advice = advise_on_hop(hop, evidence.most_used, evidence.record, evidence.loads)
    return make_verdict(name, "hop", compute_confidence(evidence), sentence, advice)


def _find_repeating_stage(load: ProcessLoad) -> StageRecord | None:
    """The stage of a process that lost much of its work to attempts that were repeated."""
    stage = max(load.member_stages, key=lambda member: member.repeated_ns)
    return stage if stage.repeated_ns >= _MIN_REPEATED_SHARE * load.work_ns else None


def _judge_repeated_attempts(stage: StageRecord, evidence: Evidence, confidence: float) -> Verdict:
    share = min(stage.repeated_ns / evidence.most_used.work_ns, 1.0)
    sentence = (
        f"Retries of {stage.name} are the bottleneck: {format_percent(share)} of its work was attempts that failed, "
        f"{stage.retries:,} retries for {format_count(stage.items, 'item')}; "
        f"it was busy {format_utilization(evidence.most_used)}."
    )
    return make_verdict(stage.name, "stage", confidence, sentence, advise_on_repeated_attempts(stage.name))


def _find_equals(evidence: Evidence) -> list[ProcessLoad]:
    """The processes that are as busy as the busiest, if all of them can have more workers."""
    most_used, record = evidence.most_used, evidence.record
    equals = [
        load
        for load in evidence.loads
        if load is not most_used and load.utilization >= _MIN_EQUAL_RATIO * most_used.utilization
    ]
    return equals if all(can_have_workers(load, record) for load in (most_used, *equals)) else []


def _judge_equals(loads: Sequence[ProcessLoad], evidence: Evidence, confidence: float) -> Verdict:
    """Judge a run with several processes that are equally busy: more workers of one alone would change nothing."""
    in_order = [load for load in evidence.loads if load in loads]
    names = " and ".join(load.row for load in in_order)
    shares = " and ".join(format_percent(load.utilization) for load in in_order)
    sentence = f"{names} are the bottleneck together: they were busy {shares} of the time after start-up."
    others = [load.utilization for load in evidence.loads if load not in loads]
    advice = advise_on_stages(in_order, max(others, default=0.0), evidence.record)
    return make_verdict(evidence.most_used.costliest_row, "stage", confidence, sentence, advice)


def _split_series(evidence: Evidence) -> tuple[dict[str, float], dict[str, float]]:
    """The mean busy share of each process in the first and the last third of the time from the first item on."""
    series, record = evidence.record.series, evidence.record
    kept = _list_steady_intervals(series, record)
    if len(kept) < _MIN_INTERVALS:
        return {}, {}
    third = len(kept) // 3
    known = {load.name for load in evidence.loads}
    early, late = (
        {stage.name: fmean(stage.busy[i] for i in part) for stage in series.stages if stage.name in known}
        for part in (kept[:third], kept[-third:])
    )
    return early, late


def _list_steady_intervals(series: Series, record: RunRecord) -> list[int]:
    """The intervals between the first item and the end of the work."""
    ends_ns = record.delivery_points[-1][0] if record.delivery_points else record.wall_ns
    return [
        index
        for index, time_ns in enumerate(series.times_ns)
        if record.first_item_ns < time_ns <= ends_ns and all(len(stage.busy) > index for stage in series.stages)
    ]
