"""Small items share a packet while they are made quickly, and only then; no bound on a packet is exceeded."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from stagepipe.timing import HISTOGRAM_WORDS, SEND_PHASES, DurationRecorder, Histogram
from stagepipe.transport import PacketKind
from stagepipe.transport.packet import PACKET_BYTES, pack_entry, unpack
from stagepipe.transport.packing import SendCounts
from stagepipe.transport.small_items import Outbox

QUICK_NS = 5_000
SLOW_NS = 60_000


class RecordedOutbox:
    """An outbox whose clock the test moves, and the packets that it writes."""

    latest = None

    def __init__(self, max_entries=1000, quick_items=200):
        RecordedOutbox.latest = self
        self.has_real_clock = False
        self.now_ns = 1
        self.write_ns = 0
        self.number = 0
        self.packets = []
        self.wait_ns = 0
        self.words = np.zeros(len(SEND_PHASES) * HISTOGRAM_WORDS, np.uint64)
        self.recorder = DurationRecorder(self.words, len(SEND_PHASES))
        self.outbox = Outbox(self.write, lambda packet: self.write(packet, 0) >= 0, self.recorder, SendCounts())
        self.outbox.max_entries = max_entries
        for _ in range(quick_items):
            self.add()
        self.outbox.flush()
        self.add()
        self.packets.clear()

    def write(self, packet, begin_ns):
        if self.wait_ns >= 0:
            self.packets.append([entry.key[0] for entry in unpack(packet)])
            assert len(packet) <= PACKET_BYTES
        self.now_ns += self.write_ns + max(self.wait_ns, 0)
        return self.wait_ns

    def read_clock(self):
        return time.perf_counter_ns() if self.has_real_clock else self.now_ns

    def add(self, after_ns=QUICK_NS, nbytes=20, is_last=False):
        self.now_ns += after_ns
        self.number += 1
        entry = pack_entry(PacketKind.ITEM, (1, (self.number,), 1, b""), 0, pickle_data=bytes(nbytes))
        times = (1000, 500, self.now_ns, len(entry))
        return self.outbox.add(entry, self.now_ns, times, is_last=is_last)

    def use_real_clock(self):
        self.outbox.flush()
        self.has_real_clock = True
        self.now_ns = time.perf_counter_ns()
        self.add()
        self.packets.clear()

    @property
    def lengths(self):
        return [len(packet) for packet in self.packets]


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    def read_clock():
        return RecordedOutbox.latest.read_clock()

    monkeypatch.setattr("stagepipe.transport.small_items.perf_counter_ns", read_clock)


def test_quick_items_share_packets_in_order():
    outbox = RecordedOutbox()
    first = outbox.number + 1
    for _ in range(100):
        assert outbox.add()
    outbox.outbox.flush()
    assert max(outbox.lengths) >= 20
    assert list(itertools.chain(*outbox.packets)) == list(range(first, first + 100))


@pytest.mark.parametrize("max_entries", [1, 2, 7])
def test_a_packet_has_no_more_entries_than_it_may(max_entries):
    outbox = RecordedOutbox(max_entries)
    for _ in range(50):
        outbox.add()
    assert max(outbox.lengths) == max_entries


@pytest.mark.parametrize("nbytes", [100, 500, 1500, 3900, range(0, 4000, 77)])
def test_a_packet_is_no_longer_than_a_pipe_takes_at_once(nbytes):
    outbox = RecordedOutbox()
    for number in range(100):
        outbox.add(1000, nbytes if isinstance(nbytes, int) else nbytes[number % len(nbytes)])
    outbox.outbox.flush()
    assert sum(outbox.lengths) == 100


def test_nothing_is_held_longer_than_200_us_by_quick_items():
    outbox = RecordedOutbox()
    for _ in range(100):
        outbox.add(40_000)
    assert max(outbox.lengths) == 6


def test_an_item_that_took_long_is_written_at_once_with_those_before_it():
    outbox = RecordedOutbox()
    for after_ns in (QUICK_NS, QUICK_NS, SLOW_NS):
        outbox.add(after_ns)
    assert outbox.lengths == [3]


@pytest.mark.parametrize("quick_items", [0, 200])
def test_a_packet_that_took_long_to_write_does_not_make_the_next_item_slow(quick_items):
    outbox = RecordedOutbox(max_entries=4, quick_items=quick_items)
    outbox.write_ns = 1_000_000
    for _ in range(120):
        outbox.add()
    assert set(outbox.lengths[-10:]) == {4}


def test_items_of_a_slow_process_are_never_held():
    outbox = RecordedOutbox(quick_items=0)
    for _ in range(300):
        outbox.add(SLOW_NS)
    assert set(outbox.lengths) == {1}


def test_one_slow_item_in_five_is_too_many():
    outbox = RecordedOutbox()
    for number in range(2000):
        outbox.add(QUICK_NS if number % 5 else SLOW_NS)
    outbox.packets.clear()
    for number in range(500):
        outbox.add(QUICK_NS if number % 5 else SLOW_NS)
    assert set(outbox.lengths) == {1}


def test_one_slow_item_in_thirty_is_not():
    outbox = RecordedOutbox()
    for number in range(2000):
        outbox.add(QUICK_NS if number % 30 else SLOW_NS)
    assert np.mean(outbox.lengths) > 8


def test_an_item_after_a_wait_is_written_at_once():
    outbox = RecordedOutbox()
    outbox.outbox.flush()
    outbox.add()
    assert outbox.lengths == [1]


def test_the_last_entry_is_written_at_once_after_those_held():
    outbox = RecordedOutbox()
    outbox.add()
    outbox.add(is_last=True)
    assert outbox.lengths == [2]


def test_what_is_held_is_dropped_by_a_seek():
    outbox = RecordedOutbox()
    outbox.add()
    outbox.outbox.discard()
    assert outbox.outbox.flush()
    assert outbox.packets == []


def test_what_is_held_is_dropped_when_the_write_is_interrupted():
    outbox = RecordedOutbox()
    outbox.add()
    outbox.wait_ns = -1
    assert not outbox.outbox.flush()
    outbox.wait_ns = 0
    outbox.add()
    outbox.outbox.flush()
    assert outbox.lengths == [1]


def test_each_item_is_timed_and_the_write_is_divided_among_them():
    outbox = RecordedOutbox()
    outbox.recorder.flush()
    before = [Histogram.from_words(row) for row in outbox.words.reshape(-1, HISTOGRAM_WORDS)]
    for _ in range(9):
        outbox.add()
    outbox.wait_ns = 10_000_000
    outbox.outbox.flush()
    outbox.recorder.flush()
    after = [Histogram.from_words(row) for row in outbox.words.reshape(-1, HISTOGRAM_WORDS)]
    counts = [new.count - old.count for new, old in zip(after, before, strict=True)]
    encode, copy, _, _, wait = (new.sum_ns - old.sum_ns for new, old in zip(after, before, strict=True))
    assert counts == [9] * 5
    assert (encode, copy) == (9 * 1000, 9 * 500)
    assert wait == pytest.approx(outbox.outbox.blocked_ns, abs=9)
    assert outbox.outbox.blocked_ns == 10_000_000


def test_a_call_that_is_slow_after_quick_ones_does_not_keep_what_is_held():
    outbox = RecordedOutbox()
    outbox.use_real_clock()
    begin = time.monotonic()
    outbox.add()
    while not outbox.packets and time.monotonic() - begin < 10:
        time.sleep(0.001)  # a call that does not come back
    assert outbox.lengths == [1]
    outbox.add()
    outbox.outbox.flush()
    assert list(itertools.chain(*outbox.packets)) == [outbox.number - 1, outbox.number]


def test_a_full_pipe_keeps_what_is_held():
    outbox = RecordedOutbox()
    outbox.use_real_clock()
    outbox.wait_ns = -1
    outbox.add()
    time.sleep(0.1)
    outbox.wait_ns = 0
    assert outbox.outbox.flush()
    assert list(itertools.chain(*outbox.packets)) == [outbox.number]
