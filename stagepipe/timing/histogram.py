"""Log-linear histograms of durations: 32 buckets per doubling, so values are accurate to 2 %.

The layout is that of HdrHistogram (http://hdrhistogram.org; Gil Tene, "How NOT to Measure Latency"): a bucket for each
value below 64 ns, 32 buckets per doubling above. Pure: workers fill histograms on the board, the report reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

BUCKET_COUNT = 1216
"""The buckets of a histogram: up to 2**42 ns (73 minutes); longer durations count in the last one."""

HISTOGRAM_WORDS = BUCKET_COUNT + 2
"""The 8-byte words of a histogram on the board: its buckets, then the sum and the maximum, both in ns."""


def bucket_index(values_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bucket of each duration: int64 of the same shape as `values_ns`. Negative durations count as zero.

    >>> bucket_index(np.array([0, 63, 64, 65, 1000])).tolist()
    [0, 63, 64, 64, 190]
    """
    clipped = np.maximum(values_ns, 0)
    shift = np.maximum(np.frexp(clipped.astype(np.float64))[1] - 6, 0)
    buckets: NDArray[np.int64] = np.minimum(shift * 32 + (clipped >> shift), BUCKET_COUNT - 1)
    return buckets


def add_to_histogram(
    words: NDArray[np.uint64],
    buckets: NDArray[np.int64],
    values_ns: NDArray[np.int64],
    counts: NDArray[np.int64] | None = None,
) -> None:
    """Add durations of at least 0 to the histogram in `words`, uint64 of shape (HISTOGRAM_WORDS,).

    `buckets` is what `bucket_index` returns for them. `counts`: how often each counts, at least once; None: once.
    """
    words[:BUCKET_COUNT] += np.bincount(buckets, counts, BUCKET_COUNT).astype(np.uint64)
    words[BUCKET_COUNT] += np.uint64((values_ns if counts is None else values_ns * counts).sum())
    words[BUCKET_COUNT + 1] = max(int(words[BUCKET_COUNT + 1]), int(np.max(values_ns, initial=0)))


def add_durations(words: NDArray[np.uint64], durations_ns: Sequence[int]) -> None:
    """Add durations to the histogram in `words`, uint64 of shape (HISTOGRAM_WORDS,). Negative ones count as zero."""
    values_ns = np.maximum(pack_integers(durations_ns), 0)
    add_to_histogram(words, bucket_index(values_ns), values_ns)


def pack_integers(values: Sequence[int]) -> NDArray[np.int64]:
    """An array of integers; `numpy.array` takes twice as long.

    >>> pack_integers([3, -4])
    array([ 3, -4])
    """
    return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)


def _bucket_midpoints_ns() -> NDArray[np.float64]:
    buckets = np.arange(BUCKET_COUNT)
    shift = np.maximum(buckets // 32 - 1, 0)
    lower_bounds = (buckets - shift * 32) << shift
    midpoints: NDArray[np.float64] = lower_bounds + ((1 << shift) - 1) / 2
    return midpoints


BUCKET_MIDPOINTS_NS = _bucket_midpoints_ns()
"""The midpoint of each bucket, in ns: float64 of shape (BUCKET_COUNT,)."""


@dataclass(frozen=True)
class Histogram:
    """A histogram of durations. `counts` is uint64 of shape (BUCKET_COUNT,); histograms add up with `+`."""

    counts: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(BUCKET_COUNT, np.uint64))
    sum_ns: int = 0
    max_ns: int = 0

    @classmethod
    def from_values_ns(cls, values_ns: list[int]) -> Histogram:
        """The histogram of durations in ns. Negative durations count as zero.

        >>> Histogram.from_values_ns([10, 20, 30]).percentile_ns(50)
        20
        """
        words = np.zeros(HISTOGRAM_WORDS, np.uint64)
        add_durations(words, values_ns)
        return cls.from_words(words)

    @classmethod
    def from_words(cls, words: NDArray[np.uint64]) -> Histogram:
        """A copy of the histogram in the words of a board: uint64 of shape (HISTOGRAM_WORDS,)."""
        return cls(words[:BUCKET_COUNT].copy(), int(words[BUCKET_COUNT]), int(words[BUCKET_COUNT + 1]))

    @property
    def count(self) -> int:
        """The number of durations."""
        return int(self.counts.sum())

    @property
    def mean_ns(self) -> int:
        """The exact mean, rounded down; 0 if empty."""
        return self.sum_ns // self.count if self.count else 0

    def percentile_ns(self, percent: float) -> int:
        """The percentile in ns, for `percent` from 0 to 100: accurate to 2 %, at most the maximum; 0 if empty."""
        total = self.count
        if not total:
            return 0
        bucket = int(np.searchsorted(np.cumsum(self.counts), max(percent / 100 * total, 1)))
        return min(int(BUCKET_MIDPOINTS_NS[bucket]), self.max_ns)

    def count_from(self, low_ns: float) -> int:
        """The number of durations of `low_ns` and more, accurate to 2 % of it.

        >>> Histogram.from_values_ns([10, 20, 30]).count_from(20)
        2
        """
        return int(self.counts[low_ns <= BUCKET_MIDPOINTS_NS].sum())

    def __add__(self, other: Histogram) -> Histogram:
        """The histogram of the durations of both."""
        return Histogram(self.counts + other.counts, self.sum_ns + other.sum_ns, max(self.max_ns, other.max_ns))

    def __sub__(self, earlier: Histogram) -> Histogram:
        """The durations that were added since `earlier`, the same histogram then. `max_ns` is that of all.

        >>> first = Histogram.from_values_ns([10])
        >>> (first + Histogram.from_values_ns([30]) - first).percentile_ns(50)
        30
        """
        return Histogram(self.counts - earlier.counts, self.sum_ns - earlier.sum_ns, self.max_ns)
