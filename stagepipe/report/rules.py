"""The rules of the verdict: each rule looks for one kind of limit in the evidence of a run.

`RULES`, at the end of this file, lists them in the order in which they are asked, the most decisive first:

1. Is there enough to judge? A few items only fill the queues. Did all stages run in one process? Then no later rule
   applies.
2. Did no item move for much of the time: restarts, one part written at the end, blocks on disk, another scheduler? Or
   were the items so quick that the first ones took most of the time?
3. Did the CPU quota stop the run? Is the consumer the busiest process? Then tuning ends here.
4. Is one worker far slower than the others of its stage, or does a stage mostly repeat failed attempts?
5. Are the stages too small for processes: do their hops cost more than their work?
6. Does a forced mode make a hop the limit?
7. Is the machine full? Then only less work helps, not more workers, even if one process seems busy.
8. Does one process limit the beginning of the run and another one the end?
9. Which process has the highest utilization (see `utilization`), and is it high enough?
10. If none: what holds items back between the processes?

To add a rule, write a function here, add it to `RULES`, and add its sentence to
`tests/unit/report/test_golden_sentences.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, NamedTuple

from stagepipe.core import format_bytes, format_ns, format_percent, format_rate, join_names
from stagepipe.report.advice import (
    NO_CHANGE,
    ConfigAdvice,
    advise_on_full_machine,
    advise_on_hop,
    advise_on_item_sink,
    advise_on_memory,
    advise_on_order,
    advise_on_repeated_attempts,
    advise_on_source,
    advise_on_spilling,
    advise_on_stage,
    advise_on_stages,
    advise_on_window,
    can_have_workers,
    count_workers,
)
from stagepipe.report.model import Verdict
from stagepipe.report.record import HopRecord, MemoryPressure, RunRecord, Series, StageRecord, WhatIf
from stagepipe.report.utilization import (
    CONSUMER,
    FULL_MACHINE_CPU_SHARE,
    MAX_CONFIDENCE,
    MIN_LIMITING_UTILIZATION,
    MIN_OTHER_CPU_SHARE,
    Evidence,
    ProcessLoad,
    capitalize,
    compute_confidence,
    compute_cpus_used,
    compute_drain_ns,
    compute_lost_ns,
    compute_run_active_ns,
    compute_sample_factor,
    compute_startup_ns,
    count_starts,
    describe_growth,
    describe_waiting_neighbours,
    find_slowest_start,
    find_writers,
    format_count,
    format_hop,
    format_hop_cost,
    format_utilization,
    get_source_row,
    is_slowed_by_others,
    mean_starting_ns,
    name_process,
    scale_to_unit,
    wants_cpu,
)


def make_verdict(limited_by: str, kind: str, confidence: float, sentence: str, advice: ConfigAdvice | str) -> Verdict:
    """Return the verdict with this advice. An advice of type `str` has no change to try."""
    fix, text = ("", advice) if isinstance(advice, str) else (advice.fix, advice.text)
    return Verdict(limited_by=limited_by, kind=kind, confidence=confidence, sentence=sentence, fix=fix, advice=text)


# ------------------------------------------------------------------ time in which nothing flows

_MIN_ITEMS_TO_JUDGE = 16
"""Fewer items than this (or than four per worker) only fill the queues, unless they take long."""

_MIN_LONG_ITEMS_TO_JUDGE = 4
"""Minimum number of items (and two per worker) to judge a run that works for `_MIN_WORK_TO_JUDGE_NS`."""

_MIN_WORK_TO_JUDGE_NS = 5_000_000_000
"""A run that works this long after its start-up is judged, even if the start-up took long."""

_MIN_MEASURED_NS = 50_000_000
"""If calls and hops take less than this in total, without the first ones, they do not predict a longer run: the first
ones import modules and fill caches, and another program may have used the CPU during the others."""

_MANY_ITEMS = 1000
"""With this many items, the measured times are reliable even if each item is quick."""

_MIN_STARTUP_SHARE = 0.5
"""Share of the wall time from which the start-up is the limit."""

_MAX_AMORTIZED_STARTUP_SHARE = 0.1
"""A run is long enough if its start-up takes at most this share of it."""

_MIN_LOST_SHARE = 0.2
"""Share of the time after start-up from which restarts are the limit."""


def judge_too_few_items(evidence: Evidence) -> Verdict | None:
    """Judge a run whose items only fill the queues."""
    workers = max(load.workers for load in evidence.loads)
    items = evidence.items
    needed = max(_MIN_ITEMS_TO_JUDGE, 4 * workers)
    has_long_items = items >= max(_MIN_LONG_ITEMS_TO_JUDGE, 2 * workers)
    if items >= needed or (has_long_items and _compute_work_ns(evidence.record) >= _MIN_WORK_TO_JUDGE_NS):
        return None
    sentence = f"Too few items to judge: {items:,}; start-up took {_describe_startup(evidence.record)}."
    return make_verdict(
        "", "none", 0.1, sentence, f"No config change to suggest yet: run it on {needed} items or more."
    )


def judge_short_run(evidence: Evidence) -> Verdict | None:
    """Judge a run of few and quick items, whose total work takes little time without the first calls."""
    record, items = evidence.record, evidence.items
    histograms = [
        *((stage.run_histogram, count_starts(stage, record) * stage.concurrency) for stage in record.stages),
        *((hop.cost_histogram, 1) for hop in record.hops),
    ]
    later_ns = sum(max(each.sum_ns - first_calls * each.max_ns, 0) for each, first_calls in histograms)
    measured_ns = later_ns + record.consumer.busy_ns
    if items >= _MANY_ITEMS or measured_ns >= _MIN_MEASURED_NS:
        return None
    needed = min(_round_up(math.ceil(items * _MIN_MEASURED_NS / max(measured_ns, 1))), _MANY_ITEMS)
    sentence = (
        f"Too short to judge: without the first calls, all work on {items:,} items took {format_ns(measured_ns)}; "
        f"start-up took {_describe_startup(record)}."
    )
    return make_verdict(
        "", "none", 0.1, sentence, f"No config change to suggest yet: run it on about {needed:,} items or more."
    )


def judge_drain(evidence: Evidence) -> Verdict | None:
    """Judge a run that mostly waited for its sink, which wrote one or two parts after the stages had finished."""
    record = evidence.record
    drain_ns, active_ns = compute_drain_ns(record), record.wall_ns - compute_startup_ns(record)
    if not drain_ns or drain_ns < _MIN_STARTUP_SHARE * active_ns:
        return None
    writer = max(find_writers(record), key=lambda stage: stage.busy_ns)
    parts = "its only part" if writer.items <= 1 else f"its {writer.items} parts"
    sentence = (
        f"The sink {writer.row} took most of this short run, {format_ns(drain_ns)} of {format_ns(record.wall_ns)}: it "
        f"wrote {parts} after the stages had finished."
    )
    advice = (
        "No config change to suggest yet: with more items, or a smaller `part_items`, the sink writes while the stages "
        "work. Part of the time went into importing its libraries."
    )
    return make_verdict(writer.row, "sink", 0.5, sentence, advice)


def judge_startup(evidence: Evidence, later: Verdict) -> Verdict | None:
    """Judge a run whose start-up took most of the time. `later` is the verdict on the time after start-up."""
    record = evidence.record
    wall_ns, startup_ns = record.wall_ns, compute_startup_ns(record)
    if startup_ns < _MIN_STARTUP_SHARE * wall_ns:
        return None
    slowest = find_slowest_start(record)
    is_judged = _compute_work_ns(record) >= _MIN_WORK_TO_JUDGE_NS and later.kind != "none"
    work_ns = max(_compute_work_ns(record), 1)
    items = math.ceil(evidence.items * startup_ns / work_ns * (1 / _MAX_AMORTIZED_STARTUP_SHARE - 1))
    advice = (
        f"Run it on more items, or keep the pipeline open for all epochs: with about {_round_up(items):,} items, "
        f"start-up takes a tenth of the time. If imports are slow, list the modules in `preload`; if each worker loads "
        "a model, use fewer workers."
    )
    sentence = f"Start-up dominates: it took {_describe_startup(record)}."
    if is_judged:
        sentence += f" After start-up: {later.sentence}"
        advice += f" After start-up: {later.advice}"
    confidence = round(MAX_CONFIDENCE * startup_ns / wall_ns, 2)
    return make_verdict(
        slowest.row, "startup", confidence, sentence, ConfigAdvice(later.fix if is_judged else "", advice)
    )


def judge_restarts(evidence: Evidence) -> Verdict | None:
    """Judge a run that lost much of its time to restarts: from each death or stall to the next delivered item."""
    record = evidence.record
    lost_ns = compute_lost_ns(record)
    active_ns = max(compute_run_active_ns(record), 1)
    share = min(lost_ns / active_ns, 1.0)
    if share < _MIN_LOST_SHARE:
        return None
    lost_by_stage: Counter[str] = Counter()
    for restart in record.restarts:
        lost_by_stage[restart.stage] += restart.lost_ns
    stage = lost_by_stage.most_common(1)[0][0]
    own = [restart for restart in record.restarts if restart.stage == stage]
    times = "once" if len(own) == 1 else f"{len(own)} times"
    what = f"{stage} lost a worker {times}" if stage else f"the pipeline stalled {times}"
    sentence = (
        f"Restarts are the limit: {what} ({own[0].cause}), which took {format_ns(lost_ns)}, "
        f"{format_percent(share)} of the time after start-up."
    )
    repeated = "in flight"
    if find_writers(record):
        repeated = "since the sink's last part; a smaller `part_items` makes that cheaper"
    advice = (
        f"Find out why {stage or 'the pipeline'} {'dies' if stage else 'stalls'}; the report lists the restarts. "
        f"Each restart took {format_ns(lost_ns // len(record.restarts))} to build the stage again and to repeat the "
        f"items {repeated}."
    )
    confidence = round(MAX_CONFIDENCE * (0.5 + share / 2), 2)
    return make_verdict(stage, "restarts", confidence, sentence, advice)


def _compute_work_ns(record: RunRecord) -> int:
    return record.wall_ns - compute_startup_ns(record)


def _describe_startup(record: RunRecord) -> str:
    """Return text such as `3.0 s of 4.0 s (slowest: load)`."""
    startup_text = f"{format_ns(compute_startup_ns(record))} of {format_ns(record.wall_ns)}"
    if 2 * mean_starting_ns(find_slowest_start(record), record) < compute_startup_ns(record):
        return f"{startup_text} (mostly to start Python)"
    return f"{startup_text} (slowest: {find_slowest_start(record).row})"


def _round_up(number: int) -> int:
    """Round up to two significant digits, because an estimate is no more precise.

    >>> _round_up(1234)
    1300
    """
    unit = int(10 ** max(len(str(number)) - 2, 0))
    return -(-number // unit) * unit


# ------------------------------------------------------------------ blocks that an object store spills to disk

_MIN_DISK_SHARE = 0.2
"""Share of the time after start-up from which the disk is the limit; the same as for restarts."""


def judge_spilling(evidence: Evidence) -> Verdict | None:
    """Judge a run in which a node spent much of the time spilling and restoring blocks."""
    record = evidence.record
    node = max(record.store_nodes, key=lambda node: node.disk_ns, default=None)
    active_ns = max(_compute_work_ns(record), 1)
    if node is None or node.disk_ns < _MIN_DISK_SHARE * active_ns:
        return None
    share = min(node.disk_ns / active_ns, 1.0)
    sentence = (
        f"The object store is too small: node {node.node} ({format_bytes(node.store_bytes)}) spilled "
        f"{format_bytes(node.spilled_bytes)} to disk and restored {format_bytes(node.restored_bytes)}, which took "
        f"{format_ns(node.disk_ns)}, {format_percent(share)} of the time after start-up."
    )
    confidence = round(MAX_CONFIDENCE * (0.5 + share / 2), 2)
    advice = advise_on_spilling(record, evidence.loads)
    return make_verdict("object store", "memory", confidence, sentence, advice)


# ------------------------------------------------------------------ the CPUs: the quota, other programs, a full machine

_MIN_THROTTLED_SHARE = 0.2
"""Share of the quota's periods in which the run used up the quota, from which the quota is the limit."""

_MIN_COSTLIEST_SHARE = 1 / 3
"""If all stages take a smaller share of the run's CPU time, no stage is named as the limit of a full machine."""

_MIN_OTHER_TO_OWN_RATIO = 0.5
"""Ratio of the CPUs of other programs to those of the run, from which the other programs are the limit."""


def judge_quota(evidence: Evidence) -> Verdict | None:
    """Judge a run whose processes the kernel stopped because their control group had used up its CPU quota."""
    record = evidence.record
    if record.cpu_quota <= 0 or record.throttled_share < _MIN_THROTTLED_SHARE or not wants_cpu(evidence.most_used):
        return None
    sentence = (
        f"The CPU quota is the limit: the control group may use {_format_cpus(record.cpu_quota)} of "
        f"{format_count(record.cpus, 'CPUs')}, and the kernel throttled it in "
        f"{format_percent(record.throttled_share)} of the periods."
    )
    costliest = max(evidence.loads, key=lambda load: load.cpu_ns).costliest_row
    advice = (
        f"No config change will help: raise the quota (`cpu.max`, the CPU limit of the container), or make {costliest} "
        "cheaper. More workers would share the same quota."
    )
    confidence = round(0.5 + (MAX_CONFIDENCE - 0.5) * record.throttled_share, 2)
    return make_verdict("cpu quota", "machine", confidence, sentence, advice)


def judge_machine(evidence: Evidence) -> Verdict | None:
    """Judge a run that has all CPUs in use: by other programs, or by the stage or hop that takes the most time."""
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
    full_text = f"The machine is full: {cpus_used:.1f} of {format_count(record.cpus, 'CPUs')} in use"
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
    """Return the verdict on a run whose processes wait for CPUs that other programs use."""
    record, most_used = evidence.record, evidence.most_used
    cpus_text = format_count(record.cpus, "CPUs")
    sentence = (
        f"Other programs use {record.other_cpus:.1f} of {cpus_text}; this run used {compute_cpus_used(record):.1f}"
    )
    if most_used.cpu_wait_ns:
        name = name_process(most_used, record)
        sentence += f", and {name} waited for a CPU {format_percent(most_used.cpu_wait_share)} of its time"
    text = "No config change will help: end the other programs, or run this when they have finished."
    return make_verdict("other programs", "machine", _compute_confidence(evidence), f"{sentence}.", text)


def _compute_confidence(evidence: Evidence) -> float:
    """Return the confidence that the CPUs are the limit: all are in use, or the busiest process waits for one."""
    record = evidence.record
    in_use = min(compute_cpus_used(record) + record.other_cpus, float(record.cpus)) / record.cpus
    score = max(scale_to_unit(in_use, FULL_MACHINE_CPU_SHARE, 1.0), evidence.most_used.cpu_wait_share)
    return round(0.6 + (MAX_CONFIDENCE - 0.6) * score, 2)


def _format_cpus(cpus: float) -> str:
    return f"{cpus:.1f}".removesuffix(".0")


# ------------------------------------------------------------------ another scheduler

_MIN_SCHEDULED_BUSY_SHARE = 0.5
"""If the busiest stage works for a smaller share of its time, the run waits for the scheduler, not for a stage."""


def _judge_scheduling(evidence: Evidence) -> Verdict | None:
    """Judge a run under another scheduler in which all workers wait for that scheduler."""
    workers = [stage for stage in evidence.record.stages if stage.fused_into is None]
    if any(stage.is_blocked_measured for stage in workers):
        return None
    shares = {stage.name: stage.busy_ns / max(stage.wall_ns - stage.starting_ns, 1) for stage in workers}
    busiest = max(shares, key=lambda name: shares[name])
    if shares[busiest] >= _MIN_SCHEDULED_BUSY_SHARE:
        return None
    scheduler = evidence.record.scheduler or "the scheduler"
    sentence = (
        f"No stage is the limit: the busiest, {busiest}, was busy {format_percent(shares[busiest])} of the time after "
        f"start-up; {scheduler} took the rest to start workers, and to schedule and move blocks."
    )
    advice = (
        f"No config change to suggest: a hop on {scheduler} pays off only for items with more work; `engine=local` "
        "runs the stages on one machine."
    )
    return make_verdict("", "none", 0.5, sentence, advice)


# ------------------------------------------------------------------ an inline run

_HANDING_NS = 30_000
"""Time to hand a small item to another process and to receive it there: 20 to 40 us on two busy CPUs."""

_MIN_GAIN = 1.2
"""Processes are not suggested for a smaller maximum speed-up."""

_MIN_CPU_SHARE = 0.6
"""If the process had a CPU for less of the time, other programs explain the time between the stages' calls."""


class _Part(NamedTuple):
    """A row of the report or the consumer, with the time that it took."""

    name: str
    kind: str
    subject: str
    busy_ns: int


def judge_one_process(evidence: Evidence) -> Verdict | None:
    """Judge an inline run; return None for any other. `fix` is empty, because no config key turns processes on."""
    record = evidence.record
    if not record.is_inline:
        return None
    parts = _list_parts(record)
    work_ns = sum(part.busy_ns for part in parts)
    total_ns = max(record.consumer.wait_ns + record.consumer.busy_ns, work_ns, 1)
    most = max(parts, key=lambda part: part.busy_ns)
    if total_ns - work_ns > most.busy_ns:
        return _judge_small_stages(record, most, work_ns, total_ns)
    items = max(record.items_in, 1)
    share = most.busy_ns / total_ns
    subject = most.name if most.kind == "stage" else capitalize(most.subject)
    return Verdict(
        limited_by=most.name,
        kind=most.kind,
        confidence=round(MAX_CONFIDENCE * share, 2),
        sentence=f"{subject} took {format_percent(share)} of the time: {format_ns(most.busy_ns // items)} of "
        f"{format_ns(total_ns // items)} per item. All stages ran in this process, one after the other.",
        advice=_advise(record, most, work_ns),
        share=share,
    )


def _list_parts(record: RunRecord) -> list[_Part]:
    """List the rows of the report and the consumer."""
    busy_ns: Counter[str] = Counter()
    kinds: dict[str, str] = {}
    for stage in record.stages:
        row = stage.part_of or stage.name
        busy_ns[row] += stage.busy_ns
        kinds.setdefault(row, "source" if stage is record.stages[0] else "sink" if stage.is_sink else "stage")
    subjects = {"source": "the source", "sink": "the sink {}", "stage": "{}"}
    parts = [_Part(row, kind, subjects[kind].format(row), busy_ns[row]) for row, kind in kinds.items()]
    consumer = record.consumer
    kind, subject = ("sink", "the sink {}") if consumer.is_sink else ("consumer", "the {}")
    return [*parts, _Part(consumer.name, kind, subject.format(consumer.name), consumer.busy_ns)]


def _judge_small_stages(record: RunRecord, most: _Part, work_ns: int, total_ns: int) -> Verdict:
    """Judge a run that spends most of its time between the calls of its stages."""
    items = max(record.items_in, 1)
    own_ns = total_ns - work_ns
    cpu_share = min(record.caller_cpu_ns / total_ns, 1.0)
    sentence = (
        f"The stages are small: their work takes {format_ns(work_ns // items)} per item, and calling, timing and "
        f"seeding them one after the other in this process takes {format_ns(own_ns // items)}."
    )
    advice = _advise(record, most, work_ns)
    if 0 < cpu_share < _MIN_CPU_SHARE:
        sentence = (
            f"No stage is the limit: this process had a CPU for {format_percent(cpu_share)} of the time; other "
            "programs took the rest."
        )
        advice = "No config change to suggest: run it again when the machine is less busy."
    return make_verdict("", "none", round(MAX_CONFIDENCE * own_ns / total_ns, 2), sentence, advice)


def _advise(record: RunRecord, most: _Part, work_ns: int) -> str:
    """Describe the possible gain from processes: the slowest part sets the pace, and each item must be handed over."""
    if record.cpus == 1:
        return "No config change to suggest: with one CPU, processes would not be faster."
    if work_ns < _HANDING_NS * max(record.items_in, 1):
        return (
            f"Processes would not be faster: handing an item over takes about {format_ns(_HANDING_NS)}, more than all "
            "the work on it."
        )
    gain = min(work_ns / max(most.busy_ns, 1), record.cpus)
    if gain >= _MIN_GAIN:
        return (
            f"Without `inline`, the stages run at the same time: at most {gain:.1f} times as fast with one worker "
            f"each, because {most.subject} sets the pace. `stagepipe plan` predicts the gain of more workers."
        )
    more = (
        f"more `workers` of {most.name} could help, and `stagepipe plan` predicts their gain"
        if most.kind == "stage"
        else "make it cheaper"
    )
    return f"Processes with one worker each would not be faster: {most.subject} takes nearly all the time; {more}."


# ------------------------------------------------------------------ one process is busy, or two in turn

_MIN_EQUAL_RATIO = 0.9
"""A process with at least this share of the highest utilization is a bottleneck too."""

_MIN_REPEATED_SHARE = 0.2
"""Share of a stage's work in failed and repeated attempts, from which the attempts are the limit."""

_MIN_SLOW_CALLS_SHARE = 0.5
"""Share of a process's work in calls that happen once in each worker, from which these calls are the limit."""

_MIN_OWN_WORK_SHARE = 0.5
"""A process that spends at least this share of its work in its functions is not too small."""

_MIN_HANDING_RATIO = 2.0
"""Ratio of the cost of handing an item over to the work on it, from which the stages are too small for processes."""

_INLINE_ITEM_NS = 10_000
"""Overhead per item of two stages in one process: `benchmarks.small_items` measures it."""

_MIN_INLINE_GAIN = 0.2
"""Minimum gain for suggesting one process: the gain is an estimate from a run in several processes."""

SMALL_STAGES = "hops"
"""`Verdict.limited_by` of stages that are too small for processes: it stands for all of their hops."""

_MAX_SMALL_MESSAGE_BYTES = 65_536
"""The cost of larger messages depends on their size, so the hop is judged and not the number of items."""

_MIN_INTERVALS = 6
"""Minimum number of intervals for comparing the beginning of the series with its end: two in each third."""

_MIN_CHANGE = 0.3
"""Each of the two bottlenecks must be less busy by this share in the third of the run that the other one limits."""


def judge_most_used(evidence: Evidence) -> Verdict | None:
    """Judge a run that its most used process limits; return None if that process is not busy enough."""
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
    """Judge a run that a stage or the writer of a sink limits."""
    most_used, record, name = evidence.most_used, evidence.record, evidence.most_used.costliest_stage
    equals = _find_equals(evidence)
    if equals:
        return _judge_equals([most_used, *equals], evidence, confidence)
    workers_text = f"its {most_used.workers} workers were" if most_used.workers > 1 else "its worker was"
    if most_used.member_stages[0].mean_workers:
        workers_text = "its workers were"  # the number of workers has changed
    growth = describe_growth(most_used, record)
    process_name = name_process(most_used, record)
    kind = "sink" if process_name.startswith("the sink") else "stage"
    subject = capitalize(process_name) if kind == "sink" else name
    advice = advise_on_stage(most_used, evidence.second_most_used, record)
    limited_by = most_used.row if kind == "sink" else name
    return make_verdict(
        limited_by, kind, confidence, f"{subject} is the bottleneck: {workers_text} {busy_text}.{growth}", advice
    )


def judge_retries(evidence: Evidence) -> Verdict | None:
    """Judge a run whose busiest process mostly repeats failed attempts."""
    if not evidence.has_busy_process or not evidence.most_used.member_stages:
        return None
    stage = _find_repeating_stage(evidence.most_used)
    if stage is None:
        return None
    return _judge_repeated_attempts(stage, evidence, compute_confidence(evidence))


def judge_slow_calls(evidence: Evidence) -> Verdict | None:
    """Judge a run whose busiest process spent most of its work on one call in each worker, such as loading a model."""
    load = evidence.most_used
    if not evidence.has_busy_process or load.slow_calls_ns < _MIN_SLOW_CALLS_SHARE * max(load.work_ns, 1):
        return None
    stage = load.costliest_member
    if stage.is_sink:
        return None  # the first part loads the sink's libraries
    calls = stage.run_histogram
    subject = f"One call of {stage.row}" if stage.workers == 1 else f"One call in each worker of {stage.row}"
    sentence = (
        f"{subject} took {format_ns(calls.max_ns)}, most of its work: half of its calls take at most "
        f"{format_ns(calls.percentile_ns(50))}."
    )
    advice = (
        f"{NO_CHANGE}: if this call loads a model, load it in the constructor of a class, which counts as start-up; "
        "otherwise look at the item (`-v` lists the slowest)."
    )
    return make_verdict(stage.row, "stage", compute_confidence(evidence), sentence, advice)


def judge_small_stages(evidence: Evidence) -> Verdict | None:
    """Judge a run whose stages work less on an item than the handover of the item costs, while the CPUs are busy."""
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
    ]  # hops from a sink carry parts
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
        f"{subject} too small for processes: an item takes {format_ns(round(work_ns))} of CPU time in all stages, and "
        f"handing it over between {len(processes)} processes takes {format_ns(round(handing_ns))}."
    )
    ratio_score = scale_to_unit(handing_ns / max(total_ns, 1), 0.4, 0.9)
    confidence = round(MAX_CONFIDENCE * ratio_score * compute_sample_factor(evidence), 2)
    text = "Make each item a batch, so that a hop carries more work."
    inline_ns = work_ns + record.consumer.busy_ns / items + _INLINE_ITEM_NS
    if (1 + _MIN_INLINE_GAIN) * inline_ns < compute_run_active_ns(record) / items:
        text = (
            f"Run it in one process, with `--inline` (in Python `inline=True`): these times allow at most "
            f"{format_rate(1e9 / inline_ns)} items/s. Or make each item a batch."
        )
    return make_verdict(SMALL_STAGES, "hop", confidence, sentence, text)


def judge_wasteful_hop(evidence: Evidence) -> Verdict | None:
    """Judge a run that a hop limits if a config change makes the hop cheaper: this helps on a full machine too."""
    hop = _find_limiting_hop(evidence.most_used, evidence.record) if evidence.has_busy_process else None
    hop = hop or _find_alternating_hop(evidence.record)
    if hop is None:
        return None
    verdict = _judge_hop(hop, evidence)
    return verdict if verdict.fix and ".workers=" not in verdict.fix.partition(" ")[0] else None


def judge_change(evidence: Evidence) -> Verdict | None:
    """Judge a run in which one process is busy at the beginning and another one at the end."""
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
        f"The bottleneck changes during the run: in the first third, {name_process(loads[first], evidence.record)} was "
        f"busy {format_percent(early[first])} of the time; in the last third, "
        f"{name_process(loads[last], evidence.record)} was busy {format_percent(late[last])}."
    )
    sentence += "".join(describe_growth(loads[name], evidence.record, loads[name].row) for name in (first, last))
    changing = [loads[name] for name in (first, last) if can_have_workers(loads[name], evidence.record)]
    advice = advise_on_stages(changing, 0.0, evidence.record) if changing else advise_on_source(loads[first])
    return make_verdict(loads[last].costliest_row, "stage", 0.7, sentence, advice)


def _judge_consumer(evidence: Evidence, busy_text: str, confidence: float) -> Verdict:
    """Judge a run that waits for its consumer: a loop, or a sink without workers."""
    consumer = evidence.record.consumer
    subject = name_process(evidence.most_used, evidence.record)
    sentence = f"{capitalize(subject)} is the bottleneck: it was {busy_text}."
    if consumer.is_sink:
        return make_verdict(consumer.name, "sink", confidence, sentence, advise_on_item_sink(evidence.record))
    text = f"No config change will help: the pipeline keeps up. Stop tuning here, or make {subject} faster."
    return make_verdict(CONSUMER, "consumer", confidence, sentence, text)


def _find_limiting_hop(load: ProcessLoad, record: RunRecord) -> HopRecord | None:
    """Return the hop that costs this process more than its functions.

    If the whole hop costs more than the functions at both of its ends, half of the process's functions are enough.
    """
    side = max(load.hop_sides, key=lambda hop_side: hop_side.spent_ns, default=None)
    if side is None:
        return None
    ends = {side.hop.source, side.hop.target}
    ends_ns = sum(stage.run_histogram.sum_ns for stage in record.stages if stage.name in ends)
    exceeds_ends = side.hop.cost_histogram.sum_ns > ends_ns and load.name != CONSUMER
    return side.hop if side.spent_ns > (load.run_ns / 2 if exceeds_ends else load.run_ns) else None


def _find_alternating_hop(record: RunRecord) -> HopRecord | None:
    """Return a hop of a forced mode whose messages take most of the time.

    Both sides may then work in turn, as with large messages through a pipe, so that neither is busy most of the time.
    """
    active_ns = _compute_work_ns(record) - record.consumer.outside_loop_ns
    functions_ns = max(each.run_histogram.sum_ns / (each.worker_divisor * each.concurrency) for each in record.stages)
    hop = max(record.hops, key=lambda each: each.cost_histogram.sum_ns, default=None)
    if hop is None or hop.transport.mode not in ("pipe", "shared_memory"):
        return None
    cost_ns = hop.cost_histogram.sum_ns
    return hop if cost_ns > max(MIN_LIMITING_UTILIZATION * active_ns, functions_ns) else None


def _judge_hop(hop: HopRecord, evidence: Evidence) -> Verdict:
    name = format_hop(hop, evidence.record)
    sentence = (
        f"The hop {name} is the bottleneck: {format_hop_cost(hop)}, more than the functions at both ends; "
        f"{name_process(evidence.most_used, evidence.record)} was busy {format_utilization(evidence.most_used)}."
    )
    advice = advise_on_hop(hop, evidence.most_used, evidence.record, evidence.loads)
    return make_verdict(name, "hop", compute_confidence(evidence), sentence, advice)


def _find_repeating_stage(load: ProcessLoad) -> StageRecord | None:
    """Return the stage of a process that lost much of its work to repeated attempts."""
    stage = max(load.member_stages, key=lambda member: member.repeated_ns)
    return stage if stage.repeated_ns >= _MIN_REPEATED_SHARE * load.work_ns else None


def _judge_repeated_attempts(stage: StageRecord, evidence: Evidence, confidence: float) -> Verdict:
    share = min(stage.repeated_ns / evidence.most_used.work_ns, 1.0)
    sentence = (
        f"Retries of {stage.name} are the bottleneck: failed attempts took {format_percent(share)} of its work, "
        f"with {stage.retries:,} retries for {format_count(stage.items, 'items')}; "
        f"it was busy {format_utilization(evidence.most_used)}."
    )
    return make_verdict(stage.name, "stage", confidence, sentence, advise_on_repeated_attempts(stage.name))


def _find_equals(evidence: Evidence) -> list[ProcessLoad]:
    """Return the processes that are as busy as the busiest one, if all of them can have more workers."""
    most_used, record = evidence.most_used, evidence.record
    equals = [
        load
        for load in evidence.loads
        if load is not most_used and load.utilization >= _MIN_EQUAL_RATIO * most_used.utilization
    ]
    return equals if all(can_have_workers(load, record) for load in (most_used, *equals)) else []


def _judge_equals(loads: Sequence[ProcessLoad], evidence: Evidence, confidence: float) -> Verdict:
    """Judge a run with several equally busy processes: more workers for only one of them would change nothing."""
    record = evidence.record
    in_order = [load for load in evidence.loads if load in loads]
    names = " and ".join(load.row for load in in_order)
    shares = " and ".join(format_percent(load.utilization) for load in in_order)
    sentence = f"{names} are joint bottlenecks: they were busy {shares} of the time after start-up."
    sentence += "".join(describe_growth(load, record, load.row) for load in in_order)
    others = [load.utilization for load in evidence.loads if load not in loads]
    advice = advise_on_stages(in_order, max(others, default=0.0), record)
    return make_verdict(evidence.most_used.costliest_row, "stage", confidence, sentence, advice)


def _split_series(evidence: Evidence) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean busy share of each process in the first and the last third of the time after the first item."""
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
    """Return the indices of the intervals between the first item and the end of the work."""
    ends_ns = record.delivery_points[-1][0] if record.delivery_points else record.wall_ns
    return [
        index
        for index, time_ns in enumerate(series.times_ns)
        if record.first_item_ns < time_ns <= ends_ns and all(len(stage.busy) > index for stage in series.stages)
    ]


# ------------------------------------------------------------------ items are held back while no process is busy

_MIN_WINDOW_BLOCKED_SHARE = 0.2
"""If no stage is busy but the source is blocked for this share of its time, the window is the limit."""

_MIN_WORK_NS = 1_000_000_000
"""In a shorter run, filling and draining the queues looks the same as a small window."""

_MIN_OTHER_SHARE = 0.5
"""Share of the CPUs in use by other programs, from which these programs explain a run without a busy process."""

_MIN_STRAGGLER_RATIO = 3.0
"""Minimum ratio of the mean item time of a straggler to the median of the other workers of its stage."""

_MIN_SLOW_ITEMS_SHARE = 0.8
"""Fraction of a straggler's items that must be slow. Below it, the worker just met a few slow items."""

_MIN_SPREAD = 5.0
"""Ratio of the time of slow items to p50, from which they hold up the items behind them."""

_MIN_HOLDING_SHARE = 0.2
"""Share of the run from which a single item holds up the items behind it."""

_MIN_SHARE = 0.1
_MIN_RULE_GAIN = 0.01
_MAX_RULE_GAIN = 4.0
"""Bounds for the expected gain of a change that the model of layouts cannot estimate."""

_MIN_WINDOW_PER_WORKER = 2
"""With fewer items in flight per worker, the window is too small, even if all items take the same time."""

_MAX_WINDOW_PER_WORKER = 8
"""With more items in flight per worker, the window is not the reason why workers wait."""


def judge_straggler(evidence: Evidence) -> Verdict | None:
    """Judge a run in which one worker of a stage is busy with slow items while the others wait."""
    for load in evidence.loads:
        stage = load.member_stages[0] if load.member_stages else None
        worker = None if stage is None else _find_straggler(stage, load.costliest_member)
        if stage is None or worker is None or stage.mean_workers:
            continue  # workers that started later had other items and less time
        active_ns = load.active_ns / load.worker_divisor
        busy_shares = [each.busy_ns / active_ns for each in stage.worker_loads]
        others = [share for index, share in enumerate(busy_shares) if index != worker]
        if busy_shares[worker] < MIN_LIMITING_UTILIZATION or max(others) >= MIN_LIMITING_UTILIZATION:
            continue
        own_ns, others_ns = _mean_item_ns(stage, worker), median(_list_other_means_ns(stage, worker))
        sentence = (
            f"One worker of {load.name} is the bottleneck: worker {worker} takes {format_ns(int(own_ns))} per item, "
            f"the others {format_ns(int(others_ns))}. It was busy {format_percent(min(busy_shares[worker], 1.0))} of "
            f"the time after start-up, the others at most {format_percent(max(others))}."
        )
        advice = (
            f"No config change will help: find out what slows worker {worker} of {load.name} down, such as its device, "
            "its CPUs or a shared file. With a larger `window`, the others can get further ahead."
        )
        return make_verdict(load.name, "stage", 0.8, sentence, advice)
    return None


def judge_flow(evidence: Evidence) -> Verdict:
    """Judge a run without a busy process."""
    source = evidence.loads[0]
    most_used = evidence.most_used
    kind_text = "process" if most_used.name == CONSUMER else "stage"
    busiest_text = (
        f"the busiest {kind_text}, {name_process(most_used, evidence.record)}, was busy {format_utilization(most_used)}"
    )
    work_ns = _compute_work_ns(evidence.record)
    has_room = evidence.record.window_items >= evidence.items  # for all items of the run
    if has_room or work_ns < _MIN_WORK_NS or source.blocked_share < _MIN_WINDOW_BLOCKED_SHARE or most_used is source:
        return _judge_unclear(evidence, busiest_text)
    confidence = round(0.3 + 0.4 * scale_to_unit(source.blocked_share, _MIN_WINDOW_BLOCKED_SHARE, 0.8), 2)
    held_text = f"{busiest_text}, but the source was blocked {format_percent(source.blocked_share)} of it"
    pressure = evidence.record.memory_pressure
    if pressure is not None:
        return _judge_memory(pressure, held_text, confidence)
    slow_items = _find_slow_items(evidence, work_ns)
    if slow_items is not None:
        return _judge_order(slow_items, evidence, held_text, confidence)
    if evidence.record.window_items > _MAX_WINDOW_PER_WORKER * count_workers(evidence.record):
        return _judge_unclear(evidence, busiest_text)
    sentence = f"Too few items in flight: {held_text}."
    return make_verdict("window", "window", confidence, sentence, advise_on_window(evidence.record))


def make_rule_change(verdict: Verdict, evidence: Evidence) -> WhatIf | None:
    """Return the change of a rule that the model of layouts cannot estimate: the window, `memory`, or threads.

    The gain is an upper bound: the busiest process would have no time left, or would never wait for a CPU. The lower
    bound is a tenth of the gain.
    """
    key = verdict.fix.partition("=")[0]
    if key in {"window", "memory"}:
        share = evidence.most_used.utilization
    elif key.endswith(".threads"):
        share = 1 - max(load.cpu_wait_share for load in evidence.loads)
    else:
        return None
    gain = min(1 / max(share, _MIN_SHARE) - 1, _MAX_RULE_GAIN)
    return WhatIf(
        kind="threads" if key.endswith(".threads") else key,
        change=f"{verdict.fix} (at most)",
        overrides=tuple(verdict.fix.split()),
        items_per_s=round(evidence.record.samples_out / max(evidence.record.wall_ns, 1) * 1e9 * (1 + gain), 1),
        gain=round(gain, 3),
        gain_low=round(max(gain / 10, _MIN_RULE_GAIN), 3),
    )


def _judge_unclear(evidence: Evidence, busiest_text: str) -> Verdict:
    record = evidence.record
    in_use = compute_cpus_used(record) + record.other_cpus
    if record.other_cpus >= _MIN_OTHER_SHARE * record.cpus and in_use >= FULL_MACHINE_CPU_SHARE * record.cpus:
        return judge_other_programs(evidence)
    advice = "No config change to suggest: measure a longer run on an otherwise idle machine."
    return make_verdict("", "none", 0.2, f"No clear bottleneck: {busiest_text}.", advice)


def _judge_memory(pressure: MemoryPressure, held_text: str, confidence: float) -> Verdict:
    sentence = (
        f"`memory` is too small for the window: only {pressure.fitting_items} of its {pressure.window_items} items "
        f"fit, at about {format_bytes(pressure.item_bytes)} each; {held_text}."
    )
    return make_verdict("memory", "memory", confidence, sentence, advise_on_memory(pressure))


class _SlowItems(NamedTuple):
    """A stage with slow items, their time, and the name of that figure: `p99`, or the `slowest` item."""

    stage: StageRecord
    time_ns: int
    name: str


def _judge_order(slow_items: _SlowItems, evidence: Evidence, held_text: str, confidence: float) -> Verdict:
    stage = slow_items.stage
    sentence = (
        f"Slow items hold up the items behind them, because the order is kept: {stage.name} takes "
        f"{format_ns(stage.run_histogram.percentile_ns(50))} per item (p50), but {format_ns(slow_items.time_ns)} "
        f"({slow_items.name}); {held_text}."
    )
    advice = advise_on_order(stage, slow_items.time_ns, evidence.record)
    return make_verdict("order", "window", confidence, sentence, advice)


def _find_straggler(stage: StageRecord, costliest: StageRecord) -> int | None:
    """Return the worker whose mean item time, and the time of most of its items, is far above that of the others.

    `costliest` is the stage of the process whose function takes the most time.
    """
    if len(stage.worker_loads) < 2 or any(load.items < 1 for load in stage.worker_loads):  # noqa: PLR2004 - itself, and others
        return None
    slowest = max(range(len(stage.worker_loads)), key=lambda worker: _mean_item_ns(stage, worker))
    own_ns = _mean_item_ns(stage, slowest)
    if own_ns < _MIN_STRAGGLER_RATIO * median(_list_other_means_ns(stage, slowest)):
        return None
    slow_items = costliest.run_histogram.count_from(own_ns / 2)
    return slowest if slow_items >= _MIN_SLOW_ITEMS_SHARE * stage.worker_loads[slowest].items else None


def _mean_item_ns(stage: StageRecord, worker: int) -> float:
    load = stage.worker_loads[worker]
    return load.busy_ns / load.items


def _list_other_means_ns(stage: StageRecord, worker: int) -> list[float]:
    return [_mean_item_ns(stage, other) for other in range(len(stage.worker_loads)) if other != worker]


def _find_slow_items(evidence: Evidence, work_ns: int) -> _SlowItems | None:
    """Return the slow items that hold up others; None if the window is too small for all items instead.

    A stage with one item in progress does not count: it works in order, so no finished item waits for a slow one.
    """
    record = evidence.record
    if not record.is_ordered or record.window_items < _MIN_WINDOW_PER_WORKER * _count_most_workers(evidence.loads):
        return None
    total_ns = max(stage.run_histogram.sum_ns for stage in record.stages)
    for stage in record.stages[1:]:
        calls = stage.run_histogram
        if stage.name in record.order_point_names or stage.workers * stage.concurrency == 1 or calls.sum_ns < total_ns:
            continue
        slow_ns = _MIN_SPREAD * max(calls.percentile_ns(50), 1)
        if calls.percentile_ns(99) >= slow_ns:
            return _SlowItems(stage, calls.percentile_ns(99), "p99")
        if calls.max_ns >= max(slow_ns, _MIN_HOLDING_SHARE * work_ns):
            return _SlowItems(stage, calls.max_ns, "the slowest")
    return None


def _count_most_workers(loads: tuple[ProcessLoad, ...]) -> int:
    return max(load.workers for load in loads)


# ------------------------------------------------------------------ the rules, in their order


def _judge_busiest_consumer(evidence: Evidence) -> Verdict | None:
    """Judge a run whose busiest process is the consumer."""
    return judge_most_used(evidence) if evidence.most_used.name == CONSUMER else None


@dataclass(frozen=True)
class Rule:
    """A question about the run, with its name.

    `judge` returns the complete verdict if the evidence shows this limit, else None. `no_change` is the reason why no
    change of the layout is offered; "" allows one.
    """

    name: str
    judge: Callable[[Evidence], Verdict | None]
    no_change: str = ""


RULES: Final = (
    Rule("too few items", judge_too_few_items),
    Rule("one process", judge_one_process),
    Rule("restarts", judge_restarts),
    Rule("drain", judge_drain, "the run is too short"),
    Rule("spilling", judge_spilling),
    Rule("scheduling", _judge_scheduling),
    Rule("short run", judge_short_run),
    Rule("CPU quota", judge_quota),
    Rule("consumer", _judge_busiest_consumer),
    Rule("straggler", judge_straggler, "one slow worker holds up the others"),
    Rule("retries", judge_retries, "failed attempts take most of the work"),
    Rule("slow calls", judge_slow_calls, "a few slow calls took most of the time"),
    Rule("small stages", judge_small_stages),
    Rule("wasteful hop", judge_wasteful_hop),
    Rule("full machine", judge_machine),
    Rule("change of the limit", judge_change),
    Rule("busiest process", judge_most_used),
    Rule("flow", judge_flow, "no process limits this run"),
)
"""The rules, the most decisive first. The last rule judges any run."""
