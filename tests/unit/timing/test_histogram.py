"""Histograms are accurate to 2 %, ledgers separate costs by kind and size, and recorders fill both with all rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.timing import HISTOGRAM_WORDS, LEDGER_WORDS, CostLedger, DurationRecorder, Histogram, TransferKind
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


messages = st.lists(
    st.tuples(st.sampled_from(TransferKind), st.integers(0, 1 << 45), st.integers(0, 10**9)), max_size=60
)


def make_ledger() -> CostLedger:
    return CostLedger(np.zeros(LEDGER_WORDS, np.uint64))


@given(messages)
def test_every_message_counts_in_its_cell(rows):
    ledger = make_ledger()
    for kind, nbytes, ns in rows:
        ledger.add(np.array([kind]), np.array([nbytes]), np.array([ns]))
    assert ledger.message_count == len(rows)
    entries = ledger.entries()
    assert sum(entry.total_bytes for entry in entries) == sum(nbytes for _, nbytes, _ in rows)
    assert sum(entry.cost_histogram.sum_ns for entry in entries) == sum(ns for *_, ns in rows)
    assert {entry.transfer_kind for entry in entries} == {kind for kind, *_ in rows}
    for entry in entries:
        costs_ns = [
            ns for kind, n, ns in rows if kind is entry.transfer_kind and min(n.bit_length(), 39) == entry.size_bits
        ]
        assert entry.cost_histogram.count == len(costs_ns)
        assert entry.cost_histogram.max_ns == max(costs_ns)


@given(messages)
def test_adding_many_messages_equals_adding_each(rows):
    one, many = make_ledger(), make_ledger()
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)] or [np.zeros(0, np.int64)] * 3
    kinds = np.array([kind for kind, nbytes, _ in rows], np.int64)
    many.add(kinds, columns[1], columns[2])
    for kind, nbytes, ns in zip(kinds, columns[1], columns[2], strict=True):
        one.add(np.array([kind]), np.array([nbytes]), np.array([ns]))
    np.testing.assert_array_equal(one.words, many.words)


def test_two_workers_entries_add_up():
    one, other = make_ledger(), make_ledger()
    for ledger, ns in ((one, 10), (other, 30)):
        ledger.add(np.array([TransferKind.COPIED]), np.array([1000]), np.array([ns]))
    total = one.entries()[0] + other.entries()[0]
    assert (total.mean_bytes, total.cost_histogram.sum_ns, total.cost_histogram.count) == (1000, 40, 2)


def test_a_recorder_fills_histograms_and_ledger_from_one_row():
    words, ledger = np.zeros(1218, np.uint64), make_ledger()
    recorder = DurationRecorder(words, 1, ledger)
    for number in range(40):
        recorder.add((number,), (TransferKind.PIPE, 100, 7))
    assert ledger.message_count == 32, "the first flush comes early"
    recorder.flush()
    assert ledger.message_count == Histogram.from_words(words).count == 40


spans = st.integers(-(1 << 40), 1 << 44)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[spans] * n), min_size=1, max_size=700)), st.data())
def test_a_recorder_fills_the_histograms_of_its_rows(rows, data):
    columns = len(rows[0])
    words = np.zeros(columns * HISTOGRAM_WORDS, np.uint64)
    recorder = DurationRecorder(words, columns)
    half = data.draw(st.integers(0, len(rows)))
    for row in rows[:half]:
        recorder.add(row)
    recorder.flush()
    for row in rows[half:]:
        recorder.add(row)
    recorder.flush()
    recorder.flush()
    for column, column_words in zip(zip(*rows, strict=True), words.reshape(columns, HISTOGRAM_WORDS), strict=True):
        recorded, expected = Histogram.from_words(column_words), Histogram.from_values_ns(list(column))
        assert np.array_equal(recorded.counts, expected.counts)
        assert (recorded.sum_ns, recorded.max_ns) == (expected.sum_ns, expected.max_ns)


def test_many_rows_reach_the_board_without_an_explicit_flush():
    words = np.zeros(2 * HISTOGRAM_WORDS, np.uint64)
    recorder = DurationRecorder(words, 2)
    for number in range(1024):
        recorder.add((number, 1))
    assert Histogram.from_words(words[:HISTOGRAM_WORDS]).count == 1024


@given(
    st.lists(st.tuples(st.tuples(*[spans] * 3), st.integers(0, 2), st.lists(spans, min_size=1)), min_size=1),
    st.integers(0, 3),
)
def test_rows_that_differ_in_one_column_count_like_single_rows(groups, flushes):
    words = np.zeros((2, 3 * HISTOGRAM_WORDS), np.uint64)
    ledger_words = np.zeros((2, LEDGER_WORDS), np.uint64)
    alike, single = (DurationRecorder(words[side], 3, CostLedger(ledger_words[side])) for side in (0, 1))
    for number, (row, column, values) in enumerate(groups):
        entry = (number % 4, 100 * number, row[2])
        alike.add_alike(row, entry, column, values)
        for value in values:
            single.add((*row[:column], value, *row[column + 1 :]), entry)
        if number < flushes:
            alike.flush()
    alike.flush()
    single.flush()
    assert np.array_equal(words[0], words[1])
    assert np.array_equal(ledger_words[0], ledger_words[1])
