"""Medians and ratios with their intervals. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

_WANTED = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median over rounds, and the interval in which the true one lies with probability `coverage`."""

    value: float
    low: float
    high: float
    coverage: float

    def text(self, digits: int = 2) -> str:
        """`1.32 [1.30, 1.37]`."""
        return f"{_short(self.value, digits)} [{_short(self.low, digits)}, {_short(self.high, digits)}]"


def _short(value: float, digits: int) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def estimate(values: Sequence[float]) -> Estimate:
    """The median with its sign-test interval: of the ordered values, the k-th from below and from above.

    It assumes nothing of the distribution, so a round that a neighbour disturbed does no harm; it is exact, and needs
    six rounds for 95 %. With fewer it is the whole range, and `coverage` says what that is worth.
    (Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2.)

    >>> estimate([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    Estimate(value=3.5, low=1.0, high=6.0, coverage=0.96875)
    """
    ordered, n = sorted(values), len(values)
    if not n:
        return Estimate(math.nan, math.nan, math.nan, 0.0)
    cut = 0
    while cut + 1 < (n + 1) // 2 and _coverage(n, cut + 1) >= _WANTED:
        cut += 1
    return Estimate(median(ordered), ordered[cut], ordered[n - 1 - cut], _coverage(n, cut))


def _coverage(n: int, cut: int) -> float:
    """The probability that the median lies between the values number `cut` from below and from above."""
    return 1.0 - 2.0 * sum(math.comb(n, at) for at in range(cut + 1)) / 2.0**n


def ratio(of: Sequence[float], to: Sequence[float]) -> Estimate:
    """Pair by pair within a round: what disturbs a round disturbs both."""
    return estimate([a / b for a, b in zip(of, to, strict=True)])


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, which is 0 of a single value.

    >>> mean_and_error([1.0, 2.0, 3.0])
    (2.0, 0.5773502691896258)
    """
    return fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
