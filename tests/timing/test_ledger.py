"""The ledger keeps costs apart by way and size, and loses none."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.timing import LEDGER_WORDS, Histogram, Ledger, Recorder, Way

messages = st.lists(st.tuples(st.sampled_from(Way), st.integers(0, 1 << 45), st.integers(0, 10**9)), max_size=60)


def empty() -> Ledger:
    return Ledger(np.zeros(LEDGER_WORDS, np.uint64))


@given(messages)
def test_every_message_is_in_its_cell(rows):
    ledger = empty()
    for way, nbytes, ns in rows:
        ledger.add(np.array([way]), np.array([nbytes]), np.array([ns]))
    assert ledger.count == len(rows)
    entries = ledger.entries()
    assert sum(entry.nbytes for entry in entries) == sum(nbytes for _, nbytes, _ in rows)
    assert sum(entry.cost.sum_ns for entry in entries) == sum(ns for *_, ns in rows)
    assert {entry.way for entry in entries} == {way for way, *_ in rows}
    for entry in entries:
        mine = [ns for way, n, ns in rows if way is entry.way and min(n.bit_length(), 39) == entry.bits]
        assert entry.cost.count == len(mine)
        assert entry.cost.max_ns == max(mine)


@given(messages)
def test_many_at_once_are_as_one_by_one(rows):
    one, many = empty(), empty()
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)] or [np.zeros(0, np.int64)] * 3
    cells = np.array([way for way, nbytes, _ in rows], np.int64)
    many.add(cells, columns[1], columns[2])
    for cell, nbytes, ns in zip(cells, columns[1], columns[2], strict=True):
        one.add(np.array([cell]), np.array([nbytes]), np.array([ns]))
    np.testing.assert_array_equal(one.words, many.words)


def test_two_workers_entries_add_up():
    one, other = empty(), empty()
    for ledger, ns in ((one, 10), (other, 30)):
        ledger.add(np.array([Way.COPIED]), np.array([1000]), np.array([ns]))
    together = one.entries()[0] + other.entries()[0]
    assert (together.mean_bytes, together.cost.sum_ns, together.cost.count) == (1000, 40, 2)


def test_a_recorder_fills_histograms_and_ledger_from_one_row():
    words, ledger = np.zeros(1218, np.uint64), empty()
    recorder = Recorder(words, 1, ledger)
    for number in range(40):
        recorder.add((number,), (Way.PIPE, 100, 7))
    assert ledger.count == 32, "the first come early"
    recorder.flush()
    assert ledger.count == Histogram.from_words(words).count == 40
