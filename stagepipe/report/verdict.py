"""What limits a run, how sure that is, and the one config change to try. Pure: a `RunRecord` in, a `Verdict` out.

The questions, most decisive first. `limits` has a function for each kind of limit.

1. Is there enough to judge? A few items only fill the queues.
2. Did nothing flow for much of the time: restarts, start-up, blocks on disk?
3. Was the run stopped by its CPU quota, or is one worker far slower than the others of its stage?
4. Which process has the highest utilization (`utilization` defines it)? If it is the consumer, tuning ends here.
5. Within that process, does one hop cost more than the stages' functions? Then the hop is the limit.
6. Is the machine full? Then more workers will not help, however busy a process seems: only less work will.
7. Is it one process at the beginning of the run, and another at the end?
8. Is the utilization low even there? Then no process is the limit: too few items are in flight.
"""

from __future__ import annotations

from stagepipe.core import format_percent
from stagepipe.report.limits import (
    Evidence,
    gather_evidence,
    judge_change,
    judge_flow,
    judge_machine,
    judge_most_used,
    judge_quota,
    judge_restarts,
    judge_spilling,
    judge_startup,
    judge_straggler,
    judge_too_few_items,
    judge_wasteful_hop,
)
from stagepipe.report.model import Verdict
from stagepipe.report.record import RunRecord
from stagepipe.report.utilization import CONSUMER

_MIN_BUSY_SHARE_ON_RAY = 0.5
"""A stage that is busy for less of its time is not what a run on Ray waits for."""
_INCOMPARABLE_KINDS = frozenset({"none", "startup", "restarts", "consumer"})
"""Verdicts on runs whose rate does not say what their stages can do: too short, or held up by something else."""


def is_comparable(verdict: Verdict) -> bool:
    """Whether the rate of the run says what its stages can do."""
    return verdict.kind not in _INCOMPARABLE_KINDS


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
            advice="No config change to suggest yet: run it on more items.",
        )
    evidence = gather_evidence(record)
    lost_time_verdict = judge_too_few_items(evidence) or judge_restarts(evidence) or judge_spilling(evidence)
    if lost_time_verdict is not None:
        return lost_time_verdict
    scheduling_verdict = _judge_scheduling(record)
    if scheduling_verdict is not None:
        return scheduling_verdict
    verdict = _judge_flowing_run(evidence)
    return judge_startup(evidence, verdict) or verdict


def _judge_scheduling(record: RunRecord) -> Verdict | None:
    """Judge a run on Ray in which all workers mostly wait: a hop's own cost is not what they wait for."""
    workers = [stage for stage in record.stages if stage.fused_into is None]
    if any(stage.is_blocked_measured for stage in workers):
        return None
    shares = {stage.name: stage.busy_ns / max(stage.wall_ns - stage.starting_ns, 1) for stage in workers}
    busiest = max(shares, key=lambda name: shares[name])
    if shares[busiest] >= _MIN_BUSY_SHARE_ON_RAY:
        return None
    return Verdict(
        limited_by="",
        kind="none",
        confidence=0.5,
        sentence=f"No stage is the limit: the busiest, {busiest}, was busy {format_percent(shares[busiest])} of the "
        "time after start-up; Ray took the rest, to start workers, and to schedule and move blocks.",
        advice="No config change to suggest: a hop on Ray pays for items with more work; `engine=local` runs them on "
        "one machine.",
    )


def _judge_flowing_run(evidence: Evidence) -> Verdict:
    """Judge a run by the time after its start-up."""
    consumer_verdict = judge_most_used(evidence) if evidence.most_used.name == CONSUMER else None
    return (
        judge_quota(evidence)
        or consumer_verdict
        or judge_straggler(evidence)
        or judge_wasteful_hop(evidence)
        or judge_machine(evidence)
        or judge_change(evidence)
        or judge_most_used(evidence)
        or judge_flow(evidence)
    )
