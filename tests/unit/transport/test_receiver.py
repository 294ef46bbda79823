"""Older packets are dropped and their blocks released; newer ones are kept; waits end when they should."""

from __future__ import annotations

import os
import pickle
import threading
import time

import numpy as np
import pytest

from stagepipe.core import TransportError
from stagepipe.timing import HISTOGRAM_WORDS, Histogram
from stagepipe.transport import PacketKind, TransportRule, UnreadableItemError, receiver
from stagepipe.transport.packet import join_entries, pack, pack_entry
from tests.support.transport.hops import LARGE, LoopbackHop


def test_a_packet_of_an_older_generation_is_dropped_and_its_blocks_released(loop):
    items = [3, np.zeros(LARGE), [np.zeros(9000, np.uint8) for _ in range(200)], b"x" * 9000]
    for item in items:
        loop.hop.send(item, generation=1)
    loop.hop.send("new", generation=2)
    assert loop.sender_pool.arena.allocator.live_bytes > 0
    assert loop.hop.receive(2) == "new"
    assert loop.settle() == 0


def test_a_packet_of_a_newer_generation_is_kept_until_that_generation_begins(loop):
    loop.hop.send(np.arange(LARGE), generation=3)
    loop.hop.send("after it", generation=3)
    begin = time.monotonic()
    for generation in (1, 2, 2):
        assert loop.hop.receiver.receive(generation) is None
    assert time.monotonic() - begin < 10
    assert loop.hop.receive(3)[-1] == LARGE - 1
    assert loop.hop.receive(3) == "after it"


def test_a_kept_packet_of_a_skipped_generation_is_dropped(loop):
    loop.hop.send(np.arange(LARGE), generation=3)
    assert loop.hop.receiver.receive(1) is None
    loop.hop.send("new", generation=4)
    assert loop.hop.receive(4) == "new"
    assert loop.settle() == 0


def test_receive_returns_none_after_the_timeout(loop):
    begin = time.monotonic()
    assert loop.hop.receiver.receive(1, 0.0) is None
    assert loop.hop.receiver.receive(1, 0.05) is None
    assert 0.05 <= time.monotonic() - begin < 10


def test_after_a_wait_the_next_read_waits_first_and_a_packet_in_the_pipe_is_found_without_one(loop, monkeypatch):
    hop = loop.hop
    waiter = hop.receiver._waiter

    class SendsOnce:
        """Waits as the receiver's own waiter does, for a packet that is sent only then."""

        def __init__(self, value: str) -> None:
            self._values = [value]

        def read(self, timeout_s: float) -> bytes | None:
            time.sleep(0.02)
            if self._values:
                hop.send(self._values.pop())
            return waiter.read(timeout_s)

    monkeypatch.setattr(hop.receiver, "_waiter", SendsOnce("first"))
    assert hop.receiver.receive_one(1).value == "first"
    reads, read = [], receiver.read_packet
    monkeypatch.setattr(receiver, "read_packet", lambda fd: reads.append(fd) or read(fd))
    monkeypatch.setattr(hop.receiver, "_waiter", SendsOnce("second"))
    assert hop.receiver.receive_one(1).value == "second"
    assert not reads
    monkeypatch.setattr(hop.receiver, "_waiter", waiter)
    hop.send("third")
    assert hop.receiver.receive_one(1, 0.0).value == "third"


def test_an_interruption_does_not_lose_earlier_items(loop):
    hop = loop.hop
    threading.Timer(0.02, hop.send, ("first",)).start()
    assert hop.receiver.receive_one(1).value == "first"
    hop.send("second")
    hop.is_interrupted = True
    assert hop.receiver.receive_one(1).value == "second"
    assert hop.receiver.receive(1) is None


def test_an_interruption_ends_the_wait_at_once(loop, monkeypatch):
    monkeypatch.setattr(receiver, "IDLE_TICK_INTERVAL_S", 60)

    def interrupt():
        loop.hop.is_interrupted = True
        loop.hop.wake_event.set()

    threading.Timer(0.05, interrupt).start()
    begin = time.monotonic()
    assert loop.hop.receiver.receive(1) is None
    assert 0.04 <= time.monotonic() - begin < 30
    assert loop.hop.receiver.starved_ns > 30_000_000


def test_waiting_without_a_writer_does_not_spin(loop):
    os.close(os.dup(loop.hop.pipe.write_fd))
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, loop.hop.pipe.write_fd)
    os.close(null_fd)
    begin = time.process_time()
    assert loop.hop.receiver.receive(1, 0.3) is None
    assert time.process_time() - begin < 0.15


def test_a_wait_releases_blocks(loop):
    arrived = loop.hop.transfer(np.zeros(LARGE))
    threading.Timer(0.05, lambda: loop.hop.send("next")).start()
    del arrived
    assert loop.hop.receive() == "next"
    loop.sender_pool.collect_releases()
    assert loop.sender_pool.arena.allocator.live_bytes == 0


def test_every_item_is_timed(loop):
    for _ in range(7):
        loop.hop.send(np.zeros(LARGE))
        time.sleep(0.002)
        loop.hop.receive()
    loop.hop.send_recorder.flush()
    loop.hop.receive_recorder.flush()
    queue, receive, decode, cost = (
        Histogram.from_words(row) for row in loop.hop.receive_words.reshape(4, HISTOGRAM_WORDS)
    )
    encode, copy, *_ = (Histogram.from_words(row) for row in loop.hop.send_words.reshape(5, HISTOGRAM_WORDS))
    assert [histogram.count for histogram in (queue, receive, decode, cost)] == [7] * 4
    assert queue.percentile_ns(1) > 1_500_000
    work_ns = encode.sum_ns + copy.sum_ns + receive.sum_ns + decode.sum_ns
    assert work_ns <= cost.sum_ns < work_ns + queue.sum_ns, "the cost is the work of both sides, without the waits"
    assert loop.hop.receiver.queue_ns <= queue.max_ns


def test_a_missing_class_is_named(loop):
    data = b"\x80\x05cnot_there\nNothing\n."
    os.write(loop.hop.pipe.write_fd, pack(PacketKind.ITEM, (1, (0,), 1, b""), pickle_data=data))
    with pytest.raises(TransportError, match="ModuleNotFoundError: No module named 'not_there'"):
        loop.hop.receive()


def test_an_item_that_cannot_be_unpickled_holds_no_block():
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        loop.hop.send([np.zeros(LARGE), FailsToUnpickle(np.zeros(LARGE))])
        with pytest.raises(TransportError, match="not today"):
            loop.hop.receive()
        assert loop.settle() == 0


class FailsToUnpickle:
    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        return _raise_value_error, (self.array,)


def _raise_value_error(array):
    raise ValueError("not today")


# ---------------------------------------------------------------------------------------------- several in one packet


def write_together(loop, items, generation=1, kind=PacketKind.ITEM):
    """Write items, or markers without one, as the entries of one packet."""
    entries = [
        pack_entry(kind, (generation, (number,), 1, b"meta"), 50, pickle_data=data)
        for number, data in enumerate(item if isinstance(item, bytes) else pickle.dumps(item) for item in items)
    ]
    os.write(loop.hop.pipe.write_fd, join_entries(entries, time.perf_counter_ns()))


def test_the_entries_of_a_packet_come_one_after_the_other(any_transfer):
    write_together(any_transfer, ["a", "b", "c"])
    write_together(any_transfer, [b"", b""], kind=PacketKind.TOMBSTONE)
    received = [any_transfer.hop.receiver.receive(1, 1) for _ in range(5)]
    assert [(each.kind, each.key, each.value, each.meta) for each in received] == [
        *[(PacketKind.ITEM, (number,), value, b"meta") for number, value in enumerate("abc")],
        *[(PacketKind.TOMBSTONE, (number,), None, b"meta") for number in range(2)],
    ]
    assert any_transfer.hop.receiver.receive(1, 0.0) is None


def test_each_entry_is_named_before_it_is_unpickled(loop):
    named = []
    loop.hop.receiver.on_item = lambda key: named.append(key[0])
    write_together(loop, [0, b"no pickle", 2])
    assert loop.hop.receive() == 0
    assert named == [0]
    with pytest.raises(UnreadableItemError) as caught:
        loop.hop.receive()
    assert (caught.value.key, named) == ((1,), [0, 1])
    assert loop.hop.receive() == 2


def test_unwanted_entries_are_not_unpickled(loop):
    loop.hop.receiver.unwanted_keys = frozenset({(1,)})
    write_together(loop, ["a", b"no pickle", "c"])
    assert [loop.hop.receive() for _ in range(3)] == ["a", None, "c"]


def test_a_seek_in_the_middle_of_a_packet_drops_the_rest(loop):
    write_together(loop, ["a", "b", "c"])
    write_together(loop, ["new"], generation=2)
    assert loop.hop.receive() == "a"
    assert loop.hop.receive(2) == "new"


def test_entries_of_a_newer_generation_wait_for_it(loop):
    write_together(loop, ["a", "b"], generation=2)
    assert loop.hop.receiver.receive(1) is None
    assert [loop.hop.receive(2) for _ in range(2)] == ["a", "b"]


def test_each_entry_is_timed_when_it_is_opened(loop):
    write_together(loop, ["a", "b"])
    loop.hop.receive()
    time.sleep(0.01)
    loop.hop.receive()
    loop.hop.receive_recorder.flush()
    queue, receive, decode, cost = (
        Histogram.from_words(row) for row in loop.hop.receive_words.reshape(4, HISTOGRAM_WORDS)
    )
    assert [histogram.count for histogram in (queue, receive, decode, cost)] == [2] * 4
    assert queue.max_ns > 10_000_000, "the second entry waited in hand"
    assert cost.sum_ns == 2 * 50 + receive.sum_ns + decode.sum_ns
