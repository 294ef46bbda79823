"""What limits a run, how sure that is, and the one edit of the config to try. Pure: a `RunRecord` in, a `Verdict` out.

The order of the questions is the order of their force:

1. Is there enough to judge? A few items, or a start that outlasts the work, tell nothing.
2. Which process is used most (`load` says what use is)? If it is the consumer, tuning ends here.
3. Is the machine full? Then no worker more helps, whoever seems the busiest: only less work does.
4. Does the most used process work little? Then nobody is the limit: too few items are in flight.
5. Within that process: does the work on one hop outweigh the stages' own functions? Then the hop is the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.core.units import format_ns
from stagepipe.report.advice import Advice, for_full_machine, for_hop, for_source, for_stage, for_window
from stagepipe.report.load import CONSUMER, FULL, Load, cpus_used, loads_of
from stagepipe.report.model import Verdict
from stagepipe.report.record import HopRecord, RunRecord

_FEW_ITEMS = 16
"""Fewer than these (or than four a worker) are still the filling of the queues."""

_LONG_NS = 5_000_000_000
"""A run that works this long after its start is judged, however long the start took."""

_START = 0.75
"""Share of the wall time from which the start outlasts the work."""

_LIMIT = 0.6
"""Use below which a process is not called the limit: it could do more than half as much again."""

_NO_ROOM = 0.2
"""Share of time the source waits for room, though nobody behind it is busy, from which the window is to blame."""

_WORTH_SAYING = 0.05
"""Share of waiting that is worth a word in the evidence."""

_SUREST = 0.95
"""The highest confidence: one run on one machine proves nothing."""

_NONE_YET = "There is no edit to give yet: run it on more items."


@dataclass(frozen=True)
class _Case:
    """The process that works most, and what those around it say."""

    record: RunRecord
    loads: tuple[Load, ...]
    top: Load
    second: Load | None
    before: Load | None  # the most blocked of those before it
    after: Load | None  # the most starved of those after it


def judge(record: RunRecord) -> Verdict:
    """The verdict on a run.

    >>> judge(record).fix  # doctest: +SKIP
    'stages.decode.workers=3'
    """
    if not record.stages:
        return Verdict("", "none", 0.0, "Nothing ran, so there is nothing to judge.", advice=_NONE_YET)
    case = _case(record)
    short = _too_short(case)
    if short is not None:
        return short
    if case.top.name == CONSUMER and case.top.use >= _LIMIT:
        return _busiest(case)
    if cpus_used(record) >= FULL * record.cpus:
        return _full_machine(case)
    return _busiest(case) if case.top.use >= _LIMIT else _nobody(case)


def _case(record: RunRecord) -> _Case:
    loads = loads_of(record)
    at = max(range(len(loads)), key=lambda i: loads[i].use)
    others = [*loads[:at], *loads[at + 1 :]]
    return _Case(
        record=record,
        loads=loads,
        top=loads[at],
        second=max(others, key=lambda load: load.use, default=None),
        before=max(loads[:at], key=lambda load: load.blocked, default=None),
        after=max(loads[at + 1 :], key=lambda load: load.starved, default=None),
    )


def _too_short(case: _Case) -> Verdict | None:
    record, wall_ns = case.record, case.record.wall_ns
    items = max(stage.items for stage in record.stages)
    last = max(record.stages, key=lambda s: s.starting_ns / max(s.workers, 1))
    start_ns = min(last.starting_ns // max(last.workers, 1), wall_ns)
    work_ns = wall_ns - max(start_ns, min(record.first_item_ns, wall_ns))
    few = items < max(_FEW_ITEMS, 4 * max(load.workers for load in case.loads))
    if not few and (work_ns >= _LONG_NS or work_ns >= (1 - _START) * wall_ns):
        return None
    start = f"starting took {format_ns(start_ns)} of {format_ns(wall_ns)} ({last.name} the longest)"
    sentence = f"Too short to judge: {_count(items, 'item')}; {start}."
    return Verdict("", "none", 0.1, sentence, advice=_NONE_YET)


def _busiest(case: _Case) -> Verdict:
    """The most used process is the limit: one of its hops, the consumer, the source, or a stage."""
    hop = _heaviest_hop(case.top, case.record)
    if hop is not None:
        return _hop(hop, case)
    name, use = case.top.costliest, f"{_percent(case.top.use)} of the time once started{_witnesses(case)}"
    confidence = _confidence(case)
    if name == CONSUMER:
        called = case.record.consumer_name
        sentence = f"The {called} is the limit: it works {use}."
        advice = f"There is no edit to give: the pipeline keeps up. Stop tuning here, or make the {called} faster."
        return Verdict(CONSUMER, "consumer", confidence, sentence, advice=advice)
    if name == case.record.stages[0].name:
        return _verdict(name, "source", confidence, f"The source is the limit: it works {use}.", for_source(case.top))
    who = f"its {case.top.workers} workers work" if case.top.workers > 1 else "its worker works"
    advice_ = for_stage(case.top, case.second, case.record)
    return _verdict(name, "stage", confidence, f"{name} is the limit: {who} {use}.", advice_)


def _heaviest_hop(load: Load, record: RunRecord) -> HopRecord | None:
    """The hop that costs this process more than all its functions; or more than both its ends', and much of it here."""
    side = max(load.sides, key=lambda s: s.spent_ns, default=None)
    if side is None:
        return None
    ends = {side.hop.source, side.hop.target}
    ends_ns = sum(stage.run.sum_ns for stage in record.stages if stage.name in ends)
    over_ends = side.hop.cost.sum_ns > ends_ns and load.name != CONSUMER
    return side.hop if side.spent_ns > (load.run_ns / 2 if over_ends else load.run_ns) else None


def _hop(hop: HopRecord, case: _Case) -> Verdict:
    sentence = (
        f"The hop {_label(hop)} is the limit: {_price(hop)}, more than the work at its ends; "
        f"{case.top.name} is at work {_percent(case.top.use)} of the time once started."
    )
    advice = for_hop(hop, case.top, case.record, case.loads)
    return _verdict(_label(hop), "hop", _confidence(case), sentence, advice)


def _full_machine(case: _Case) -> Verdict:
    """All CPUs are in use: what costs most CPU time is the limit, be it a stage or a hop."""
    record, used = case.record, cpus_used(case.record)
    full = f"The machine is full: {used:.1f} of {_count(record.cpus, 'CPU')} in use"
    confidence = round(0.6 + (_SUREST - 0.6) * _ramp(used / record.cpus, FULL, 1.0), 2)
    hop = max(record.hops, key=lambda h: h.cost.sum_ns, default=None)
    if hop is not None and hop.cost.sum_ns > max(load.cpu_ns - load.hops_ns for load in case.loads):
        sentence = f"{full}, and the hop {_label(hop)} takes most: {_price(hop)}."
        return _verdict(_label(hop), "hop", confidence, sentence, for_hop(hop, None, record, case.loads))
    top = max(case.loads, key=lambda load: load.cpu_ns)
    share = _percent(top.cpu_ns / sum(load.cpu_ns for load in case.loads))
    sentence = f"{full}, so more workers will not help; {top.costliest} takes {share} of that."
    kind = "source" if top.costliest == record.stages[0].name else "stage"
    return _verdict(top.costliest, kind, confidence, sentence, for_full_machine(top, record))


def _nobody(case: _Case) -> Verdict:
    source = case.loads[0]
    busiest = f"the most used, {case.top.name}, works {_percent(case.top.use)} of the time once started"
    if source.blocked < _NO_ROOM or case.top is source:
        advice = Advice("", "There is no edit to give: measure a longer run, on a machine that does nothing else.")
        return _verdict("", "none", 0.2, f"Nothing stands out: {busiest}.", advice)
    waits = f"the source waits for room {_percent(source.blocked)}"
    confidence = round(0.3 + 0.4 * _ramp(source.blocked, _NO_ROOM, 0.8), 2)
    sentence = f"Too few items are in flight: {busiest}, and yet {waits}."
    return _verdict("window", "none", confidence, sentence, for_window(case.record))


def _confidence(case: _Case) -> float:
    """How far the signs agree: high use, ahead of the second, others waiting for it, items enough."""
    use = _ramp(case.top.use, 0.4, 0.9)
    lead = _ramp(case.top.use - (case.second.use if case.second else 0.0), 0.0, 0.3)
    blocked = case.before.blocked if case.before else 0.0
    starved = case.after.starved if case.after else 0.0
    witness = _ramp(max(blocked, starved), 0.0, 0.3)
    amount = _ramp(max(stage.items for stage in case.record.stages), 0, 100)
    return round(_SUREST * use * (0.5 + 0.3 * lead + 0.2 * witness) * (0.6 + 0.4 * amount), 2)


def _ramp(value: float, low: float, high: float) -> float:
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _verdict(limited_by: str, kind: str, confidence: float, sentence: str, advice: Advice) -> Verdict:
    return Verdict(limited_by, kind, confidence, sentence, fix=advice.fix, advice=advice.words)


def _witnesses(case: _Case) -> str:
    """Who waits for it: the most blocked before, the most starved after."""
    before, after = case.before, case.after
    parts = []
    if before is not None and before.blocked >= _WORTH_SAYING:
        parts.append(f"{before.name} is blocked {_percent(before.blocked)}")
    if after is not None and after.starved >= _WORTH_SAYING:
        parts.append(f"{after.name} waits for input {_percent(after.starved)}")
    return f", while {' and '.join(parts)}" if parts else ""


def _label(hop: HopRecord) -> str:
    return f"{hop.source} -> {hop.target}"


def _price(hop: HopRecord) -> str:
    return f"{format_ns(hop.cost.mean_ns)} a message, {format_ns(hop.cost.sum_ns)} in all"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
