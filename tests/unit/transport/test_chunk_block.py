"""Rows that exceed a packet together share a block: they arrive as they were sent, and the block is free again."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from stagepipe.core import TransportError
from stagepipe.transport import ALWAYS_PIPE_THRESHOLD_BYTES, Receiver, TransportRule
from stagepipe.transport.chunk import CHUNK_BLOCK_BYTES, lease_chunk
from stagepipe.transport.packet import PACKET_BYTES, unpack
from tests.support.packets import hold_all
from tests.support.transport.hops import LoopbackHop

POLICY = TransportRule(threshold_bytes=3000)
ROW_COUNT = 40


def make_row(number):
    return {"id": number, "name": f"row {number}", "x": np.full(512, number, np.float32)}


def are_rows(values, count=ROW_COUNT):
    return [(value["id"], value["name"], value["x"].tolist()) for value in values] == [
        (number, f"row {number}", [number] * 512) for number in range(count)
    ]


@pytest.fixture(name="loop")
def loop_that_holds():
    loop = LoopbackHop(POLICY)
    with loop.stack:
        hold_all(loop.hop.sender)
        yield loop


def send_rows(hop, count=ROW_COUNT, generation=1):
    for number in range(count):
        assert hop.send(make_row(number), generation, (number,))
    assert hop.sender.flush()


def test_rows_of_2_kb_share_blocks_and_leave_none(loop):
    send_rows(loop.hop)
    values = [loop.hop.receive() for _ in range(ROW_COUNT)]
    assert are_rows(values)
    counts = loop.hop.sender.counts
    assert (counts.shared_memory_messages, counts.pipe_messages) == (ROW_COUNT, 0)
    assert ROW_COUNT * 2048 < counts.copied_bytes < ROW_COUNT * 2200
    assert loop.settle() == 0, "the rows are kept, their blocks are not"


def test_a_block_is_no_larger_than_its_room(loop):
    packets = []
    loop.hop.sender._write_packet = lambda packet, _: packets.append(packet) or 0
    send_rows(loop.hop)
    entries = [entry for packet in packets for entry in unpack(packet)]
    assert sum(entry.count_or_bytes for entry in entries) == ROW_COUNT
    assert max(descriptor[5] for entry in entries for descriptor in entry.descriptors) <= CHUNK_BLOCK_BYTES
    assert len(entries) <= ROW_COUNT / 4, "two to four; a machine that stops for a moment lets rows go before that"


def test_small_items_between_rows_keep_their_order(loop):
    items = [make_row(number) if number % 3 else number for number in range(ROW_COUNT)] + [{1, 2}, "end"]
    for number, item in enumerate(items):
        assert loop.hop.send(item, 1, (number,))
    assert loop.hop.sender.flush()
    received = [loop.hop.receiver.receive_one(1, 1) for _ in items]
    assert [packet.key for packet in received] == [(number,) for number in range(len(items))]
    assert [repr(packet.value) for packet in received] == list(map(repr, items))


def test_rows_go_through_the_pipe_where_shared_memory_is_full(loop):
    allocator = loop.sender_pool.arena.allocator
    allocator.limit_bytes = allocator.live_bytes
    send_rows(loop.hop, 20)
    assert are_rows([loop.hop.receive() for _ in range(20)], 20)
    assert loop.hop.sender.counts.pipe_messages == 20


def test_a_row_that_fits_no_packet_with_its_long_key_is_sent_as_a_large_item(loop):
    row, key = {"text": "x" * 3900}, tuple(range(60))
    assert loop.hop.sender.add(row, key) is False
    assert loop.hop.send(row, 1, key)
    assert loop.hop.receive() == row


@pytest.mark.parametrize("large_in_pipe", [True, False])
def test_a_hop_without_shared_memory_uses_none(large_in_pipe):
    loop = LoopbackHop(TransportRule(threshold_bytes=ALWAYS_PIPE_THRESHOLD_BYTES, large_in_pipe=large_in_pipe))
    with loop.stack:
        hold_all(loop.hop.sender)
        send_rows(loop.hop, 20)
        assert are_rows([loop.hop.receive() for _ in range(20)], 20)
        assert loop.hop.sender.counts.copied_bytes == 0


def test_a_slow_call_does_not_keep_rows_from_their_reader(loop):
    sender = loop.hop.sender
    for number in range(5):
        assert loop.hop.send(make_row(number), 1, (number,))
    sender._first_ns = 0  # long ago
    assert sender.write_late()
    assert are_rows([loop.hop.receive() for _ in range(5)], 5)
    assert sender.counts.copied_bytes == 0, "only the main thread allocates blocks"
    assert loop.hop.send(make_row(0), 1, (5,))
    assert sender.flush()
    assert are_rows([loop.hop.receive()], 1)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_whenever_another_thread_writes(loop, seed):
    """A row, a number, a set or a large array, and between any two of them perhaps a late write or a flush."""
    sender = loop.hop.sender
    draw = random.Random(seed)
    makes = [make_row, int, lambda number: {number}, lambda number: np.full(2_000, number)]
    received = []
    for number in range(300):
        assert loop.hop.send(draw.choice(makes)(number), 1, (number,))
        if draw.random() < 0.2:
            sender._first_ns = 0  # long ago
            sender.write_late()
        if draw.random() < 0.05:
            assert loop.hop.sender.flush()
        if number % 50 == 49:
            assert loop.hop.sender.flush()
            received += [loop.hop.receiver.receive_one(1, 1) for _ in range(50)]
    assert [packet and packet.key for packet in received] == [(number,) for number in range(300)]


def test_two_threads_lose_nothing(loop):
    """Another thread writes late all the time, while items are held and written."""
    sender, count = loop.hop.sender, 20_000
    is_done = threading.Event()
    received = []

    def write_late():
        while not is_done.is_set():
            sender._first_ns = 0
            sender.write_late()

    def receive():
        while len(received) < count:
            received.append(loop.hop.receiver.receive_one(1, 10))

    threads = [threading.Thread(target=write_late), threading.Thread(target=receive)]
    for thread in threads:
        thread.start()
    for number in range(count):
        assert loop.hop.send(number if number % 7 else {number}, 1, (number,))
    assert sender.flush()
    threads[1].join(60)
    is_done.set()
    threads[0].join(60)
    assert [packet and packet.key for packet in received] == [(number,) for number in range(count)]


def test_rows_of_an_older_generation_are_dropped_and_their_blocks_released(loop):
    send_rows(loop.hop)
    loop.hop.receive()
    assert loop.hop.send("new", 2)
    assert loop.hop.sender.flush()
    assert loop.hop.receive(2) == "new"
    assert loop.settle() == 0


def test_an_interrupted_write_releases_the_block(loop):
    loop.hop.sender._write_packet = lambda packet, _: -1
    for number in range(5):
        assert loop.hop.send(make_row(number), 1, (number,))
    assert not loop.hop.sender.flush()
    assert loop.settle() == 0


@pytest.mark.parametrize("options", [{"readonly": False}, {"copy_all": True}], ids=["caller", "mutable stage"])
def test_a_reader_that_may_write_changes_its_own_rows_only(options):
    loop = LoopbackHop(POLICY, **options)
    with loop.stack:
        hold_all(loop.hop.sender)
        send_rows(loop.hop, 20)
        rows = [loop.hop.receive() for _ in range(20)]
        rows[3]["x"][...] = -1
        rows[3]["x"] = np.full(512, 3, np.float32)
        assert are_rows(rows, 20)


def test_a_damaged_location_is_refused(loop):
    packets = []
    loop.hop.sender._write_packet = lambda packet, _: packets.append(packet) or 0
    send_rows(loop.hop, 5)
    (entry,) = unpack(packets[0])
    assert len(packets[0]) < PACKET_BYTES
    ((arena, *_, nbytes),) = entry.descriptors
    for descriptors in ([(arena, 0, 0, 1 << 40, 0, nbytes)], [(9, 0, 0, 0, 0, nbytes)], list(entry.descriptors) * 2):
        with pytest.raises(TransportError):
            lease_chunk(entry._replace(descriptors=tuple(descriptors)), loop.receiver_pool)


def test_each_row_of_a_block_is_named_before_its_turn(loop):
    named = []
    receiver: Receiver = loop.hop.receiver
    receiver.on_item = named.append
    receiver.unwanted_keys = frozenset({(1,)})
    send_rows(loop.hop, 4)
    assert [loop.hop.receive() is None for _ in range(4)] == [False, True, False, False]
    assert named == [(0,), (2,), (3,)]
