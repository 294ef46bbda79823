"""What is damaged on the inner pipes is refused by its check, never acted on: no crash, no wild view, no huge take."""

from __future__ import annotations

import os
import pickle
import random
import tracemalloc

import numpy as np
import pytest

from stagepipe.core import TransportError
from stagepipe.transport import Kind, Policy
from stagepipe.transport.large import Body, fragments, is_fragment, make_body
from stagepipe.transport.packet import PACKET_BYTES, Flag, pack, unpack
from tests.fuzz.damage import ANY, IN_PLACE, damaged
from tests.transport.loop import Loop

ROUNDS = 3000
STAMPS = slice(4, 16)
ITEMS = [
    7,
    {"text": "x" * 900, "small": np.arange(9)},
    {"image": np.zeros(300_000, np.uint8), "id": 3},
    [np.full(5000, number) for number in range(9)],
    [np.zeros(3000 + number, np.uint8) for number in range(300)],
    "y" * 50_000,
]
MANY = ITEMS[4]


@pytest.fixture
def hop():
    made = Loop(Policy(2048))
    with made.stack:
        yield made


def packets_of(made: Loop) -> list[bytes]:
    """What really goes over the wire."""
    for number, item in enumerate(ITEMS):
        made.hop.send(item, key=(number, 1, 2)[: 1 + number % 3])
    made.hop.sender.tell(Kind.END, 1, (0,), count=6)
    made.hop.sender.tell(Kind.CLOSE, 1, (4, 2), count=3, meta=b"cursor")
    return [os.read(made.hop.pipe.read_fd, PACKET_BYTES) for _ in range(len(ITEMS) + 2)]


def test_a_damaged_packet_is_refused(hop):
    rnd = random.Random(1)
    packets = packets_of(hop)
    for round_ in range(ROUNDS):
        whole = packets[round_ % len(packets)]
        data = damaged(whole, rnd, ANY)
        if len(data) == len(whole):
            data[STAMPS] = whole[STAMPS]
            if data == whole:
                continue
        with pytest.raises(TransportError):
            unpack(data)
        assert not is_fragment(data)


def test_two_packets_that_run_into_one_another_are_refused(hop):
    first, *others = packets_of(hop)
    for other in others:
        with pytest.raises(TransportError):
            unpack(bytearray(first + other))


def test_damaged_stamps_harm_no_item_and_no_count(hop):
    rnd = random.Random(2)
    for round_ in range(200):
        hop.hop.send({"round": round_})
        packet = bytearray(os.read(hop.hop.pipe.read_fd, PACKET_BYTES))
        packet[STAMPS] = damaged(bytes(packet[STAMPS]), rnd, IN_PLACE)
        os.write(hop.hop.pipe.write_fd, packet)
        assert hop.hop.receive() == {"round": round_}
    hop.hop.receive_rows.flush()


# ---------------------------------------------------------------------------------------------- tables in a block


def test_a_damaged_table_of_descriptors_is_refused(hop):
    rnd = random.Random(3)
    for _ in range(150):
        hop.hop.send(MANY)
        packet = bytearray(os.read(hop.hop.pipe.read_fd, PACKET_BYTES))
        (_, _, _, block, start, length), *_ = unpack(packet).descriptors
        room = hop.before.arena.bytes[block + start : block + start + length]
        whole = room.tobytes()
        room[:] = np.frombuffer(damaged(whole, rnd, IN_PLACE), np.uint8)
        os.write(hop.hop.pipe.write_fd, packet)
        with pytest.raises(TransportError):
            hop.hop.receive()
        room[:] = np.frombuffer(whole, np.uint8)
        os.write(hop.hop.pipe.write_fd, packet)
        assert len(hop.hop.receive()) == len(MANY)
        hop.settle()


@pytest.mark.parametrize("length", [0, 7, 8, 40, 1 << 20, 200 << 20, (1 << 64) - 1])
def test_a_table_that_is_none_takes_no_memory(hop, length):
    where = (0, 0, 0, 0, 0, length)
    os.write(hop.hop.pipe.write_fd, pack(Kind.ITEM, (1, (0,), 1, b""), flags=Flag.TABLE, descriptors=[where]))
    tracemalloc.start()
    with pytest.raises(TransportError):
        hop.hop.receive()
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


# ---------------------------------------------------------------------------------------------- fragments


def a_large_item(rnd: random.Random) -> tuple[bytearray, list[bytes]]:
    size = rnd.randint(5000, 30_000)
    body = make_body([(np.frombuffer(rnd.randbytes(size), np.uint8), 0)], pickle.dumps(size))
    announcement = pack(Kind.LARGE, (1, (0,), 1, b""), number=len(body))
    return announcement, [b"".join(pieces) for pieces in fragments(body, 1)]


@pytest.fixture
def refuses(hop):
    """Writes packets, and sees that no item comes of them."""

    def write(announcement: bytes, pieces: list[bytes]) -> None:
        for packet in (announcement, *pieces):
            os.write(hop.hop.pipe.write_fd, packet)
        with pytest.raises(TransportError):
            hop.hop.receive(timeout_s=0.0)
        while hop.hop.receiver.receive(9, 0.0) is not None:  # the rest is of the past, and dropped
            pass

    return write


def test_a_damaged_fragment_is_refused(refuses):
    rnd = random.Random(4)
    for _ in range(300):
        announcement, pieces = a_large_item(rnd)
        at = rnd.randrange(len(pieces))
        pieces[at] = bytes(damaged(pieces[at], rnd, ANY))[:PACKET_BYTES] or b"\0"
        if not is_fragment(bytearray(pieces[at])):
            refuses(announcement, pieces[: at + 1])


def test_fragments_that_come_twice_or_in_another_order_or_too_many_are_refused(refuses):
    rnd = random.Random(5)
    for _ in range(100):
        announcement, pieces = a_large_item(rnd)
        at = rnd.randrange(1, len(pieces))
        refuses(announcement, [*pieces[:at], pieces[at - 1]])
        refuses(announcement, [*pieces[: at - 1], pieces[at]])
    short = unpack(pack(Kind.LARGE, (1, (0,), 1, b""), number=10))
    with pytest.raises(TransportError, match="of 10 bytes came with"):
        Body(short).add(bytearray(pieces[0]))


@pytest.mark.parametrize("number", [1 << 40, 1 << 60, (1 << 64) - 1])
def test_what_is_announced_as_huge_takes_memory_only_as_it_comes(hop, refuses, number):
    tracemalloc.start()
    refuses(pack(Kind.LARGE, (1, (0,), 1, b""), number=number), [pack(Kind.END, (1, (0,), 1, b""))])
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1 << 20
