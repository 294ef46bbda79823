"""Log-linear histograms of durations: 32 steps a doubling, so a value is known to better than 2 %.

The layout is HdrHistogram's (Tene, "How NOT to measure latency"): values below 64 ns have a step each; above, every
doubling has 32. Pure; used by workers to fill their part of the board and by the report to read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

STEPS = 1216
"""Steps of one histogram: up to 2**42 ns, which is 73 minutes; what is longer counts in the last one."""

WORDS = STEPS + 2
"""8-byte words of one histogram on the board: its steps, then the sum and the maximum, both in ns."""


def step_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The step of each duration (int64, ns; below zero counts as zero).

    >>> step_of(np.array([0, 63, 64, 65, 1000])).tolist()
    [0, 63, 64, 64, 190]
    """
    clipped = np.maximum(values, 0)
    shift = np.maximum(np.frexp(clipped.astype(np.float64))[1] - 6, 0)
    steps: NDArray[np.int64] = np.minimum(shift * 32 + (clipped >> shift), STEPS - 1)
    return steps


def _middles() -> NDArray[np.float64]:
    steps = np.arange(STEPS)
    shift = np.maximum(steps // 32 - 1, 0)
    low = (steps - shift * 32) << shift
    middles: NDArray[np.float64] = low + ((1 << shift) - 1) / 2
    return middles


MIDDLES = _middles()
"""The middle of each step, in ns."""


@dataclass(frozen=True)
class Histogram:
    """Durations in ns. `counts` has shape (STEPS,) and dtype uint64."""

    counts: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(STEPS, np.uint64))
    sum_ns: int = 0
    max_ns: int = 0

    @classmethod
    def of(cls, values: list[int]) -> Histogram:
        """The histogram of some durations in ns; below zero counts as zero.

        >>> Histogram.of([10, 20, 30]).percentile_ns(50)
        20
        """
        array = np.maximum(np.asarray(values, np.int64), 0)
        counts = np.bincount(step_of(array), minlength=STEPS).astype(np.uint64)
        return cls(counts, int(array.sum()), int(array.max(initial=0)))

    @classmethod
    def from_words(cls, words: NDArray[np.uint64]) -> Histogram:
        """The histogram that lies in `words` (shape (WORDS,)) of a board."""
        return cls(words[:STEPS].copy(), int(words[STEPS]), int(words[STEPS + 1]))

    @property
    def count(self) -> int:
        """How many durations it holds."""
        return int(self.counts.sum())

    @property
    def mean_ns(self) -> int:
        """The exact mean (0 of an empty one)."""
        return self.sum_ns // self.count if self.count else 0

    def percentile_ns(self, percent: float) -> int:
        """The value below which `percent` of the durations lie, good to 2 %, never above the maximum (0 if empty)."""
        total = self.count
        if not total:
            return 0
        at = int(np.searchsorted(np.cumsum(self.counts), max(percent / 100 * total, 1)))
        return min(int(MIDDLES[at]), self.max_ns)

    def __add__(self, other: Histogram) -> Histogram:
        """Both together."""
        return Histogram(self.counts + other.counts, self.sum_ns + other.sum_ns, max(self.max_ns, other.max_ns))
