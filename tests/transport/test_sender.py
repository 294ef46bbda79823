"""What is sent is counted, timed and let go of; what is not sent leaves nothing behind."""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np
import pytest
import torch

from stagepipe.core import ArenaFullError, TransportError
from stagepipe.timing import WORDS, Histogram
from stagepipe.transport import Kind, Policy, make_pipe
from tests.transport.loop import LARGE, Hop, Line, Loop, Processes, loaned


def fill(pipe):
    """Nothing more fits in."""
    try:
        while True:
            os.write(pipe.write_fd, bytes(64))
    except BlockingIOError:
        return


def cut_off(hop, after_s=0.03):
    """Interrupt the wait that is going on."""

    def stop():
        hop.stopped = True
        hop.bell.ring()

    threading.Timer(after_s, stop).start()


def test_the_box_is_empty_after_sending(any_way):
    box = [3]
    any_way.hop.send_from(box)
    assert box == []


@pytest.mark.parametrize("kept", [False, True])
def test_an_interrupted_send_gives_every_block_back(line, kept):
    line.first.send({"a": np.arange(LARGE), "t": torch.ones(LARGE)})
    received = line.first.receive()
    fill(line.second.pipe)
    middle = line.memories[1]
    box = [[received, loaned(middle), np.ones(LARGE), "x" * 9000]]
    if not kept:
        del received
    cut_off(line.second)
    assert line.second.send_from(box) is False
    if kept:
        line.settle()
        assert middle.arena.allocator.live == 0
        assert received["a"][-1] == LARGE - 1
        del received
    assert line.settle() == 0


def test_a_send_whose_reader_is_gone_gives_every_block_back(line):
    line.first.send(np.arange(LARGE))
    box = [[line.first.receive(), np.ones(LARGE)]]
    os.close(line.second.pipe.read_fd)
    with pytest.raises(BrokenPipeError):
        line.second.send_from(box)
    os.dup2(line.second.pipe.write_fd, line.second.pipe.read_fd)  # so that it can be closed
    assert line.settle() == 0


def test_a_full_arena_in_the_middle_of_packing_gives_back_what_was_taken_on():
    line = Line(Policy(2048))
    with line.stack:
        line.memories[1].arena.allocator.limit = 1 << 20
        line.first.send(np.arange(LARGE))
        with pytest.raises(ArenaFullError):
            line.second.send_from([[line.first.receive(), np.ones(2 << 20, np.uint8)]])
        assert line.settle() == 0
        line.second.send("the next")
        assert line.second.receive() == "the next"


def test_a_packet_that_cannot_be_made_gives_back_what_was_taken_on(line):
    line.first.send(np.arange(LARGE))
    box = [[line.first.receive(), np.ones(LARGE)]]
    with pytest.raises(TransportError, match="cursor"):
        line.second.sender.send(box, 1, (0,), 1, bytes(5000))
    assert line.settle() == 0


def test_no_reference_to_an_item_is_kept(loop):
    array = np.arange(LARGE)
    before = sys.getrefcount(array)
    loop.hop.send({"array": array})
    assert sys.getrefcount(array) == before


@pytest.mark.parametrize(
    "item,kind",
    [
        (3, "pipe"),
        (np.zeros(99), "pipe"),
        (np.zeros(LARGE), "shared_memory"),
        ([np.zeros((3, 3), order="F"), np.zeros(LARGE)], "mixed"),
        ([np.zeros(9), np.zeros(LARGE)], "shared_memory"),  # the small one stays in the pickle
    ],
)
def test_a_message_is_counted_by_how_it_went(loop, item, kind):
    loop.hop.send(item)
    counts = loop.hop.sender.counts
    assert {name: getattr(counts, name) for name in ("pipe", "shared_memory", "mixed")} == {
        "pipe": 0, "shared_memory": 0, "mixed": 0, kind: 1,
    }  # fmt: skip


def test_bytes_are_counted_by_how_they_went(loop):
    loop.hop.send_from(
        [{"small": np.zeros(100, np.uint8), "large": np.zeros(LARGE, np.uint8), "loan": loaned(loop.before)}]
    )
    counts = loop.hop.sender.counts
    assert counts.copied_bytes == pytest.approx(LARGE, abs=64)
    assert counts.zero_copy_bytes == LARGE
    assert 100 < counts.inline_bytes < 500


def test_from_the_threshold_up_buffers_go_to_shared_memory(loop):
    for nbytes, moved in ((2047, False), (2048, True)):
        peak = loop.before.arena.allocator.live
        loop.hop.send(np.zeros(nbytes, np.uint8))
        assert (loop.before.arena.allocator.live > peak) is moved


def test_what_does_not_fit_a_packet_goes_to_shared_memory_the_largest_first():
    loop = Loop(Policy(1 << 62))
    with loop.stack:
        sizes = (20, 6000, 30, 3600)  # those of less than 3,584 stay in the pickle
        loop.hop.send([np.zeros(size, np.uint8) for size in sizes])
        arrived = loop.hop.receive()
        places = loop.after._mappings[0]
        assert [array.__array_interface__["data"][0] in places for array in arrived] == [False, True, False, False]


def test_every_send_is_timed_and_a_wait_is_not_the_price_of_the_hop(loop):
    for _ in range(10):
        loop.hop.send(np.zeros(LARGE))
        loop.hop.receive()
    fill(loop.hop.pipe)

    def drain():
        while loop.hop.receiver._waiter is not None:
            try:
                os.read(loop.hop.pipe.read_fd, 4096)
            except BlockingIOError:
                return

    timer = threading.Timer(0.1, drain)
    timer.start()
    begin = time.perf_counter_ns()
    loop.hop.send(1)
    took = time.perf_counter_ns() - begin
    timer.join()
    loop.hop.send_rows.flush()
    encode, copy, send, wait = (Histogram.from_words(row) for row in loop.hop.send_words.reshape(4, WORDS))
    assert [h.count for h in (encode, copy, send, wait)] == [11] * 4
    assert wait.max_ns == loop.hop.sender.blocked_ns > 50_000_000
    assert wait.max_ns < took
    assert copy.max_ns > 1000
    assert encode.sum_ns + send.sum_ns < took


def test_what_is_told_arrives_with_its_number(any_way):
    for kind in (Kind.TOMBSTONE, Kind.SKIP, Kind.CLOSE, Kind.END):
        assert any_way.hop.sender.tell(kind, 1, (5, 2), samples=3, count=1 << 40, meta=b"where")
        got = any_way.hop.receiver.receive(1)
        assert (got.kind, got.key, got.samples, got.count, got.meta, got.value) == (
            kind,
            (5, 2),
            3,
            1 << 40,
            b"where",
            None,
        )


def test_telling_is_interrupted_like_sending(loop):
    fill(loop.hop.pipe)
    cut_off(loop.hop)
    assert loop.hop.sender.tell(Kind.END, 1, (0,)) is False


def test_a_wait_runs_the_tick():
    processes = Processes(2)
    with processes.stack:
        pipe = make_pipe(16)
        hop = Hop(processes.memories[0], processes.memories[1], Policy(2048), pipe)
        processes.stack.callback(hop.close)
        ticks = []
        hop.sender._tick = lambda: ticks.append(1)
        processes.memories[0].leased = 1
        fill(pipe)
        cut_off(hop, 0.1)
        assert not hop.send(1)
        assert len(ticks) >= 3
        processes.memories[0].leased = 0
