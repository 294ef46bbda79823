"""Medians and ratios with their intervals, tables of them, targets with verdicts, and waits. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, median, stdev

MIN_COVERAGE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median over rounds, and the interval that contains the true median with probability `coverage`."""

    value: float
    low: float
    high: float
    coverage: float

    def text(self, digits: int = 2) -> str:
        """Format as `1.32 [1.30, 1.37]`."""
        value, low, high = (_format_number(number, digits) for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"

    def invert(self) -> Estimate:
        """Return the estimate of 1 / x."""
        return Estimate(1 / self.value, 1 / self.high, 1 / self.low, self.coverage)


def _format_number(value: float, digits: int) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def format_three_digits(value: float) -> str:
    """Format with three digits.

    >>> [format_three_digits(value) for value in (1234.5, 45.0, 0.789)]
    ['1,234', '45.0', '0.789']
    """
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def format_times(figure: Estimate) -> str:
    """Format a figure with its interval, each with three digits: `12.0 [11.0, 15.0]`."""
    return (
        f"{format_three_digits(figure.value)} [{format_three_digits(figure.low)}, {format_three_digits(figure.high)}]"
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Return the median with its sign-test interval: the k-th smallest and the k-th largest value.

    The interval assumes nothing about the distribution, so a round disturbed by another process does no harm. It is
    exact and needs six rounds for 95 %. With fewer rounds it is the whole range; `coverage` is its probability.
    (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2.)

    >>> estimate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    Estimate(value=3.5, low=1.0, high=6.0, coverage=0.96875)
    """
    ordered, n = sorted(values), len(values)
    if not n:
        return Estimate(math.nan, math.nan, math.nan, 0.0)
    cut = 0
    while cut + 1 < (n + 1) // 2 and _coverage(n, cut + 1) >= MIN_COVERAGE:
        cut += 1
    return Estimate(median(ordered), ordered[cut], ordered[n - 1 - cut], _coverage(n, cut))


def _coverage(n: int, cut: int) -> float:
    """Return the probability that the median lies in the range without the `cut` lowest and `cut` highest values."""
    return 1.0 - 2.0 * sum(math.comb(n, dropped) for dropped in range(cut + 1)) / 2.0**n


def find_coverage(rounds: int) -> float:
    """Return the coverage of the interval over this number of rounds."""
    return estimate([1.0] * rounds).coverage


def describe_rounds(rounds: int) -> str:
    """Name the number of rounds and the coverage of their intervals.

    >>> describe_rounds(6)
    'medians of 6 rounds, 97 % intervals'
    """
    return f"medians of {rounds} rounds, {100 * find_coverage(rounds):.0f} % intervals"


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Divide pair by pair within a round: a disturbance in a round affects both values."""
    return estimate([numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=True)])


def quotient(numerator: Estimate, denominator: Estimate) -> Estimate:
    """Divide two displayed figures, so that a reader can repeat the division.

    The interval goes from the lowest to the highest quotient of the two intervals. It contains the true ratio if both
    contain their medians, which has at least the probability `coverage` (Bonferroni).

    >>> quotient(Estimate(6.0, 5.0, 8.0, 0.97), Estimate(2.0, 1.0, 2.5, 0.97))
    Estimate(value=3.0, low=2.0, high=8.0, coverage=0.94)
    """
    return Estimate(
        numerator.value / denominator.value,
        numerator.low / denominator.high,
        numerator.high / denominator.low,
        round(max(0.0, numerator.coverage + denominator.coverage - 1.0), 12),
    )


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, which is 0 for a single value.

    >>> mean_and_error([1.0, 2.0, 3.0])
    (2.0, 0.5773502691896258)
    """
    return fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Target:
    """A target, the measured value, and the verdict. `met` is None if this run did not measure or decide it."""

    text: str
    measured: str = ""
    met: bool | None = None

    def line(self) -> str:
        """Format as `PASS  text: measured`."""
        undecided = "undecided" if self.measured else "  --"
        verdict = {True: "PASS", False: "MISS", None: undecided}[self.met]
        return f"{verdict}  {self.text}: {self.measured or 'not measured in this run'}"


def judge(text: str, figure: Estimate | None, measured: str, *, at_most: float = inf, at_least: float = -inf) -> Target:
    """Judge a figure; None: not measured. `measured` describes it, with `{}` in place of the figure."""
    if figure is None:
        return Target(text)
    return Target(text, measured.format(figure.text()), is_met(figure, at_most=at_most, at_least=at_least))


def is_met(figure: Estimate, *, at_most: float = inf, at_least: float = -inf) -> bool | None:
    """Return whether the whole interval is within the limits; None if only a part of it is, or rounds are missing.

    >>> [is_met(Estimate(1.0, 0.9, high, 0.97), at_most=1.1) for high in (1.05, 1.2)]
    [True, None]
    """
    return compare(figure, at_most=at_most, at_least=at_least) if figure.coverage >= MIN_COVERAGE else None


def compare(figure: Estimate, *, at_most: float = inf, at_least: float = -inf) -> bool | None:
    """Do the same for an interval of any coverage, which is printed with the figure."""
    if at_least <= figure.low and figure.high <= at_most:
        return True
    return False if figure.high < at_least or figure.low > at_most else None


VERDICTS = {True: "met", False: "missed", None: "undecided"}


MIN_WAITS_FOR_P99 = 200
_STEP = math.log(1.02)
_SHORTEST_S = 1e-9


@dataclass(frozen=True)
class PooledWaits:
    """The 99th percentile of `count` waits, or the longest wait if they are too few for a percentile."""

    count: int
    value_s: float
    is_p99: bool


def count_waits(waits_s: Iterable[float]) -> dict[str, int]:
    """Return the number of waits by bin. Keys are strings, as in JSON.

    >>> count_waits([1.0, 1.001, 1.05])
    {'0': 2, '2': 1}
    """
    counts = Counter(round(math.log(max(wait_s, _SHORTEST_S)) / _STEP) for wait_s in waits_s)
    return {str(number): counts[number] for number in sorted(counts)}


def pool_waits(rounds: Iterable[Mapping[str, int]]) -> PooledWaits:
    """Add the rounds' counts, and return the percentile by nearest rank."""
    total: Counter[int] = Counter()
    for counts in rounds:
        total.update({int(number): count for number, count in counts.items()})
    is_p99 = total.total() >= MIN_WAITS_FOR_P99
    longer = total.total() - math.ceil(0.99 * total.total()) if is_p99 else 0
    for number in sorted(total, reverse=True):
        if longer < total[number]:
            return PooledWaits(total.total(), math.exp(number * _STEP), is_p99)
        longer -= total[number]
    return PooledWaits(0, math.nan, is_p99=False)


def format_seconds(value: float) -> str:
    """Format with three digits and a unit.

    >>> [format_seconds(value) for value in (1.234, 0.0456, 0.00000789)]
    ['1.23 s', '45.6 ms', '7.89 us']
    """
    factor, unit = next((entry for entry in ((1.0, "s"), (1e-3, "ms")) if value >= entry[0]), (1e-6, "us"))
    return f"{value / factor:.3g} {unit}"


def format_waits(waits: PooledWaits) -> str:
    """Format the percentile, or the longest, with the number of waits.

    >>> format_waits(PooledWaits(120, 0.5, is_p99=False))
    'max of 120: 500 ms'
    """
    return f"{'p99' if waits.is_p99 else 'max'} of {waits.count:,}: {format_seconds(waits.value_s)}"


Figures = dict[str, dict[str, list[float]]]
"""A value for each round, by contestant and figure."""


def require_same(found: Figures, figure: str) -> None:
    """Raise AssertionError unless all contestants delivered the same: the same value in all rounds."""
    values = {value for of_one in found.values() for value in of_one[figure]}
    assert len(values) == 1, f"the contestants differ in {figure}: {sorted(values)}"


_WIDTH = 26


def format_figures(title: str, found: Figures, figures: Sequence[str], reference: str = "") -> Iterator[str]:
    """Format a line for each contestant: medians, and their ratios to `reference` within a round.

    >>> list(format_figures("a hop", {"Pipe": {"us": [2.0] * 6}}, ["us"]))[1:]
    ['      us', 'Pipe  2.00 [2.00, 2.00]']
    """
    width = 2 + max(map(len, found))
    yield f"{title}: {describe_rounds(len(next(iter(found.values()))[figures[0]]))}"
    yield _line("", width, [cell for name in figures for cell in (name, *([f"/ {reference}"] if reference else []))])
    for name, own in found.items():
        cells = []
        for figure in figures:
            cells.append(estimate(own[figure]).text())
            if reference:
                cells.append(ratio(own[figure], found[reference][figure]).text())
        yield _line(name, width, cells)


def _line(name: str, width: int, cells: Sequence[str]) -> str:
    return (f"{name:{width}}" + "".join(f"{cell:{_WIDTH}}" for cell in cells)).rstrip()
