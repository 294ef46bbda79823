"""What limits a run, how sure that is, and the one config change to try. Pure: a `RunRecord` in, a `Verdict` out.

`_RULES` are the questions, most decisive first; `limits` has a function for each kind of limit.

1. Is there enough to judge? A few items only fill the queues. Did all run in one process? Nothing below applies then.
2. Did nothing flow for much of the time: restarts, one part written at the end, blocks on disk, another scheduler?
3. Was the run stopped by its CPU quota? Is the consumer the busiest? Then tuning ends here.
4. Is one worker far slower than the others of its stage, or does a stage mostly repeat what failed?
5. Are the stages too small for processes: do their hops cost more than their work?
6. Does a forced mode make a hop the limit?
7. Is the machine full? Then more workers will not help, however busy a process seems: only less work will.
8. Is it one process at the beginning of the run, and another at the end?
9. Which process has the highest utilization (`utilization` defines it), and is it high enough?
10. If none: what holds items back between the processes?

A start-up that takes most of the time comes before all that, with the answer for the rest of the time.

The rules say what limits the run. The change to try is the best one of `WhatIf` that may be offered, so rules and
estimates cannot contradict each other. Without estimates (another scheduler, very few items) it is the change that the
rule suggests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from stagepipe.core import format_percent
from stagepipe.report.advice import NO_CHANGE
from stagepipe.report.limits import (
    SMALL_STAGES,
    Evidence,
    gather_evidence,
    judge_change,
    judge_drain,
    judge_flow,
    judge_machine,
    judge_most_used,
    judge_one_process,
    judge_quota,
    judge_restarts,
    judge_retries,
    judge_slow_calls,
    judge_small_stages,
    judge_spilling,
    judge_startup,
    judge_straggler,
    judge_too_few_items,
    judge_wasteful_hop,
    make_rule_change,
)
from stagepipe.report.model import Verdict
from stagepipe.report.record import RunRecord
from stagepipe.report.shared_types import WhatIf
from stagepipe.report.utilization import CONSUMER, compute_lost_ns, compute_startup_ns

_MIN_SCHEDULED_BUSY_SHARE = 0.5
"""A stage that is busy for less of its time is not what a run under another scheduler waits for."""
_FUSE_FIRST = "fewer processes come first"
_INCOMPARABLE_KINDS = frozenset({"none", "startup", "restarts", "consumer"})
"""Verdicts on runs whose rate does not say what their stages can do: too short, or held up by something else."""


@dataclass(frozen=True)
class _Rule:
    """A question. `no_change` says why no change of the layout is offered where it applies; "" if one may be."""

    judge: Callable[[Evidence], Verdict | None]
    no_change: str = ""


def is_comparable(verdict: Verdict) -> bool:
    """Whether the rate of the run says what its stages can do."""
    return verdict.kind not in _INCOMPARABLE_KINDS


def judge(record: RunRecord) -> Verdict:
    """Return the verdict on a run.

    >>> judge(record).fix  # doctest: +SKIP
    'stages.decode.workers=3'
    """
    return judge_with_changes(record)[0]


def judge_with_changes(record: RunRecord) -> tuple[Verdict, tuple[WhatIf, ...]]:
    """Return the verdict on a run, and the estimates of what changes would give: its `fix` is the best that may be."""
    if not record.stages:
        return (
            Verdict(
                limited_by="",
                kind="none",
                confidence=0.0,
                sentence="Nothing to judge: no stage ran.",
                advice="No config change to suggest yet: run it on more items.",
            ),
            (),
        )
    evidence = gather_evidence(record)
    verdict, changes = _apply_rules(evidence)
    late = None if record.is_inline else judge_startup(evidence, verdict)
    if late is not None and judge_too_few_items(evidence) is None:
        verdict, changes = late, changes if late.fix else ()
    return msgspec.structs.replace(verdict, share=_find_share(verdict, evidence)), changes


def _apply_rules(evidence: Evidence) -> tuple[Verdict, tuple[WhatIf, ...]]:
    for rule in _RULES:
        verdict = rule.judge(evidence)
        if verdict is not None:
            return _choose_change(verdict, evidence, rule.no_change)
    message = "the last rule judges any run"
    raise AssertionError(message)


def _choose_change(verdict: Verdict, evidence: Evidence, no_change: str) -> tuple[Verdict, tuple[WhatIf, ...]]:
    """Return the verdict with the best change that may be offered, and all changes."""
    if verdict.kind in {"none", "restarts"}:
        return verdict, ()
    own = make_rule_change(verdict, evidence)
    refusal = no_change or (f"{own.change} comes first" if own is not None else "")
    estimates = [_refuse(change, refusal) if refusal else change for change in evidence.record.what_if]
    if verdict.limited_by == SMALL_STAGES and any(_fuses(change) and change.is_eligible for change in estimates):
        estimates = [change if _fuses(change) else _refuse(change, _FUSE_FIRST) for change in estimates]
    changes = tuple(sorted([*([own] if own else []), *estimates], key=lambda change: -change.gain))
    if own is not None or not estimates:
        return verdict, changes
    best = next((change for change in changes if change.is_eligible), None)
    if best is None:
        advice = verdict.advice if not verdict.fix else f"{NO_CHANGE}: {_explain_none(changes)}"
        return msgspec.structs.replace(verdict, fix="", advice=advice), changes
    advice = f"Try {best.change}: {_format_gain(best)}."
    if verdict.advice and not verdict.fix and not verdict.advice.startswith(NO_CHANGE):
        advice += f" Or: {verdict.advice[:1].lower()}{verdict.advice[1:]}"
    return msgspec.structs.replace(verdict, fix=" ".join(best.overrides), advice=advice), changes


def _fuses(change: WhatIf) -> bool:
    return any(override.endswith(".fuse=true") for override in change.overrides)


def _refuse(change: WhatIf, reason: str) -> WhatIf:
    return msgspec.structs.replace(change, ineligible_reason=change.ineligible_reason or reason)


def _format_gain(change: WhatIf) -> str:
    return f"about {change.format_gain()} items/s, at least {round(change.gain_low * 100):+d} %"


def _explain_none(changes: Sequence[WhatIf]) -> str:
    """Say why the change that comes to mind first is not offered."""
    change = next((change for change in changes if change.kind == "workers"), None)
    change = change or next((change for change in changes if change.overrides), None)
    if change is None:
        return "no layout of these stages is predicted to be faster. Make the costliest one cheaper, or use more CPUs."
    return (
        f"the best estimate, {change.change}, gives {change.format_gain()} ({change.ineligible_reason}). Make the "
        "costliest stage cheaper, or use more CPUs."
    )


def _find_share(verdict: Verdict, evidence: Evidence) -> float:
    """The share of the time that the limit took: the utilization of its process, or of the busiest one."""
    if verdict.kind == "none":
        return 0.0
    record = evidence.record
    if verdict.kind == "startup":
        return compute_startup_ns(record) / max(record.wall_ns, 1)
    if verdict.kind == "restarts":
        return min(compute_lost_ns(record) / max(evidence.most_used.run_active_ns, 1), 1.0)
    if verdict.kind == "machine":
        return record.throttled_share if verdict.limited_by == "cpu quota" else evidence.most_used.cpu_wait_share
    if verdict.kind in {"memory", "window"}:
        return evidence.loads[0].blocked_share
    shares = []
    for load in evidence.loads:
        names = {load.name, load.row, *(stage.name for stage in load.member_stages)}
        if load.name == CONSUMER:
            names.add(record.consumer.name)
        if verdict.limited_by in names:
            shares.append(load.utilization)
    return max(shares, default=evidence.most_used.utilization)


def _judge_scheduling(evidence: Evidence) -> Verdict | None:
    """Judge a run under another scheduler in which all workers wait: not for the cost of a hop."""
    workers = [stage for stage in evidence.record.stages if stage.fused_into is None]
    if any(stage.is_blocked_measured for stage in workers):
        return None
    shares = {stage.name: stage.busy_ns / max(stage.wall_ns - stage.starting_ns, 1) for stage in workers}
    busiest = max(shares, key=lambda name: shares[name])
    if shares[busiest] >= _MIN_SCHEDULED_BUSY_SHARE:
        return None
    scheduler = evidence.record.scheduler or "the scheduler"
    return Verdict(
        limited_by="",
        kind="none",
        confidence=0.5,
        sentence=f"No stage is the limit: the busiest, {busiest}, was busy {format_percent(shares[busiest])} of the "
        f"time after start-up; {scheduler} took the rest, to start workers, and to schedule and move blocks.",
        advice=f"No config change to suggest: a hop on {scheduler} pays for items with more work; `engine=local` runs "
        "them on one machine.",
    )


def _judge_consumer(evidence: Evidence) -> Verdict | None:
    """Judge a run whose busiest process is the consumer."""
    return judge_most_used(evidence) if evidence.most_used.name == CONSUMER else None


_RULES = (
    _Rule(judge_too_few_items),
    _Rule(judge_one_process),
    _Rule(judge_restarts),
    _Rule(judge_drain, "the run is too short"),
    _Rule(judge_spilling),
    _Rule(_judge_scheduling),
    _Rule(judge_quota),
    _Rule(_judge_consumer),
    _Rule(judge_straggler, "one slow worker holds the others up"),
    _Rule(judge_retries, "the work is attempts that fail"),
    _Rule(judge_slow_calls, "a few slow calls took the time"),
    _Rule(judge_small_stages),
    _Rule(judge_wasteful_hop),
    _Rule(judge_machine),
    _Rule(judge_change),
    _Rule(judge_most_used),
    _Rule(judge_flow, "no process limits this run"),
)
