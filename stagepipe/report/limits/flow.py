"""Items are held back while no process is busy: by memory, a slow worker, the order, the window. Pure."""

from __future__ import annotations

from statistics import median

from stagepipe.core import format_bytes, format_ns, format_percent
from stagepipe.report.advice import ConfigAdvice, advise_on_memory, advise_on_order, advise_on_window, count_workers
from stagepipe.report.limits.evidence import (
    MIN_LIMITING_UTILIZATION,
    Evidence,
    format_utilization,
    make_verdict,
    name_process,
    scale_to_unit,
)
from stagepipe.report.limits.machine import judge_other_programs
from stagepipe.report.model import Verdict
from stagepipe.report.record import MemoryPressure, StageRecord
from stagepipe.report.shared_types import WhatIf
from stagepipe.report.utilization import CONSUMER, FULL_MACHINE_CPU_SHARE, ProcessLoad, compute_cpus_used

_MIN_WINDOW_BLOCKED_SHARE = 0.2
"""If no stage is busy but the source is blocked for this share of its time, the window is the limit."""

_MIN_WORK_NS = 1_000_000_000
"""In a shorter run, filling and draining the queues looks the same."""

_MIN_OTHER_SHARE = 0.5
"""Share of the CPUs in use by other programs, from which a run without a busy process is put down to them."""

_MIN_STRAGGLER_RATIO = 3.0
"""An item takes a straggler so many times as long as the other workers of its stage."""

_MIN_SLOW_ITEMS_SHARE = 0.8
"""So many of a straggler's items take at least half of their mean. Fewer: the items are slow, and it has met them."""

_MIN_SPREAD = 5.0
"""Ratio of p99 to p50 of a stage's time from which its slow items hold up those behind them."""

_MIN_SHARE = 0.1
_MIN_RULE_GAIN = 0.01
_MAX_RULE_GAIN = 4.0
"""Bounds of what is expected of a change that the model of layouts cannot estimate."""

_MIN_WINDOW_PER_WORKER = 2
"""With fewer items in flight for each worker, the window is too small, however even the items are."""

_MAX_WINDOW_PER_WORKER = 8
"""With more items in flight for each worker, workers that wait do so for another reason."""


def judge_straggler(evidence: Evidence) -> Verdict | None:
    """Judge a run in which one worker of a stage is busy with slow items while the others wait."""
    for load in evidence.loads:
        stage = load.member_stages[0] if load.member_stages else None
        worker = None if stage is None else _find_straggler(stage, load.costliest_member)
        if stage is None or worker is None:
            continue
        active_ns = load.active_ns / load.workers
        busy_shares = [each.busy_ns / active_ns for each in stage.worker_loads]
        others = [share for index, share in enumerate(busy_shares) if index != worker]
        if busy_shares[worker] < MIN_LIMITING_UTILIZATION or max(others) >= MIN_LIMITING_UTILIZATION:
            continue
        own_ns, others_ns = _mean_item_ns(stage, worker), median(_list_other_means_ns(stage, worker))
        sentence = (
            f"One worker of {load.name} is the bottleneck: an item takes worker {worker} {format_ns(int(own_ns))}, and "
            f"the others {format_ns(int(others_ns))}. It was busy {format_percent(min(busy_shares[worker], 1.0))} of "
            f"the time after start-up, they at most {format_percent(max(others))}."
        )
        advice = (
            f"No config change will help: find out what slows worker {worker} of {load.name} down, such as its device, "
            "its CPUs or a shared file. A larger `window` lets the others go further ahead of it."
        )
        return Verdict(limited_by=load.name, kind="stage", confidence=0.8, sentence=sentence, advice=advice)
    return None


def judge_flow(evidence: Evidence) -> Verdict:
    """Judge a run without a busy process."""
    source = evidence.loads[0]
    most_used = evidence.most_used
    kind_text = "process" if most_used.name == CONSUMER else "stage"
    busiest_text = (
        f"the busiest {kind_text}, {name_process(most_used, evidence.record)}, was busy {format_utilization(most_used)}"
    )
    work_ns = evidence.record.wall_ns - evidence.record.first_item_ns
    has_room = evidence.record.window_items >= evidence.items  # for all items of the run
    if has_room or work_ns < _MIN_WORK_NS or source.blocked_share < _MIN_WINDOW_BLOCKED_SHARE or most_used is source:
        return _judge_unclear(evidence, busiest_text)
    confidence = round(0.3 + 0.4 * scale_to_unit(source.blocked_share, _MIN_WINDOW_BLOCKED_SHARE, 0.8), 2)
    held_text = f"{busiest_text}, but the source was blocked {format_percent(source.blocked_share)}"
    pressure = evidence.record.memory_pressure
    if pressure is not None:
        return _judge_memory(pressure, held_text, confidence)
    uneven_stage = _find_uneven_stage(evidence)
    if uneven_stage is not None:
        return _judge_order(uneven_stage, evidence, held_text, confidence)
    if evidence.record.window_items > _MAX_WINDOW_PER_WORKER * count_workers(evidence.record):
        return _judge_unclear(evidence, busiest_text)
    sentence = f"Too few items in flight: {held_text}."
    return make_verdict("window", "window", confidence, sentence, advise_on_window(evidence.record))


def make_rule_change(verdict: Verdict, evidence: Evidence) -> WhatIf | None:
    """Return the change of a rule that the model of layouts cannot estimate: the window, `memory`, or threads.

    Its gain is the most to expect: then the busiest process has no time left, or waits for no CPU. The lower bound is a
    tenth of that.
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
    advice = ConfigAdvice("", "No config change to suggest: measure a longer run on an otherwise idle machine.")
    return make_verdict("", "none", 0.2, f"No clear bottleneck: {busiest_text}.", advice)


def _judge_memory(pressure: MemoryPressure, held_text: str, confidence: float) -> Verdict:
    sentence = (
        f"`memory` holds the items back: {pressure.fitting_items} of a window of {pressure.window_items} fit, at about "
        f"{format_bytes(pressure.item_bytes)} each; {held_text}."
    )
    return make_verdict("memory", "memory", confidence, sentence, advise_on_memory(pressure))


def _judge_order(stage: StageRecord, evidence: Evidence, held_text: str, confidence: float) -> Verdict:
    p50_ns, p99_ns = stage.run_histogram.percentile_ns(50), stage.run_histogram.percentile_ns(99)
    sentence = (
        f"Slow items hold up those behind them, because the order is kept: an item takes {stage.name} "
        f"{format_ns(p50_ns)} (p50), but {format_ns(p99_ns)} (p99); {held_text}."
    )
    return make_verdict("order", "window", confidence, sentence, advise_on_order(stage, evidence.record))


def _find_straggler(stage: StageRecord, costliest: StageRecord) -> int | None:
    """The worker whose mean time for an item is far above that of the others, and for most of its items.

    `costliest` is the stage of the process whose function takes most.
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


def _find_uneven_stage(evidence: Evidence) -> StageRecord | None:
    """The stage with the slow items that hold up others; None if it is rather the window that is too small for all.

    One worker takes its items in their order: they wait for nothing.
    """
    record = evidence.record
    if not record.is_ordered or record.window_items < _MIN_WINDOW_PER_WORKER * _count_most_workers(evidence.loads):
        return None
    uneven = [
        stage
        for stage in record.stages[1:]
        if stage.name not in record.order_point_names
        and stage.workers > 1
        and stage.run_histogram.percentile_ns(99) >= _MIN_SPREAD * max(stage.run_histogram.percentile_ns(50), 1)
        and stage.run_histogram.sum_ns == max(other.run_histogram.sum_ns for other in record.stages)
    ]
    return uneven[0] if uneven else None


def _count_most_workers(loads: tuple[ProcessLoad, ...]) -> int:
    return max(load.workers for load in loads)
