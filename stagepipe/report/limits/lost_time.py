"""Time in which nothing could flow: start-up, restarts; and runs with too few items to say anything. Pure."""

from __future__ import annotations

import math
from collections import Counter

from stagepipe.core import format_ns, format_percent
from stagepipe.report.limits.evidence import MAX_CONFIDENCE, Evidence
from stagepipe.report.model import Verdict
from stagepipe.report.record import RunRecord
from stagepipe.report.utilization import (
    compute_drain_ns,
    compute_lost_ns,
    compute_run_active_ns,
    compute_startup_ns,
    find_slowest_start,
    find_writers,
    mean_starting_ns,
)

_MIN_ITEMS_TO_JUDGE = 16
"""Fewer items than this (or than four per worker) only fill the queues, unless they take long."""

_MIN_LONG_ITEMS_TO_JUDGE = 4
"""With at least as many items (and two per worker), a run that works for `_MIN_WORK_TO_JUDGE_NS` is judged."""

_MIN_WORK_TO_JUDGE_NS = 5_000_000_000
"""A run that works this long after its start-up is judged, however long the start-up took."""

_MIN_STARTUP_SHARE = 0.5
"""Share of the wall time from which the start-up is the limit."""

_MAX_AMORTIZED_STARTUP_SHARE = 0.1
"""A run is long enough if its start-up takes no more than this share of it."""

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
    return Verdict(
        limited_by="",
        kind="none",
        confidence=0.1,
        sentence=f"Too few items to judge: {items:,}; start-up took {_describe_startup(evidence.record)}.",
        advice=f"No config change to suggest yet: run it on {needed} items or more.",
    )


def judge_drain(evidence: Evidence) -> Verdict | None:
    """Judge a run that mostly waited for its sink, which wrote one part or two after the work of the stages."""
    record = evidence.record
    drain_ns, active_ns = compute_drain_ns(record), record.wall_ns - compute_startup_ns(record)
    if not drain_ns or drain_ns < _MIN_STARTUP_SHARE * active_ns:
        return None
    writer = max(find_writers(record), key=lambda stage: stage.busy_ns)
    parts = "its one part" if writer.items <= 1 else f"its {writer.items} parts"
    sentence = (
        f"The sink {writer.row} took most of this short run: it wrote {parts} after the stages had worked, in "
        f"{format_ns(drain_ns)} of {format_ns(record.wall_ns)}."
    )
    advice = (
        "No config change to suggest yet: with more items, or a smaller `part_items`, it writes while the stages work. "
        "Some of the time is the import of the libraries that it writes with."
    )
    return Verdict(limited_by=writer.row, kind="sink", confidence=0.5, sentence=sentence, advice=advice)


def judge_startup(evidence: Evidence, later: Verdict) -> Verdict | None:
    """Judge a run of which the start-up took most. `later` is the verdict on the time after it."""
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
        f"start-up takes a tenth of the time. Where imports take it, name the modules in `preload`; where each worker "
        "loads a model, fewer workers load faster."
    )
    sentence = f"Start-up dominates: it took {_describe_startup(record)}."
    if is_judged:
        sentence += f" After it: {later.sentence}"
        advice += f" After it: {later.advice}"
    return Verdict(
        limited_by=slowest.row,
        kind="startup",
        confidence=round(MAX_CONFIDENCE * startup_ns / wall_ns, 2),
        sentence=sentence,
        advice=advice,
        fix=later.fix if is_judged else "",
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
    what = f"a worker of {stage} died {times}" if stage else f"no item moved, {times}"
    sentence = (
        f"Restarts are the limit: {what} ({own[0].cause}), and that took {format_ns(lost_ns)}, "
        f"{format_percent(share)} of the time after start-up."
    )
    repeated = "in flight"
    if find_writers(record):
        repeated = "since the last part of the sink: a smaller `part_items` makes them fewer"
    advice = (
        f"Find out why {stage or 'the pipeline'} {'dies' if stage else 'stalls'}; the report lists the restarts. "
        f"Each costs {format_ns(lost_ns // len(record.restarts))}: the time to build the stage again, and to repeat "
        f"the items {repeated}."
    )
    confidence = round(MAX_CONFIDENCE * (0.5 + share / 2), 2)
    return Verdict(limited_by=stage, kind="restarts", confidence=confidence, sentence=sentence, advice=advice)


def _compute_work_ns(record: RunRecord) -> int:
    return record.wall_ns - compute_startup_ns(record)


def _describe_startup(record: RunRecord) -> str:
    """Describe `3.0 s of 4.0 s (slowest: load)`."""
    startup_text = f"{format_ns(compute_startup_ns(record))} of {format_ns(record.wall_ns)}"
    if 2 * mean_starting_ns(find_slowest_start(record), record) < compute_startup_ns(record):
        return f"{startup_text} (most of it to start Python)"
    return f"{startup_text} (slowest: {find_slowest_start(record).row})"


def _round_up(number: int) -> int:
    """Round up to two digits, because an estimate has no more.

    >>> _round_up(1234)
    1300
    """
    unit = int(10 ** max(len(str(number)) - 2, 0))
    return -(-number // unit) * unit
