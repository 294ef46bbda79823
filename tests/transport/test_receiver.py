"""Older packets are dropped and their blocks given back; newer ones wait in hand; a wait ends when it should."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from stagepipe.core import TransportError
from stagepipe.timing import WORDS, Histogram
from stagepipe.transport import Kind, Policy, receiver
from stagepipe.transport.packet import pack
from tests.transport.loop import LARGE, Loop


def test_a_packet_of_the_past_is_dropped_and_its_blocks_given_back(loop):
    items = [3, np.zeros(LARGE), [np.zeros(9000, np.uint8) for _ in range(200)], b"x" * 9000]
    for item in items:
        loop.hop.send(item, generation=1)
    loop.hop.send("new", generation=2)
    assert loop.before.arena.allocator.live > 0
    assert loop.hop.receive(2) == "new"
    assert loop.settle() == 0


def test_a_packet_of_the_future_waits_in_hand_until_its_reader_has_turned(loop):
    loop.hop.send(np.arange(LARGE), generation=3)
    loop.hop.send("after it", generation=3)
    begin = time.monotonic()
    for generation in (1, 2, 2):
        assert loop.hop.receiver.receive(generation) is None
    assert time.monotonic() - begin < 1
    assert loop.hop.receive(3)[-1] == LARGE - 1
    assert loop.hop.receive(3) == "after it"


def test_a_packet_in_hand_that_becomes_the_past_is_dropped(loop):
    loop.hop.send(np.arange(LARGE), generation=3)
    assert loop.hop.receiver.receive(1) is None
    loop.hop.send("new", generation=4)
    assert loop.hop.receive(4) == "new"
    assert loop.settle() == 0


def test_nothing_within_the_time_is_none(loop):
    begin = time.monotonic()
    assert loop.hop.receiver.receive(1, 0.0) is None
    assert loop.hop.receiver.receive(1, 0.05) is None
    assert 0.05 <= time.monotonic() - begin < 1


def test_an_interruption_ends_the_wait_at_once(loop, monkeypatch):
    monkeypatch.setattr(receiver, "IDLE_S", 60)

    def stop():
        loop.hop.stopped = True
        loop.hop.bell.ring()

    threading.Timer(0.05, stop).start()
    begin = time.monotonic()
    assert loop.hop.receiver.receive(1) is None
    assert 0.04 <= time.monotonic() - begin < 30
    assert loop.hop.receiver.starved_ns > 30_000_000


def test_no_writer_left_is_a_wait_like_any_other_and_does_not_spin(loop):
    os.close(os.dup(loop.hop.pipe.write_fd))
    spare = os.open(os.devnull, os.O_WRONLY)
    os.dup2(spare, loop.hop.pipe.write_fd)
    os.close(spare)
    begin = time.process_time()
    assert loop.hop.receiver.receive(1, 0.3) is None
    assert time.process_time() - begin < 0.15


def test_a_wait_gives_back_what_died_meanwhile(loop):
    arrived = loop.hop.carry(np.zeros(LARGE))
    threading.Timer(0.05, lambda: loop.hop.send("next")).start()
    del arrived
    assert loop.hop.receive() == "next"
    loop.before.collect()
    assert loop.before.arena.allocator.live == 0


def test_every_item_is_timed(loop):
    for _ in range(7):
        loop.hop.send(np.zeros(LARGE))
        time.sleep(0.002)
        loop.hop.receive()
    loop.hop.send_rows.flush()
    loop.hop.receive_rows.flush()
    queue, receive, decode, cost = (Histogram.from_words(row) for row in loop.hop.receive_words.reshape(4, WORDS))
    encode, copy, _, _ = (Histogram.from_words(row) for row in loop.hop.send_words.reshape(4, WORDS))
    assert [h.count for h in (queue, receive, decode, cost)] == [7] * 4
    assert queue.percentile_ns(1) > 1_500_000
    worked = encode.sum_ns + copy.sum_ns + receive.sum_ns + decode.sum_ns
    assert worked <= cost.sum_ns < worked + queue.sum_ns, "the cost is the work of both sides, and none of the waiting"
    assert loop.hop.receiver.queue_ns <= queue.max_ns


def test_a_class_that_is_not_there_is_named(loop):
    pickle = b"\x80\x05cnot_there\nNothing\n."
    os.write(loop.hop.pipe.write_fd, pack(Kind.ITEM, (1, (0,), 1, b""), pickle=pickle))
    with pytest.raises(TransportError, match="ModuleNotFoundError: No module named 'not_there'"):
        loop.hop.receive()


def test_an_item_that_cannot_be_rebuilt_leaves_no_block_taken():
    loop = Loop(Policy(2048))
    with loop.stack:
        loop.hop.send([np.zeros(LARGE), Refuses(np.zeros(LARGE))])
        with pytest.raises(TransportError, match="not today"):
            loop.hop.receive()
        assert loop.settle() == 0


class Refuses:
    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        return _refuse, (self.array,)


def _refuse(array):
    raise ValueError("not today")
