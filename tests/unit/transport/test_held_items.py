"""What is small shares messages; no bound on a message is exceeded, and nothing is held too long or lost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stagepipe.core import SKIP
from stagepipe.timing import HISTOGRAM_WORDS, Histogram, TransferKind
from stagepipe.transport import PacketKind, TransportRule
from stagepipe.transport.packet import PACKET_BYTES, unpack
from tests.support.packets import hold_all
from tests.support.transport.hops import LoopbackHop


class Held:
    """A sender whose writes the test sees, and the keys in each of its packets."""

    def __init__(self, loop, max_items=1000):
        self.sender = loop.hop.sender
        self.recorder, self.words = loop.hop.send_recorder, loop.hop.send_words
        self.sender.limit_message(max_items)
        self.number = 0
        self.packets = []
        self.lengths = []
        self.wait_ns = 0
        self.sender._write_packet = self.write
        self.sender._try_write = lambda packet: self.write(packet, 0) >= 0

    def write(self, packet, begin_ns):
        del begin_ns
        if self.wait_ns >= 0:
            entries = unpack(packet)
            self.packets.append([number for entry in entries for number in numbers_of(entry)])
            self.lengths.append(len(packet))
        return self.wait_ns

    def send(self, nbytes=20):
        """Send an item that is not plain."""
        self.number += 1
        return self.sender.send([{"x": [bytes(nbytes)]}], 0, (self.number,), 1, b"")

    def add(self):
        """Send one that is."""
        self.number += 1
        return self.sender.add(self.number, (self.number,))


def numbers_of(entry):
    if entry.kind == PacketKind.CHUNK:
        return range(entry.key[0], entry.key[0] + entry.count_or_bytes)
    return [entry.key[0]]


@pytest.fixture(name="make_held")
def held_maker():
    loop = LoopbackHop(TransportRule(threshold_bytes=32768))
    with loop.stack:
        yield lambda max_items=1000: Held(loop, max_items)


@pytest.mark.parametrize("kinds", ["send", "add", "mixed"])
def test_small_items_share_packets_in_order(make_held, kinds):
    held = make_held()
    for number in range(200):
        name = ("add", "send")[number // 3 % 2] if kinds == "mixed" else kinds
        assert getattr(held, name)()
    assert held.sender.flush()
    assert list(itertools.chain(*held.packets)) == list(range(1, 201))
    assert max(map(len, held.packets)) >= 20


@pytest.mark.parametrize("max_items", [1, 2, 7])
@pytest.mark.parametrize("name", ["send", "add"])
def test_a_message_has_no_more_items_than_it_may(make_held, max_items, name):
    held = make_held(max_items)
    for _ in range(50):
        if getattr(held, name)() is False:
            held.number -= 1
            held.send()
    assert max(map(len, held.packets)) == max_items


@pytest.mark.parametrize("nbytes", [100, 500, 1500, 3900, range(0, 4000, 77)])
def test_a_packet_is_no_longer_than_a_pipe_takes_at_once(make_held, nbytes):
    held = make_held()
    for number in range(100):
        held.send(nbytes if isinstance(nbytes, int) else nbytes[number % len(nbytes)])
    held.sender.flush()
    assert max(held.lengths) <= PACKET_BYTES
    assert sum(map(len, held.packets)) == 100


def test_a_marker_follows_held_items_and_the_last_one_leaves_at_once(make_held):
    held = make_held()
    held.add()
    held.sender.send_marker(PacketKind.END_OF_PARTS, 0, (2,), count=3)
    assert held.packets == []
    held.sender.send_marker(PacketKind.END_OF_SEGMENT, 0, (3,), count=3)
    assert held.packets == [[1, 2, 3]]


def test_a_seek_drops_held_items(make_held):
    held = make_held()
    held.send()
    held.add()
    held.sender.start_generation(2)
    assert held.sender.flush()
    assert held.packets == []


def test_an_interrupted_write_drops_held_items(make_held):
    held = make_held()
    held.add()
    held.wait_ns = -1
    assert not held.sender.flush()
    held.wait_ns = 0
    held.add()
    held.sender.flush()
    assert held.packets == [[2]]


def test_an_interrupted_write_of_a_full_message_is_reported(make_held):
    held = make_held(2)
    held.wait_ns = -1
    assert held.add() is True
    assert held.add() is None


@pytest.mark.parametrize("name", ["send", "add"])
def test_each_item_is_timed_and_the_write_is_divided_among_them(make_held, name):
    held = make_held()
    for _ in range(9):
        getattr(held, name)()
    held.wait_ns = 9_000_000
    held.sender.flush()
    held.recorder.flush()
    rows = [Histogram.from_words(row) for row in held.words.reshape(-1, HISTOGRAM_WORDS)]
    assert [row.count for row in rows] == [9] * 5
    assert rows[4].sum_ns == pytest.approx(held.sender.blocked_ns, abs=9)
    assert held.sender.blocked_ns == 9_000_000
    assert rows[2].max_ns > rows[2].percentile_ns(1), "each item waits for those after it"


def make_late(sender):
    """Let what is held have been held for a second."""
    sender._first_ns -= 10**9


@pytest.mark.parametrize("name", ["send", "add"])
def test_another_thread_writes_the_items_that_a_slow_call_holds_back(make_held, name):
    held = make_held()
    getattr(held, name)()
    assert held.sender.write_late()
    assert held.packets == [], "it is not late"
    make_late(held.sender)
    held.sender.write_late()
    assert held.packets == [[1]]
    getattr(held, name)()
    assert held.sender.flush()
    assert held.packets == [[1], [2]]
    held.recorder.flush()
    assert Histogram.from_words(held.words[:HISTOGRAM_WORDS]).count == 2


def test_a_late_write_to_a_full_pipe_keeps_the_held_items(make_held):
    held = make_held()
    held.add()
    held.wait_ns = -1
    make_late(held.sender)
    assert held.sender.write_late()
    held.wait_ns = 0
    assert held.sender.flush()
    assert held.packets == [[1]]


def test_the_watcher_is_called_when_items_are_held(make_held):
    held = make_held()
    calls = []
    held.sender.is_watched = False
    held.sender.watch = lambda: calls.append(1)
    held.add()
    held.add()
    assert calls == [1]
    assert held.sender.write_late(), "it must look again"
    held.sender.flush()
    assert held.sender.write_late(), "something was held since"
    assert not held.sender.write_late()


def test_tombstones_join_a_chunk(make_held):
    held = make_held()
    for number, value in enumerate([1, SKIP, SKIP, {"x": np.ones(2)}, SKIP]):
        assert held.sender.add(value, (number,))
    held.sender.flush()
    assert held.packets == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize("nbytes", [10, 3000], ids=["in a packet", "in a block"])
def test_tombstones_are_no_messages(nbytes):
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        hop = loop.hop
        hold_all(hop.sender)
        for number, item in enumerate([b"x" * nbytes, SKIP, b"x" * nbytes, SKIP, SKIP]):
            assert hop.send(item, key=(number,))
        assert hop.sender.flush()
        assert hop.send(SKIP, key=(5,))
        assert hop.sender.flush()
        kinds = [hop.receiver.receive_one(1).kind for _ in range(6)]
        assert kinds.count(PacketKind.ITEM) == 2
        hop.receiver.close()
        counts = hop.sender.counts
        assert counts.pipe_messages + counts.shared_memory_messages == 2
        for recorder, ledger in zip((hop.send_recorder, hop.receive_recorder), hop.ledgers, strict=True):
            recorder.flush()
            assert ledger.message_count == 2


@pytest.mark.parametrize(
    "items, kind",
    [
        ([1], TransferKind.PIPE),
        ([[[1]]], TransferKind.PIPE),
        ([1, 2, 3], TransferKind.PACKED),
        ([[[1]], [[2]]], TransferKind.PACKED),
        ([1, [[2]]], TransferKind.PACKED),
        ([b"x" * 3000] * 4, TransferKind.PACKED),
    ],
    ids=["one", "one, not plain", "a chunk", "entries", "an entry and a chunk of one", "a chunk in a block"],
)
def test_both_sides_record_whether_an_item_shares_its_packet(items, kind):
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        hop = loop.hop
        hold_all(hop.sender)
        for number, item in enumerate(items):
            assert hop.send(item, key=(number,))
        assert hop.sender.flush()
        for _ in items:
            assert hop.receiver.receive_one(1) is not None
        hop.receiver.close()
        for recorder, ledger in zip((hop.send_recorder, hop.receive_recorder), hop.ledgers, strict=True):
            recorder.flush()
            assert {entry.transfer_kind for entry in ledger.entries()} == {kind}
            assert ledger.message_count == len(items)
