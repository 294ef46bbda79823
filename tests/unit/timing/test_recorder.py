"""After a flush, the histograms hold all rows that were added."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.timing import HISTOGRAM_WORDS, LEDGER_WORDS, CostLedger, DurationRecorder, Histogram

durations = st.integers(-(1 << 40), 1 << 44)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[durations] * n), min_size=1, max_size=700)), st.data())
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
    st.lists(st.tuples(st.tuples(*[durations] * 3), st.integers(0, 2), st.lists(durations, min_size=1)), min_size=1),
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
