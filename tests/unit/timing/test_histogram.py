"""A histogram is accurate to 2 %, never exceeds its maximum, and adds up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.timing import HISTOGRAM_WORDS, Histogram
from stagepipe.timing.histogram import BUCKET_COUNT, BUCKET_MIDPOINTS_NS, bucket_index

LONGEST_NS = 2**42
durations = st.integers(0, LONGEST_NS - 1)
lists = st.lists(durations, min_size=1, max_size=200)


def exact(values, percent):
    """The smallest value with at least `percent` of all values at or below it."""
    return sorted(values)[max(math.ceil(percent / 100 * len(values)), 1) - 1]


@given(durations)
def test_a_single_duration_is_accurate_to_two_percent(value):
    assert BUCKET_MIDPOINTS_NS[bucket_index(np.array([value]))[0]] == pytest.approx(value, rel=0.02, abs=0.5)


@given(lists, st.sampled_from([1, 25, 50, 90, 99, 99.9, 100]))
def test_percentiles_are_within_two_percent_of_the_exact_ones(values, percent):
    assert Histogram.from_values_ns(values).percentile_ns(percent) == pytest.approx(
        exact(values, percent), rel=0.02, abs=1
    )


@given(lists, st.floats(0, 100))
def test_no_percentile_exceeds_the_maximum(values, percent):
    assert 0 <= Histogram.from_values_ns(values).percentile_ns(percent) <= max(values)


@given(lists)
def test_percentiles_grow_with_the_percent(values):
    histogram = Histogram.from_values_ns(values)
    percentiles = [histogram.percentile_ns(percent) for percent in (0, 10, 50, 90, 99, 100)]
    assert percentiles == sorted(percentiles)


@given(lists, lists)
def test_a_sum_is_the_histogram_of_both(one, other):
    both, expected = (
        Histogram.from_values_ns(one) + Histogram.from_values_ns(other),
        Histogram.from_values_ns(one + other),
    )
    assert np.array_equal(both.counts, expected.counts)
    assert (both.sum_ns, both.max_ns, both.count) == (expected.sum_ns, expected.max_ns, len(one) + len(other))


@given(lists)
def test_the_mean_is_exact(values):
    assert Histogram.from_values_ns(values).mean_ns == sum(values) // len(values)


@given(st.lists(st.integers(0, 2**62), min_size=1))
def test_buckets_grow_with_the_durations(values):
    buckets = bucket_index(np.sort(np.array(values, np.int64)))
    assert (np.diff(buckets) >= 0).all()
    assert buckets.min() >= 0
    assert buckets.max() < BUCKET_COUNT


def test_durations_beyond_the_last_bucket_count_in_it():
    histogram = Histogram.from_values_ns([LONGEST_NS, 2**60])
    assert histogram.counts[BUCKET_COUNT - 1] == 2
    assert histogram.max_ns == 2**60


def test_a_clock_that_goes_backwards_counts_as_zero():
    histogram = Histogram.from_values_ns([-5, -(2**50)])
    assert histogram.counts[0] == 2
    assert histogram.percentile_ns(99) == 0


def test_an_empty_histogram_is_all_zero():
    empty = Histogram()
    assert (empty.count, empty.mean_ns, empty.max_ns, empty.percentile_ns(50)) == (0, 0, 0, 0)
    assert (empty + Histogram.from_values_ns([7])).percentile_ns(50) == 7


@given(lists)
def test_a_histogram_survives_the_words_of_a_board(values):
    histogram = Histogram.from_values_ns(values)
    words = np.zeros(HISTOGRAM_WORDS, np.uint64)
    words[:BUCKET_COUNT], words[BUCKET_COUNT], words[BUCKET_COUNT + 1] = (
        histogram.counts,
        histogram.sum_ns,
        histogram.max_ns,
    )
    copied = Histogram.from_words(words)
    words[:] = 0  # the histogram is a copy, and does not change with the board
    assert np.array_equal(copied.counts, histogram.counts)
    assert (copied.sum_ns, copied.max_ns) == (histogram.sum_ns, histogram.max_ns)
