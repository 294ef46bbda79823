"""A histogram is good to 2 %, never above its maximum, and adds up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.timing import Histogram
from stagepipe.timing.histogram import MIDDLES, STEPS, WORDS, step_of

LONGEST = 2**42
durations = st.integers(0, LONGEST - 1)
lists = st.lists(durations, min_size=1, max_size=200)


def exact(values, percent):
    """The smallest value that has at least `percent` of all at or below it."""
    return sorted(values)[max(math.ceil(percent / 100 * len(values)), 1) - 1]


@given(durations)
def test_a_single_duration_is_known_to_two_percent(value):
    assert MIDDLES[step_of(np.array([value]))[0]] == pytest.approx(value, rel=0.02, abs=0.5)


@given(lists, st.sampled_from([1, 25, 50, 90, 99, 99.9, 100]))
def test_percentiles_are_within_two_percent_of_the_exact_ones(values, percent):
    assert Histogram.of(values).percentile_ns(percent) == pytest.approx(exact(values, percent), rel=0.02, abs=1)


@given(lists, st.floats(0, 100))
def test_no_percentile_exceeds_the_maximum(values, percent):
    assert 0 <= Histogram.of(values).percentile_ns(percent) <= max(values)


@given(lists)
def test_percentiles_grow_with_the_percent(values):
    histogram = Histogram.of(values)
    found = [histogram.percentile_ns(p) for p in (0, 10, 50, 90, 99, 100)]
    assert found == sorted(found)


@given(lists, lists)
def test_a_sum_is_the_histogram_of_both(one, other):
    both, expected = Histogram.of(one) + Histogram.of(other), Histogram.of(one + other)
    assert np.array_equal(both.counts, expected.counts)
    assert (both.sum_ns, both.max_ns, both.count) == (expected.sum_ns, expected.max_ns, len(one) + len(other))


@given(lists)
def test_the_mean_is_exact(values):
    assert Histogram.of(values).mean_ns == sum(values) // len(values)


@given(st.lists(st.integers(0, 2**62), min_size=1))
def test_steps_grow_with_the_durations(values):
    steps = step_of(np.sort(np.array(values, np.int64)))
    assert (np.diff(steps) >= 0).all()
    assert steps.min() >= 0
    assert steps.max() < STEPS


def test_what_is_longer_than_the_last_step_counts_in_it():
    histogram = Histogram.of([LONGEST, 2**60])
    assert histogram.counts[STEPS - 1] == 2
    assert histogram.max_ns == 2**60


def test_a_clock_that_goes_backwards_counts_as_zero():
    histogram = Histogram.of([-5, -(2**50)])
    assert histogram.counts[0] == 2
    assert histogram.percentile_ns(99) == 0


def test_an_empty_histogram_is_all_zero():
    empty = Histogram()
    assert (empty.count, empty.mean_ns, empty.max_ns, empty.percentile_ns(50)) == (0, 0, 0, 0)
    assert (empty + Histogram.of([7])).percentile_ns(50) == 7


@given(lists)
def test_it_comes_back_from_the_words_of_a_board(values):
    histogram = Histogram.of(values)
    words = np.zeros(WORDS, np.uint64)
    words[:STEPS], words[STEPS], words[STEPS + 1] = histogram.counts, histogram.sum_ns, histogram.max_ns
    again = Histogram.from_words(words)
    words[:] = 0  # the board goes on changing, the histogram does not
    assert np.array_equal(again.counts, histogram.counts)
    assert (again.sum_ns, again.max_ns) == (histogram.sum_ns, histogram.max_ns)
