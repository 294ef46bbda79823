"""Damaged data on the pipes is rejected by its checksum: no crash, no stray view, no huge allocation."""

from __future__ import annotations

import os
import pickle
import random
import tracemalloc

import numpy as np
import pytest

from stagepipe.core import TransportError
from stagepipe.transport import PacketKind, TransportRule
from stagepipe.transport.packet import (
    PACKET_BYTES,
    FragmentAssembler,
    PacketFlag,
    encode_body,
    is_fragment,
    pack,
    split_into_fragments,
    unpack,
)
from tests.support.damage import ANY, IN_PLACE, damaged
from tests.support.transport.hops import LoopbackHop

ROUNDS = 3000
TIMESTAMPS = slice(4, 16)
ITEMS = [
    7,
    {"text": "x" * 900, "small": np.arange(9)},
    {"image": np.zeros(300_000, np.uint8), "id": 3},
    [np.full(5000, number) for number in range(9)],
    [np.zeros(3000 + number, np.uint8) for number in range(300)],
    "y" * 50_000,
]
MANY_BUFFERS = ITEMS[4]


@pytest.fixture
def hop():
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        yield loop


def make_packets(loop: LoopbackHop) -> list[bytes]:
    """The packets that a sender writes to the pipe."""
    for number, item in enumerate(ITEMS):
        loop.hop.send(item, key=(number, 1, 2)[: 1 + number % 3])
    loop.hop.sender.send_marker(PacketKind.END_OF_SEGMENT, 1, (0,), count=6)
    loop.hop.sender.send_marker(PacketKind.END_OF_PARTS, 1, (4, 2), count=3, meta=b"cursor")
    return [os.read(loop.hop.pipe.read_fd, PACKET_BYTES) for _ in range(len(ITEMS) + 2)]


def test_a_damaged_packet_is_rejected(hop):
    rnd = random.Random(1)
    packets = make_packets(hop)
    for round_ in range(ROUNDS):
        intact = packets[round_ % len(packets)]
        data = damaged(intact, rnd, ANY)
        if len(data) == len(intact):
            data[TIMESTAMPS] = intact[TIMESTAMPS]
            if data == intact:
                continue
        with pytest.raises(TransportError):
            unpack(data)
        assert not is_fragment(data)


def test_two_merged_packets_are_rejected(hop):
    first, *others = make_packets(hop)
    for other in others:
        with pytest.raises(TransportError):
            unpack(bytearray(first + other))


def test_damaged_timestamps_affect_no_item_and_no_count(hop):
    rnd = random.Random(2)
    for round_ in range(200):
        hop.hop.send({"round": round_})
        packet = bytearray(os.read(hop.hop.pipe.read_fd, PACKET_BYTES))
        packet[TIMESTAMPS] = damaged(bytes(packet[TIMESTAMPS]), rnd, IN_PLACE)
        os.write(hop.hop.pipe.write_fd, packet)
        assert hop.hop.receive() == {"round": round_}
    hop.hop.receive_recorder.flush()


# ---------------------------------------------------------------------------------------------- tables in a block


def test_a_damaged_descriptor_table_is_rejected(hop):
    rnd = random.Random(3)
    for _ in range(150):
        hop.hop.send(MANY_BUFFERS)
        packet = bytearray(os.read(hop.hop.pipe.read_fd, PACKET_BYTES))
        (_, _, _, block, start, length), *_ = unpack(packet)[0].descriptors
        table = hop.sender_pool.arena.data[block + start : block + start + length]
        intact = table.tobytes()
        table[:] = np.frombuffer(damaged(intact, rnd, IN_PLACE), np.uint8)
        os.write(hop.hop.pipe.write_fd, packet)
        with pytest.raises(TransportError):
            hop.hop.receive()
        table[:] = np.frombuffer(intact, np.uint8)
        os.write(hop.hop.pipe.write_fd, packet)
        assert len(hop.hop.receive()) == len(MANY_BUFFERS)
        hop.settle()


@pytest.mark.parametrize("length", [0, 7, 8, 40, 1 << 20, 200 << 20, (1 << 64) - 1])
def test_an_invalid_descriptor_table_takes_no_memory(hop, length):
    descriptor = (0, 0, 0, 0, 0, length)
    os.write(
        hop.hop.pipe.write_fd,
        pack(PacketKind.ITEM, (1, (0,), 1, b""), flags=PacketFlag.DESCRIPTOR_TABLE, descriptors=[descriptor]),
    )
    tracemalloc.start()
    with pytest.raises(TransportError):
        hop.hop.receive()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


# ---------------------------------------------------------------------------------------------- fragments


def make_large_item(rnd: random.Random) -> tuple[bytearray, list[bytes]]:
    size = rnd.randint(5000, 30_000)
    body = encode_body([(np.frombuffer(rnd.randbytes(size), np.uint8), 0)], pickle.dumps(size))
    announcement = pack(PacketKind.FRAGMENTED, (1, (0,), 1, b""), count_or_bytes=len(body))
    return announcement, [b"".join(fragment) for fragment in split_into_fragments(body, 1)]


@pytest.fixture
def assert_rejected(hop):
    """Writes an announcement and fragments, and asserts that they are rejected."""

    def write_and_assert(announcement: bytes, fragments: list[bytes]) -> None:
        for packet in (announcement, *fragments):
            os.write(hop.hop.pipe.write_fd, packet)
        with pytest.raises(TransportError):
            hop.hop.receive(timeout_s=0.0)
        while hop.hop.receiver.receive(9, 0.0) is not None:  # the rest is of an older generation and is dropped
            pass

    return write_and_assert


def test_a_damaged_fragment_is_rejected(assert_rejected):
    rnd = random.Random(4)
    for _ in range(300):
        announcement, fragments = make_large_item(rnd)
        index = rnd.randrange(len(fragments))
        fragments[index] = bytes(damaged(fragments[index], rnd, ANY))[:PACKET_BYTES] or b"\0"
        if not is_fragment(bytearray(fragments[index])):
            assert_rejected(announcement, fragments[: index + 1])


def test_duplicate_reordered_and_excess_fragments_are_rejected(assert_rejected):
    rnd = random.Random(5)
    for _ in range(100):
        announcement, fragments = make_large_item(rnd)
        index = rnd.randrange(1, len(fragments))
        assert_rejected(announcement, [*fragments[:index], fragments[index - 1]])
        assert_rejected(announcement, [*fragments[: index - 1], fragments[index]])
    (short,) = unpack(pack(PacketKind.FRAGMENTED, (1, (0,), 1, b""), count_or_bytes=10))
    with pytest.raises(TransportError, match="announced with 10 bytes, but"):
        FragmentAssembler(short).add_fragment(bytearray(fragments[0]))


@pytest.mark.parametrize("nbytes", [1 << 40, 1 << 60, (1 << 64) - 1])
def test_a_huge_announcement_takes_memory_only_as_fragments_arrive(hop, assert_rejected, nbytes):
    tracemalloc.start()
    assert_rejected(
        pack(PacketKind.FRAGMENTED, (1, (0,), 1, b""), count_or_bytes=nbytes),
        [pack(PacketKind.END_OF_SEGMENT, (1, (0,), 1, b""))],
    )
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
