"""The rate that a progress bar shows: steady between batches, quick to follow a change. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

_MIN_AVERAGING_NS: Final = 5_000_000_000
"""Minimum averaging time: the rate follows a change within seconds and does not flicker."""


class RateEstimator:
    """The rate of a count over the last 5 s, or since the last increase if that is longer ago: a batch may take longer.

    The time before the first count (start-up, imports) is left out.

    >>> rate = RateEstimator()
    >>> [rate.update(second * 10**9, count) for second, count in enumerate((0, 0, 64, 64, 128))]
    [0.0, 0.0, 64.0, 32.0, 42.666666666666664]
    """

    def __init__(self) -> None:
        self._growth_points: deque[tuple[int, int]] = deque()
        """(time in ns, count) at each increase; the rate is measured from the first."""

    def update(self, now_ns: int, count: int) -> float:
        """Return the rate per second at `now_ns`. Call it often, with a count that never decreases."""
        points = self._growth_points
        if not count:
            points.clear()
        if not points or count > points[-1][1]:
            points.append((now_ns, count))
        while len(points) > 2 and points[1][0] <= now_ns - _MIN_AVERAGING_NS:  # noqa: PLR2004 - keep one increase
            points.popleft()
        oldest_ns, oldest_count = points[0]
        return (count - oldest_count) * 1e9 / (now_ns - oldest_ns) if now_ns > oldest_ns else 0.0
