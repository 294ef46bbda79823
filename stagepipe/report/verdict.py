"""Finds the limit of a run, its confidence, and the one config change to try: a `Verdict` from a `RunRecord`.

The first of `RULES` that applies names the limit. If the start-up took most of the time, it comes before all rules, and
the verdict adds the limit of the remaining time. The change to try is the best eligible one of `WhatIf`, so rules and
estimates cannot contradict each other. Without estimates (another scheduler, very few items) it is the change that the
rule suggests.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stagepipe.report.advice import NO_CHANGE
from stagepipe.report.model import Verdict
from stagepipe.report.record import RunRecord, WhatIf, format_gain
from stagepipe.report.rules import (
    RULES,
    SMALL_STAGES,
    judge_startup,
    judge_too_few_items,
    make_rule_change,
)
from stagepipe.report.utilization import CONSUMER, Evidence, compute_lost_ns, compute_startup_ns, gather_evidence

_FUSE_FIRST = "try fewer processes first"
_INCOMPARABLE_KINDS = frozenset({"none", "startup", "restarts", "consumer"})
"""Verdicts on runs whose rate does not show the speed of their stages: too short, or held up by something else."""


def is_comparable(verdict: Verdict) -> bool:
    """Whether the rate of the run shows the speed of its stages."""
    return verdict.kind not in _INCOMPARABLE_KINDS


def judge(record: RunRecord) -> Verdict:
    """Return the verdict on a run.

    >>> judge(record).fix  # doctest: +SKIP
    'stages.decode.workers=3'
    """
    return judge_with_changes(record)[0]


def judge_with_changes(record: RunRecord) -> tuple[Verdict, tuple[WhatIf, ...]]:
    """Return the verdict on a run, and the estimated effects of changes. The best eligible change becomes the `fix`."""
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
    for rule in RULES:
        verdict = rule.judge(evidence)
        if verdict is not None:
            return _choose_change(verdict, evidence, rule.no_change)
    message = "the last rule judges any run"
    raise AssertionError(message)


def _choose_change(verdict: Verdict, evidence: Evidence, no_change: str) -> tuple[Verdict, tuple[WhatIf, ...]]:
    """Return the verdict with the best eligible change, and all changes."""
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
    if best is None and _widens_bounds(verdict.fix) and not any(change.kind == "workers" for change in estimates):
        return verdict, changes  # more workers than the model of layouts considers on this machine
    if best is None:
        advice = verdict.advice if not verdict.fix else f"{NO_CHANGE}: {_explain_none(changes)}"
        return msgspec.structs.replace(verdict, fix="", advice=advice), changes
    advice = f"Try {best.change}: about {format_gain(best.gain)} items/s, at least {format_gain(best.gain_low)}."
    if verdict.advice and not verdict.fix and not verdict.advice.startswith(NO_CHANGE):
        advice += f" Or: {verdict.advice[:1].lower()}{verdict.advice[1:]}"
    return msgspec.structs.replace(verdict, fix=" ".join(best.overrides), advice=advice), changes


def _widens_bounds(fix: str) -> bool:
    """Whether a fix widens the bounds of a number that follows the work: `stages.decode.workers=1-16`."""
    return any(key.endswith(".workers") and "-" in value for key, _, value in (o.partition("=") for o in fix.split()))


def _fuses(change: WhatIf) -> bool:
    return any(override.endswith(".fuse=true") for override in change.overrides)


def _refuse(change: WhatIf, reason: str) -> WhatIf:
    return msgspec.structs.replace(change, ineligible_reason=change.ineligible_reason or reason)


def _explain_none(changes: Sequence[WhatIf]) -> str:
    """Return why the most obvious change is not offered."""
    change = next((change for change in changes if change.kind == "workers"), None)
    change = change or next((change for change in changes if change.overrides), None)
    if change is None:
        return "no layout of these stages is predicted to be faster. Make the costliest one cheaper, or use more CPUs."
    return (
        f"the best estimate, {change.change}, gives {format_gain(change.gain)} ({change.ineligible_reason}). Make the "
        "costliest stage cheaper, or use more CPUs."
    )


def _find_share(verdict: Verdict, evidence: Evidence) -> float:
    """Return the share of the time that the limit took: the utilization of its process, or of the busiest one."""
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
