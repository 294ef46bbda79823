"""The rate that a progress bar shows: steady behind batches, quick to follow a change. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

_SPAN_NS: Final = 5_000_000_000
"""A rate is over so long at least: it follows a change within seconds, and does not flicker."""


class Rate:
    """Counts a second over the last 5 s, or over as long as the last growth goes back: a batch may take longer.

    The time before the first count (starting, importing) is left out.

    >>> rate = Rate()
    >>> [rate.per_s(second * 10**9, count) for second, count in enumerate((0, 0, 64, 64, 128))]
    [0.0, 0.0, 64.0, 32.0, 42.666666666666664]
    """

    def __init__(self) -> None:
        self._points: deque[tuple[int, int]] = deque()  # (time, count) of each growth; the first is where to begin

    def per_s(self, now_ns: int, count: int) -> float:
        """The rate at `now_ns`; call it often, with a count that never falls."""
        points = self._points
        if not count:
            points.clear()
        if not points or count > points[-1][1]:
            points.append((now_ns, count))
        while len(points) > 2 and points[1][0] <= now_ns - _SPAN_NS:  # noqa: PLR2004 - one growth stays
            points.popleft()
        then_ns, before = points[0]
        return (count - before) * 1e9 / (now_ns - then_ns) if now_ns > then_ns else 0.0
