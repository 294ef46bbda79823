"""Medians and ratios with their intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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


def _format_number(value: float, digits: int) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


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


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Divide pair by pair within a round: a disturbance in a round affects both values."""
    return estimate([numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=True)])


def quotient(numerator: Estimate, denominator: Estimate) -> Estimate:
    """Divide two figures that are shown, so that a reader can repeat the division.

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
