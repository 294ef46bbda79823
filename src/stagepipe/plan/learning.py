"""What a hop learns while it runs: the calibration's curves, corrected by what messages really paid. Pure.

A calibration can be wrong: made on a busy machine, in one thread, or long ago. So each curve is stretched to what was
measured of its way at the sizes that came by, and the threshold is chosen anew from that. Hysteresis keeps it from
going to and fro: a change must promise a fifth, and rest on enough messages. A way that has not been taken yet is
believed to be off by as much as the other one, up to four times (a full machine is); an error beyond that is a
curve's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagepipe.core.units import format_bytes, format_ns
from stagepipe.plan.curves import Curve, Curves
from stagepipe.plan.negotiator import PIPE, SHARED, Choice, crossing
from stagepipe.timing import Entry, Ledger, Way

ENOUGH = 32
"""Messages of a way and size whose median is believed."""
_GAIN = 0.8
"""The share of today's cost that the other way must stay below."""
_COMMON = 4.0
"""Up to here a deviation is the machine's mood and holds for both ways."""


@dataclass(frozen=True)
class Seen:
    """Messages of one way and about one size. `cost_ns` is the median of what carrying one cost, with its quartiles."""

    way: Way
    mean_bytes: int
    count: int
    cost_ns: int
    low_ns: int = 0
    high_ns: int = 0


def seen_of(sending: Sequence[Ledger], receiving: Sequence[Ledger]) -> list[Seen]:
    """What the two sides' ledgers say of each way and size, together.

    The receiving side cannot tell a copy from a block that was passed on; to receive either costs the same.
    """
    sent, received = _merged(sending), _merged(receiving)
    found = []
    for (way, bits), entry in sent.items():
        other = received.get((way if way is Way.PIPE else Way.COPIED, bits))
        if other is not None:
            sides = entry.cost, other.cost
            low_ns, cost_ns, high_ns = (sum(side.percentile_ns(at) for side in sides) for at in (25, 50, 75))
            count = min(entry.cost.count, other.cost.count)
            found.append(Seen(way, entry.mean_bytes, count, cost_ns, low_ns, high_ns))
    return found


def _merged(ledgers: Sequence[Ledger]) -> dict[tuple[Way, int], Entry]:
    merged: dict[tuple[Way, int], Entry] = {}
    for ledger in ledgers:
        for entry in ledger.entries():
            key = entry.way, entry.bits
            other = merged.get(key)
            merged[key] = entry if other is None else other + entry
    return merged


@dataclass(frozen=True)
class Change:
    """A hop's rule changed after `messages`; `reason` names the figures that did it."""

    messages: int
    before: Choice
    after: Choice
    reason: str


def refine(choice: Choice, seen: Sequence[Seen], curves: Curves, *, single: bool) -> Change | None:
    """The hop's rule as its messages teach it; None while there is nothing to change.

    >>> curves = Curves.simple((1 << 12, 1 << 20), (1_000, 60_000), (15_000, 60_001))
    >>> wrong = crossing(curves, single=True)
    >>> change = refine(wrong, [Seen(Way.PIPE, 65_536, 40, 110_000)], curves, single=True)
    >>> change.reason
    '66 kB cost 110 us by pipe, predicted 4.5 us; by shared memory 18 us is predicted'
    """
    known = [each for each in seen if each.count >= ENOUGH and each.way is not Way.COLD]
    if choice.mode != "auto" or not known:
        return None
    corrected = correct(curves, known)
    after = crossing(corrected, single=single)
    best: tuple[int, Seen] | None = None
    for each in known:
        by_pipe = each.way is Way.PIPE
        if by_pipe is not _by_pipe(choice, each) or by_pipe is _by_pipe(after, each):
            continue  # such messages go another way by now, or would go on as they do
        other = corrected.copied if each.way is Way.PIPE else corrected.pipe
        gain_ns = (each.cost_ns - other(each.mean_bytes)) * each.count
        if other(each.mean_bytes) < _GAIN * each.cost_ns and (best is None or gain_ns > best[0]):
            best = gain_ns, each
    if best is None:
        return None
    reason = _reason(best[1], known, curves, corrected)
    return Change(sum(each.count for each in seen), choice, replace(after, reason=reason), reason)


def correct(curves: Curves, seen: Sequence[Seen]) -> Curves:
    """The curves, each stretched to what was measured of its way."""
    known = [each for each in seen if each.count >= ENOUGH and each.way in {Way.PIPE, Way.COPIED}]
    errors = {way: _errors(curve, [each for each in known if each.way is way]) for way, curve in _ways(curves).items()}
    common = {way: _common(found) for way, found in errors.items()}
    pipe = _stretched(curves.pipe, errors[Way.PIPE] or {1: common[Way.COPIED]})
    copied = _stretched(curves.copied, errors[Way.COPIED] or {1: common[Way.PIPE]})
    return replace(curves, pipe=pipe, copied=copied)


def _ways(curves: Curves) -> dict[Way, Curve]:
    return {Way.PIPE: curves.pipe, Way.COPIED: curves.copied}


def _errors(curve: Curve, seen: Sequence[Seen]) -> dict[int, float]:
    """By bytes, how many times what was predicted was paid."""
    return {each.mean_bytes: each.cost_ns / curve(each.mean_bytes) for each in seen}


def _common(errors: Mapping[int, float]) -> float:
    """What the errors of one way say of the other."""
    middle = float(np.median(list(errors.values()))) if errors else 1.0
    return middle if 1 / _COMMON <= middle <= _COMMON else 1.0


def _stretched(curve: Curve, errors: Mapping[int, float]) -> Curve:
    """The curve times its errors: between two sizes by straight lines over their logarithms, flat beyond them."""
    sizes = sorted({*curve.sizes, *(size for size in errors if size > 1)})
    at, times = zip(*sorted(errors.items()), strict=True)
    factors = np.exp(np.interp(np.log(sizes), np.log(at), np.log(times)))
    return Curve.through(sizes, [max(int(cost), 1) for cost in curve.at(np.array(sizes)) * factors])


def _by_pipe(choice: Choice, seen: Seen) -> bool:
    return seen.mean_bytes < choice.threshold_bytes


def _reason(each: Seen, known: Sequence[Seen], curves: Curves, corrected: Curves) -> str:
    here, there = (PIPE, SHARED) if each.way is Way.PIPE else (SHARED, PIPE)
    curve, other = (curves.pipe, corrected.copied) if here == PIPE else (curves.copied, corrected.pipe)
    measured = any(each_.way is (Way.PIPE if there == PIPE else Way.COPIED) for each_ in known)
    return (
        f"{format_bytes(each.mean_bytes)} cost {format_ns(each.cost_ns)} by {here.replace('_', ' ')}, "
        f"predicted {format_ns(curve(each.mean_bytes))}; by {there.replace('_', ' ')} "
        f"{format_ns(other(each.mean_bytes))} {'by what was measured' if measured else 'is predicted'}"
    )


@dataclass(frozen=True)
class Forecast:
    """What carrying a hop's messages was to cost by the curves, in ns a message.

    In the mean if all of them went by the pipe, or in shared memory, or as they did; and of the messages as they went
    the median: `likely_ns` as foretold, `measured_ns` as paid.
    """

    pipe_ns: int = 0
    shared_memory_ns: int = 0
    taken_ns: int = 0
    likely_ns: int = 0
    measured_ns: int = 0


def foretell(seen: Sequence[Seen], curves: Curves) -> Forecast:
    """What the curves foretell of the messages that came by.

    >>> curves = Curves.simple((0, 1000), (0, 1000), (500, 600), 300)
    >>> foretell([Seen(Way.ZERO_COPY, 1000, 10, 400)], curves)
    Forecast(pipe_ns=1000, shared_memory_ns=300, taken_ns=300, likely_ns=300, measured_ns=400)
    """
    count = max(sum(each.count for each in seen), 1)

    def mean(cost: Callable[[Seen], int]) -> int:
        return sum(each.count * cost(each) for each in seen) // count

    ways = {Way.ZERO_COPY: curves.passed_on, Way.COLD: curves.cold}

    def shared(each: Seen) -> int:
        return ways.get(each.way, curves.copied)(each.mean_bytes)

    def taken(each: Seen) -> int:
        return curves.pipe(each.mean_bytes) if each.way is Way.PIPE else shared(each)

    return Forecast(
        mean(lambda each: curves.pipe(each.mean_bytes)),
        mean(shared),
        mean(taken),
        _median([(taken(each), each.count) for each in seen]),
        _median([(each.cost_ns, each.count) for each in seen]),
    )


def _median(weighted: Sequence[tuple[int, int]]) -> int:
    """The middle one of values that came so often each; 0 of none."""
    half = sum(count for _, count in weighted) / 2
    for value, count in sorted(weighted):
        half -= count
        if half <= 0:
            return value
    return 0
