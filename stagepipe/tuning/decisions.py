"""Chooses the next change to measure, and decides whether it pays: a state machine over measured pairs. Pure.

A *change* is a set of overrides from the report of a run. It is measured in *pairs*: a run with the best layout so far
and a run with the change, on the same items. The order alternates (A B, B A, A B, ...), so that slow drift in the
machine's speed favours neither.

Invariants of `Tuner`:

- `overrides` changes only by a change whose interval is above 1, or back to an earlier layout;
- each change is tried at most once from one layout, so tuning ends.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import fmean, stdev
from typing import Final

MIN_PAIRS: Final = 4
"""Minimum pairs before a change is kept: A B B A, twice."""

MAX_PAIRS: Final = 8
"""Pairs after which a change is dropped if its interval still includes 1."""

MIN_GAIN: Final = 1.01
"""Minimum ratio of a kept change, however certain: one more process must gain at least this."""

_PAIRS_WITHOUT_HOPE: Final = 2
_RATIO_WITHOUT_HOPE: Final = 0.9
"""A change is dropped early if it has at least this many pairs, all below this ratio."""

_STUDENT_995: Final = (math.inf, 63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499)
"""The 0.995 quantiles of Student's t distribution, by degrees of freedom.

A change is judged up to five times, after 4 to 8 pairs. With 99 % each time, all judgements together have 95 %
(Bonferroni's inequality).
"""

_RATIO_TO_STRETCH: Final = 1.15
"""If the ratio of a kept change is surely above this, the next change of its kind may exceed the report's offer."""

_MAX_REFUSED: Final = 6
"""Refused changes in one layout after which the search ends. A report rarely offers more."""


@dataclass(frozen=True)
class RatioInterval:
    """The speed of one layout relative to another: the estimated ratio, and the bounds of its 95 % interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        """Format as `1.32 [1.30, 1.37]`."""
        return f"{self.ratio:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class PairOfRuns:
    """The durations in s of two runs on the same items: with the best layout so far, and with the change."""

    before_s: float
    after_s: float


def estimate_ratio(pairs: Sequence[PairOfRuns]) -> RatioInterval:
    """Return the ratio of the rates, after to before, from at least one pair.

    It uses Student's t interval for paired observations (R. Jain, The Art of Computer Systems Performance Analysis,
    1991, section 13.4.1) on the logarithms of the ratios, so a ratio and its inverse weigh the same. One pair shows
    no spread, so its interval has no bounds.

    >>> print(estimate_ratio([PairOfRuns(2.0, 1.0), PairOfRuns(2.2, 1.1), PairOfRuns(1.9, 1.0), PairOfRuns(2.1, 1.0)]))
    2.00 [1.77, 2.25]
    """
    logs = [math.log(pair.before_s / pair.after_s) for pair in pairs]
    mean = fmean(logs)
    if len(logs) == 1:
        return RatioInterval(math.exp(mean), 0.0, math.inf)
    quantile = _STUDENT_995[min(len(logs) - 1, len(_STUDENT_995) - 1)]
    half = quantile * stdev(logs) / math.sqrt(len(logs))
    return RatioInterval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def chain_ratios(intervals: Sequence[RatioInterval]) -> RatioInterval | None:
    """Return the ratio over several steps: the products of their ratios and bounds. Returns None without steps.

    The bounds are wider than 95 % requires, because all steps are unlikely to be at their bounds together.

    >>> print(chain_ratios([RatioInterval(2.0, 1.9, 2.1), RatioInterval(1.5, 1.4, 1.6)]))
    3.00 [2.66, 3.36]
    """
    if not intervals:
        return None
    ratios, lows, highs = zip(*((each.ratio, each.low, each.high) for each in intervals), strict=True)
    return RatioInterval(math.prod(ratios), math.prod(lows), math.prod(highs))


class Judgement(Enum):
    """The decision on a change from its pairs so far."""

    KEEP = "keep"
    DROP = "drop"
    MEASURE_MORE = "measure more"


def judge_pairs(pairs: Sequence[PairOfRuns]) -> Judgement:
    """Judge a change by its pairs. After `MAX_PAIRS` the answer is final.

    >>> judge_pairs([PairOfRuns(2.0, 1.0)] * 3)
    <Judgement.MEASURE_MORE: 'measure more'>
    >>> judge_pairs([PairOfRuns(2.0, 1.0)] * 4)
    <Judgement.KEEP: 'keep'>
    """
    ratios = [pair.before_s / pair.after_s for pair in pairs]
    if len(ratios) >= _PAIRS_WITHOUT_HOPE and max(ratios) < _RATIO_WITHOUT_HOPE:
        return Judgement.DROP
    if len(ratios) < MIN_PAIRS:
        return Judgement.MEASURE_MORE
    interval = estimate_ratio(pairs)
    if interval.low > 1 and interval.ratio >= MIN_GAIN:
        return Judgement.KEEP
    if interval.ratio < MIN_GAIN or len(ratios) >= MAX_PAIRS:
        return Judgement.DROP
    return Judgement.MEASURE_MORE


@dataclass(frozen=True, kw_only=True)
class TuneStep:
    """A change that was tried. Rates are source items per second; None if no pair was measured.

    `note` says why there is no interval, or why a kept step was undone.
    """

    number: int
    change: tuple[str, ...]
    is_kept: bool
    before_items_per_s: float | None = None
    after_items_per_s: float | None = None
    interval: RatioInterval | None = None
    note: str = ""


class Tuner:
    """The search: takes the offers of a report and returns the next change; takes its pairs and decides on the change.

    >>> tuner = Tuner(max_steps=8)
    >>> change = tuner.propose([("stages.decode.workers=3",)])
    >>> for _ in range(4):
    ...     judgement = tuner.add_pair(PairOfRuns(before_s=3.0, after_s=1.0), items=300)
    >>> tuner.overrides
    ('stages.decode.workers=3',)
    """

    def __init__(self, start: Iterable[str] = (), *, max_steps: int) -> None:
        """Begin with the overrides of the user. `max_steps` is the maximum number of changes to try."""
        self.steps: list[TuneStep] = []
        self._start = merge_overrides(start)
        self._layout = self._start
        self._max_steps = max_steps
        self._tried: set[tuple[frozenset[tuple[str, str]], frozenset[str]]] = set()
        self._refused_here = 0
        self._paid_well: tuple[str, ...] = ()
        self._change: tuple[str, ...] = ()
        self._pairs: list[PairOfRuns] = []
        self._items = 0

    @property
    def overrides(self) -> tuple[str, ...]:
        """The best layout so far."""
        return format_overrides(self._layout)

    @property
    def start_overrides(self) -> tuple[str, ...]:
        """The layout at the start."""
        return format_overrides(self._start)

    @property
    def is_at_limit(self) -> bool:
        """Whether `max_steps` changes have been tried."""
        return len(self.steps) >= self._max_steps

    @property
    def is_measuring(self) -> bool:
        """Whether a change is proposed and not yet decided."""
        return bool(self._change)

    @property
    def kept_steps(self) -> int:
        """The number of kept changes."""
        return sum(step.is_kept for step in self.steps)

    def propose(self, offers: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
        """Return the first of `offers` that is new in this layout, or None if tuning has ended."""
        if self.is_at_limit or self._refused_here >= _MAX_REFUSED:
            return None
        here = frozenset(self._layout.items())
        for change in itertools.chain.from_iterable((*self._stretch(offer), offer) for offer in offers):
            key = (here, frozenset(change))
            if change and key not in self._tried and merge_overrides(change, self._layout) != self._layout:
                self._tried.add(key)
                self._change, self._pairs, self._items = change, [], 0
                return change
        return None

    def with_change(self) -> tuple[str, ...]:
        """Return the best layout so far, plus the current change."""
        return format_overrides(merge_overrides(self._change, self._layout))

    def add_pair(self, pair: PairOfRuns, *, items: int) -> Judgement:
        """Add a pair of runs on `items` source items, and decide on the change if there are enough pairs."""
        self._pairs.append(pair)
        self._items = items
        judgement = judge_pairs(self._pairs)
        if judgement is Judgement.KEEP:
            self._layout = merge_overrides(self._change, self._layout)
            self._end_step(is_kept=True)
            self._refused_here = 0
            interval = self.steps[-1].interval
            self._paid_well = self.steps[-1].change if interval and interval.low >= _RATIO_TO_STRETCH else ()
        elif judgement is Judgement.DROP:
            self.refuse()
        return judgement

    def refuse(self, note: str = "") -> None:
        """Drop the current change: it cannot run, or there is no time for it."""
        self._end_step(is_kept=False, note=note)
        self._refused_here += 1

    def undo_all_but_first(self, note: str) -> None:
        """Undo all kept steps but the first, which was compared with the start itself."""
        kept = [index for index, step in enumerate(self.steps) if step.is_kept]
        for index in kept[1:]:
            self.steps[index] = replace(self.steps[index], is_kept=False, note=note)
        self._layout = merge_overrides(self.steps[kept[0]].change if kept else (), self._start)

    def _stretch(self, offer: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        """Yield an offer of more workers with double the current number, if the last such change paid well.

        A report offers only what its run supports, often one more worker. A stage that waits for a server may need 30.
        If the double number does not pay, the original offer comes next.
        """
        last = merge_overrides(self._paid_well)
        offered = merge_overrides(offer)
        for path, workers in last.items():
            more = offered.get(path, "")
            if path.endswith(".workers") and workers.isdecimal() and more.isdecimal() and int(more) > int(workers):
                factor = 2 * int(workers) / int(more)
                if factor > 1:
                    window = offered.get("window", "")
                    wider = {"window": str(math.ceil(int(window) * factor))} if window.isdecimal() else {}
                    yield format_overrides({**offered, path: str(2 * int(workers)), **wider})

    def _end_step(self, *, is_kept: bool, note: str = "") -> None:
        pairs = self._pairs
        self.steps.append(
            TuneStep(
                number=len(self.steps) + 1,
                change=self._change,
                is_kept=is_kept,
                before_items_per_s=compute_rate([pair.before_s for pair in pairs], self._items),
                after_items_per_s=compute_rate([pair.after_s for pair in pairs], self._items),
                interval=estimate_ratio(pairs) if pairs else None,
                note=note,
            )
        )
        self._change = ()


def compute_rate(durations_s: Sequence[float], items: int) -> float | None:
    """Return the items per second of several runs on the same items, from the geometric mean as in the ratio."""
    return items / math.exp(fmean(map(math.log, durations_s))) if durations_s else None


def merge_overrides(overrides: Iterable[str], earlier: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return values by path. A later override replaces an earlier one.

    >>> merge_overrides(["window=8", "stages.a.workers=2", "window=16"])
    {'window': '16', 'stages.a.workers': '2'}
    """
    merged = dict(earlier or {})
    for override in overrides:
        path, _, value = override.partition("=")
        merged[path] = value
    return merged


def format_overrides(layout: Mapping[str, str]) -> tuple[str, ...]:
    """Return a layout as overrides."""
    return tuple(f"{path}={value}" for path, value in layout.items())
