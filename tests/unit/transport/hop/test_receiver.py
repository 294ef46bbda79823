"""Older packets are dropped and their blocks released; newer ones are kept; waits end when they should."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from stagepipe.core import TransportError
from stagepipe.timing import HISTOGRAM_WORDS, Histogram
from stagepipe.transport import PacketKind, TransferPolicy
from stagepipe.transport.hop import receiver
from stagepipe.transport.wire import pack
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
    assert time.monotonic() - begin < 1
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
    assert 0.05 <= time.monotonic() - begin < 1


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
    pickle = b"\x80\x05cnot_there\nNothing\n."
    os.write(loop.hop.pipe.write_fd, pack(PacketKind.ITEM, (1, (0,), 1, b""), pickle_data=pickle))
    with pytest.raises(TransportError, match="ModuleNotFoundError: No module named 'not_there'"):
        loop.hop.receive()


def test_an_item_that_cannot_be_unpickled_holds_no_block():
    loop = LoopbackHop(TransferPolicy(threshold_bytes=2048))
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
