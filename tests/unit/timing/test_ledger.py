"""The ledger separates costs by transfer kind and size, and loses none."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.timing import LEDGER_WORDS, CostLedger, DurationRecorder, Histogram, TransferKind

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
