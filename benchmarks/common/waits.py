"""Waits between batches as counts in bins of 2 %, which add up over rounds and stay small in a file. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MIN_WAITS_FOR_P99 = 200
_STEP = math.log(1.02)
_SHORTEST_S = 1e-9


@dataclass(frozen=True)
class PooledWaits:
    """The 99th percentile of `count` waits, or the longest where they are too few for a percentile."""

    count: int
    value_s: float
    is_p99: bool


def count_waits(waits_s: Iterable[float]) -> dict[str, int]:
    """Return the number of waits by bin. Keys are text, as JSON's are.

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
