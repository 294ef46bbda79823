"""What is added row by row is, after a flush, the histogram of all of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.timing import WORDS, Histogram, Recorder

durations = st.integers(-(1 << 40), 1 << 44)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[durations] * n), min_size=1, max_size=700)), st.data())
def test_a_recorder_makes_the_histogram_of_what_was_added(rows, data):
    columns = len(rows[0])
    words = np.zeros(columns * WORDS, np.uint64)
    recorder = Recorder(words, columns)
    half = data.draw(st.integers(0, len(rows)))
    for row in rows[:half]:
        recorder.add(row)
    recorder.flush()
    for row in rows[half:]:
        recorder.add(row)
    recorder.flush()
    recorder.flush()
    for column, of_words in zip(zip(*rows, strict=True), words.reshape(columns, WORDS), strict=True):
        found, expected = Histogram.from_words(of_words), Histogram.of(list(column))
        assert np.array_equal(found.counts, expected.counts)
        assert (found.sum_ns, found.max_ns) == (expected.sum_ns, expected.max_ns)


def test_rows_reach_the_board_by_themselves_when_there_are_many():
    words = np.zeros(2 * WORDS, np.uint64)
    recorder = Recorder(words, 2)
    for number in range(256):
        recorder.add((number, 1))
    assert Histogram.from_words(words[:WORDS]).count == 256
