"""Sent items are counted, timed and released; an item that is not sent holds no block."""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np
import pytest
import torch

from stagepipe.core import ArenaFullError, TransportError
from stagepipe.timing import HISTOGRAM_WORDS, Histogram
from stagepipe.transport import PacketKind, TransportRule, make_packet_pipe
from tests.support.transport.hops import LARGE, Hop, LoopbackHop, Processes, TwoHops, loaned_array


def fill(pipe):
    """Write until the pipe is full."""
    try:
        while True:
            os.write(pipe.write_fd, bytes(64))
    except BlockingIOError:
        return


def interrupt_after(hop, delay_s=0.03):
    """Interrupt the current wait after a delay."""

    def interrupt():
        hop.is_interrupted = True
        hop.wake_event.set()

    threading.Timer(delay_s, interrupt).start()


def test_the_box_is_empty_after_sending(any_transfer):
    item_box = [3]
    any_transfer.hop.send_from(item_box)
    assert item_box == []


@pytest.mark.parametrize("kept", [False, True])
def test_an_interrupted_send_releases_every_block(line, kept):
    line.first.send({"a": np.arange(LARGE), "t": torch.ones(LARGE)})
    received = line.first.receive()
    fill(line.second.pipe)
    middle = line.pools[1]
    item_box = [[received, loaned_array(middle), np.ones(LARGE), "x" * 9000]]
    if not kept:
        del received
    interrupt_after(line.second)
    assert line.second.send_from(item_box) is False
    if kept:
        line.settle()
        assert middle.arena.allocator.live_bytes == 0
        assert received["a"][-1] == LARGE - 1
        del received
    assert line.settle() == 0


def test_a_send_without_a_reader_releases_every_block(line):
    line.first.send(np.arange(LARGE))
    item_box = [[line.first.receive(), np.ones(LARGE)]]
    os.close(line.second.pipe.read_fd)
    with pytest.raises(BrokenPipeError):
        line.second.send_from(item_box)
    os.dup2(line.second.pipe.write_fd, line.second.pipe.read_fd)  # so that the fixture can close it
    assert line.settle() == 0


def test_a_full_arena_during_packing_releases_every_block():
    line = TwoHops(TransportRule(threshold_bytes=2048))
    with line.stack:
        line.pools[1].arena.allocator.limit_bytes = 1 << 20
        line.first.send(np.arange(LARGE))
        with pytest.raises(ArenaFullError):
            line.second.send_from([[line.first.receive(), np.ones(2 << 20, np.uint8)]])
        assert line.settle() == 0
        line.second.send("the next")
        assert line.second.receive() == "the next"


def test_a_packet_that_is_too_long_releases_every_block(line):
    line.first.send(np.arange(LARGE))
    item_box = [[line.first.receive(), np.ones(LARGE)]]
    with pytest.raises(TransportError, match="cursor"):
        line.second.sender.send(item_box, 1, (0,), 1, bytes(5000))
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
        ([np.zeros(9), np.zeros(LARGE)], "shared_memory"),  # the small array stays in the pickle
    ],
)
def test_messages_are_counted_by_transfer(loop, item, kind):
    loop.hop.send(item)
    counts = loop.hop.sender.counts
    assert {name: getattr(counts, f"{name}_messages") for name in ("pipe", "shared_memory", "mixed")} == {
        "pipe": 0, "shared_memory": 0, "mixed": 0, kind: 1,
    }  # fmt: skip


def test_bytes_are_counted_by_transfer(loop):
    loop.hop.send_from(
        [{"small": np.zeros(100, np.uint8), "large": np.zeros(LARGE, np.uint8), "loan": loaned_array(loop.sender_pool)}]
    )
    counts = loop.hop.sender.counts
    assert counts.copied_bytes == pytest.approx(LARGE, abs=64)
    assert counts.zero_copy_bytes == LARGE
    assert 100 < counts.inline_bytes < 500


def test_from_the_threshold_up_buffers_go_to_shared_memory(loop):
    for nbytes, is_in_block in ((2047, False), (2048, True)):
        live_bytes = loop.sender_pool.arena.allocator.live_bytes
        loop.hop.send(np.zeros(nbytes, np.uint8))
        assert (loop.sender_pool.arena.allocator.live_bytes > live_bytes) is is_in_block


def test_the_largest_buffers_that_do_not_fit_a_packet_go_to_shared_memory():
    loop = LoopbackHop(TransportRule(threshold_bytes=1 << 62))
    with loop.stack:
        sizes = (20, 6000, 30, 3600)  # those below 3,584 bytes stay in the pickle
        loop.hop.send([np.zeros(size, np.uint8) for size in sizes])
        arrived = loop.hop.receive()
        mapping = loop.receiver_pool._mappings[0]
        assert [array.__array_interface__["data"][0] in mapping for array in arrived] == [False, True, False, False]


def test_every_send_is_timed_and_waits_are_not_part_of_its_cost(loop):
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

    timer = threading.Timer(0.3, drain)
    timer.start()
    begin = time.perf_counter_ns()
    loop.hop.send(1)
    duration_ns = time.perf_counter_ns() - begin
    timer.join()
    loop.hop.send_recorder.flush()
    encode, copy, pack_wait, send, wait = (
        Histogram.from_words(row) for row in loop.hop.send_words.reshape(5, HISTOGRAM_WORDS)
    )
    assert [histogram.count for histogram in (encode, copy, pack_wait, send, wait)] == [11] * 5
    assert wait.max_ns == loop.hop.sender.blocked_ns > 50_000_000
    assert wait.max_ns < duration_ns
    assert copy.max_ns > 1000
    assert encode.sum_ns + send.sum_ns < duration_ns


def test_a_marker_arrives_with_its_fields(any_transfer):
    for kind in (PacketKind.TOMBSTONE, PacketKind.ERROR_SKIP, PacketKind.END_OF_PARTS, PacketKind.END_OF_SEGMENT):
        assert any_transfer.hop.sender.send_marker(kind, 1, (5, 2), samples=3, count=1 << 40, meta=b"where")
        received = any_transfer.hop.receiver.receive(1)
        assert (received.kind, received.key, received.samples, received.count, received.meta, received.value) == (
            kind,
            (5, 2),
            3,
            1 << 40,
            b"where",
            None,
        )


def test_sending_a_marker_can_be_interrupted(loop):
    fill(loop.hop.pipe)
    interrupt_after(loop.hop)
    assert loop.hop.sender.send_marker(PacketKind.END_OF_SEGMENT, 1, (0,)) is False


def test_a_wait_runs_the_tick():
    processes = Processes(2)
    with processes.stack:
        pipe = make_packet_pipe(16)
        hop = Hop(processes.pools[0], processes.pools[1], TransportRule(threshold_bytes=2048), pipe)
        processes.stack.callback(hop.close)
        ticks = []
        hop.sender._tick = lambda: ticks.append(1)
        processes.pools[0].lease_count = 1
        fill(pipe)
        interrupt_after(hop, 0.1)
        assert not hop.send(1)
        assert len(ticks) >= 3
        processes.pools[0].lease_count = 0
