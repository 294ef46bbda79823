"""After a flush, the histograms hold all rows that were added."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.timing import HISTOGRAM_WORDS, DurationRecorder, Histogram

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
