"""A packet says what was packed, and one that was damaged in any bit is refused, never acted on."""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepipe.core import TransportError
from stagepipe.transport import Kind, Policy
from stagepipe.transport.packet import ALIGN, INLINE, KIND_AT, PACKET_BYTES, Flag, overhead_bytes, pack, stamp, unpack
from tests.transport.loop import Loop

u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
keys = st.tuples(st.integers(0, (1 << 63) - 1)) | st.lists(u32, min_size=1, max_size=5).map(tuple)
heads = st.tuples(u32, keys, u32, st.binary(max_size=300))
descriptors = st.lists(st.tuples(st.integers(0, INLINE - 1), u16, u32, u64, u64, u64), max_size=20)
spans = st.integers(0, (1 << 40))


@given(
    st.sampled_from(Kind), heads, st.tuples(st.integers(0, 3), u64, u32, spans), descriptors, st.binary(max_size=900)
)
def test_all_that_is_packed_is_unpacked(kind, head, numbers, wheres, pickle):
    flags, number, spent, now = numbers
    data = pack(kind, head, flags=flags, number=number, descriptors=wheres, pickle=pickle)
    stamp(data, spent, now)
    packet = unpack(data)
    assert (packet.generation, packet.key, packet.samples, packet.meta) == head
    assert (packet.kind, packet.flags, packet.number, packet.spent_ns, packet.sent_ns) == (
        kind,
        flags,
        number,
        spent,
        now,
    )
    assert packet.descriptors == tuple(wheres)
    assert bytes(packet.data[slice(*packet.pickle)]) == pickle
    assert len(data) - len(pickle) - overhead_bytes(head, len(wheres)) < ALIGN


@given(heads, st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=8), st.binary(max_size=300))
def test_inline_buffers_are_found_where_their_descriptors_say(head, buffers, pickle):
    padded = [raw + bytes(-len(raw) % ALIGN) for raw in buffers]
    starts = np.cumsum([0, *map(len, padded)]).tolist()
    wheres = [(INLINE, 0, 0, 0, start, len(raw)) for start, raw in zip(starts, buffers, strict=False)]
    packet = unpack(pack(Kind.ITEM, head, descriptors=wheres, pickle=pickle, inline=padded))
    for (_, _, _, _, start, length), raw in zip(packet.descriptors, buffers, strict=True):
        assert bytes(packet.data[start : start + length]) == raw
        assert start % ALIGN == 0


def test_more_than_a_packet_is_refused_by_its_sender_with_the_reason():
    with pytest.raises(TransportError, match=r"item 7: .* 5000 of them an order point's cursor"):
        pack(Kind.TOMBSTONE, (1, (7,), 1, bytes(5000)))


def test_four_seconds_of_work_and_more_count_as_four():
    data = pack(Kind.END, (1, (0,), 1, b""))
    stamp(data, 1 << 50, 5)
    assert unpack(data).spent_ns == (1 << 32) - 1


packets = st.builds(
    lambda head, wheres, pickle: pack(Kind.ITEM, head, descriptors=wheres, pickle=pickle),
    heads, descriptors, st.binary(max_size=200),
)  # fmt: skip


@given(packets, st.data())
def test_any_flipped_bit_behind_the_stamps_is_noticed(data, draw):
    bit = draw.draw(st.integers(0, 8 * (len(data) - 12) - 1))
    at = bit // 8 if bit < 32 else 12 + bit // 8  # the check itself, and all that follows the stamps
    data[at] ^= 1 << bit % 8
    with pytest.raises(TransportError):
        unpack(data)


@given(packets, st.data())
def test_a_packet_that_is_cut_short_is_refused(data, draw):
    with pytest.raises(TransportError):
        unpack(data[: draw.draw(st.integers(0, len(data) - 1))])


@given(st.binary(max_size=PACKET_BYTES))
def test_garbage_is_refused(data):
    with pytest.raises(TransportError):
        unpack(bytearray(data))


@given(st.binary(min_size=40, max_size=400))
def test_garbage_with_a_right_check_is_read_or_refused_but_never_read_past_its_end(data):
    packet = bytearray(struct.pack("<IIq", zlib.crc32(data), 0, 0) + data)
    try:
        read = unpack(packet)
    except TransportError:
        return
    assert read.pickle[1] <= len(packet)
    assert read.kind in set(Kind)


# ---------------------------------------------------------------------------------------------- descriptors


@pytest.fixture(scope="module")
def damaged():
    loop = Loop(Policy(2048))
    with loop.stack:
        yield loop


wild = st.one_of(st.integers(0, 3), u16, u64)
pointers = st.tuples(
    st.sampled_from([0, 0, 1, 77, INLINE]), st.integers(0, 3), u32, wild | st.integers(0, 1 << 31), wild, wild
)


@settings(max_examples=200)
@given(st.lists(pointers, max_size=4), st.integers(0, 3), st.binary(max_size=80), st.sampled_from([1, 2]))
def test_descriptors_that_point_anywhere_raise_a_transport_error_and_touch_nothing(
    damaged, wheres, flags, pickle, generation
):
    # Packed by hand: `pack` moves the inline ones.
    head = struct.pack("<BBHIIHHqIQ", 1, flags, 0, generation, 1, len(wheres), 0, 0, len(pickle), 0)
    rest = head + b"".join(struct.pack("<HHIQQQ", *where) for where in wheres) + pickle

    os.write(damaged.hop.pipe.write_fd, struct.pack("<IIq", zlib.crc32(rest), 0, 0) + rest)
    try:
        received = damaged.hop.receiver.receive(2, 0.0)
    except TransportError:
        received = None
    if received is not None:
        assert received.kind == Kind.ITEM
    damaged.after.gone.clear()


def test_a_pickle_that_calls_for_what_is_not_there_is_refused(damaged):

    for pickle in (b"", b"\x80\x05.", b"\x80\x05\x97.", b"garbage"):
        os.write(damaged.hop.pipe.write_fd, pack(Kind.ITEM, (1, (0,), 1, b""), pickle=pickle))
        with pytest.raises(TransportError, match="cannot be rebuilt"):
            damaged.hop.receiver.receive(1)


def test_the_kind_has_one_place_in_packets_and_fragments():
    assert pack(Kind.END, (1, (0,), 1, b""))[KIND_AT] == Kind.END
    assert Flag.STREAM | Flag.TABLE == 3


@pytest.mark.parametrize(
    "where,said",
    [
        ((INLINE, 0, 0, 0, 4000, 97), "bytes past its packet"),
        ((77, 0, 0, 0, 0, 9), r"names arena 77; this process knows \[0\]"),
        ((0, 0, 0, 1 << 40, 0, 9), "bytes past arena 0"),
        ((0, 0, 0, 0, 1 << 40, 9), "bytes past arena 0"),
    ],
)
def test_a_descriptor_that_points_at_nothing_says_where_it_points(damaged, where, said):
    os.write(damaged.hop.pipe.write_fd, pack(Kind.ITEM, (1, (0,), 1, b""), descriptors=[where, where]))
    with pytest.raises(TransportError, match=said):
        damaged.hop.receiver.receive(1)
    damaged.after.gone.clear()
