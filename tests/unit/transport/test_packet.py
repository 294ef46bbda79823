"""A packet unpacks to what was packed, and a packet with any damaged bit is rejected."""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepipe.core import TransportError
from stagepipe.transport import PacketKind, TransportRule
from stagepipe.transport.packet import (
    INLINE_ALIGN_BYTES,
    INLINE_ARENA,
    KIND_OFFSET,
    MAX_ENTRY_BYTES,
    PACKET_BYTES,
    PacketFlag,
    join_entries,
    overhead_bytes,
    pack,
    pack_entry,
    unpack,
    write_timestamps,
)
from tests.support.transport.hops import LoopbackHop

u16, u32, u64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
keys = st.tuples(st.integers(0, (1 << 63) - 1)) | st.lists(u32, min_size=1, max_size=5).map(tuple)
headers = st.tuples(u32, keys, u32, st.binary(max_size=300))
descriptors = st.lists(st.tuples(st.integers(0, INLINE_ARENA - 1), u16, u32, u64, u64, u64), max_size=20)
times_ns = st.integers(0, (1 << 40))


@given(
    st.sampled_from(PacketKind),
    headers,
    st.tuples(st.integers(0, 3), u64, u32, times_ns),
    descriptors,
    st.binary(max_size=900),
)
def test_unpack_inverts_pack(kind, header, numbers, packed_descriptors, pickle):
    flags, count_or_bytes, sender_ns, now_ns = numbers
    data = pack(
        kind, header, flags=flags, count_or_bytes=count_or_bytes, descriptors=packed_descriptors, pickle_data=pickle
    )
    write_timestamps(data, sender_ns, now_ns)
    (packet,) = unpack(data)
    assert (packet.generation, packet.key, packet.samples, packet.meta) == header
    assert (packet.kind, packet.flags, packet.count_or_bytes, packet.sender_ns, packet.sent_at_ns) == (
        kind,
        flags,
        count_or_bytes,
        sender_ns,
        now_ns,
    )
    assert packet.descriptors == tuple(packed_descriptors)
    assert bytes(packet.data[slice(*packet.pickle_span)]) == pickle
    assert len(data) - len(pickle) - overhead_bytes(header, len(packed_descriptors)) < INLINE_ALIGN_BYTES


@given(headers, st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=8), st.binary(max_size=300))
def test_descriptors_locate_inline_buffers(header, buffers, pickle):
    padded = [raw + bytes(-len(raw) % INLINE_ALIGN_BYTES) for raw in buffers]
    starts = np.cumsum([0, *map(len, padded)]).tolist()
    packed_descriptors = [(INLINE_ARENA, 0, 0, 0, start, len(raw)) for start, raw in zip(starts, buffers, strict=False)]
    (packet,) = unpack(
        pack(PacketKind.ITEM, header, descriptors=packed_descriptors, pickle_data=pickle, inline_buffers=padded)
    )
    for (_, _, _, _, start, length), raw in zip(packet.descriptors, buffers, strict=True):
        assert bytes(packet.data[start : start + length]) == raw
        assert start % INLINE_ALIGN_BYTES == 0


def test_a_packet_that_is_too_long_is_rejected_with_the_reason():
    with pytest.raises(TransportError, match=r"item 7: .* 5000 of them the cursor of an order point"):
        pack(PacketKind.TOMBSTONE, (1, (7,), 1, bytes(5000)))


def test_sender_time_is_capped_at_four_seconds():
    data = pack(PacketKind.END_OF_SEGMENT, (1, (0,), 1, b""))
    write_timestamps(data, 1 << 50, 5)
    assert unpack(data)[0].sender_ns == (1 << 32) - 1


packets = st.builds(
    lambda header, packed_descriptors, pickle: pack(
        PacketKind.ITEM, header, descriptors=packed_descriptors, pickle_data=pickle
    ),
    headers,
    descriptors,
    st.binary(max_size=200),
)


@given(packets, st.data())
def test_any_flipped_bit_outside_the_timestamps_is_detected(data, draw):
    bit = draw.draw(st.integers(0, 8 * (len(data) - 12) - 1))
    offset = bit // 8 if bit < 32 else 12 + bit // 8  # the checksum, and everything after the timestamps
    data[offset] ^= 1 << bit % 8
    with pytest.raises(TransportError):
        unpack(data)


@given(packets, st.data())
def test_a_truncated_packet_is_rejected(data, draw):
    with pytest.raises(TransportError):
        unpack(data[: draw.draw(st.integers(0, len(data) - 1))])


@given(st.binary(max_size=PACKET_BYTES))
def test_garbage_is_rejected(data):
    with pytest.raises(TransportError):
        unpack(bytearray(data))


@given(st.binary(min_size=40, max_size=400))
def test_garbage_with_a_valid_checksum_is_never_read_past_its_end(data):
    packet = bytearray(struct.pack("<IIq", zlib.crc32(data), 0, 0) + data)
    try:
        entries = unpack(packet)
    except TransportError:
        return
    assert all(entry.pickle_span[1] <= len(packet) and entry.kind in set(PacketKind) for entry in entries)


# ---------------------------------------------------------------------------------------------- several entries


several = st.lists(
    st.tuples(st.sampled_from(PacketKind), headers, u32, u64, st.binary(max_size=100)), min_size=2, max_size=7
)


def join(fields, now_ns=0):
    return join_entries(
        [
            pack_entry(kind, header, sender_ns, count_or_bytes=count, pickle_data=pickle)
            for kind, header, sender_ns, count, pickle in fields
        ],
        now_ns,
    )


@given(several, times_ns)
def test_several_entries_keep_their_fields_and_their_order(fields, now_ns):
    data = join(fields, now_ns)
    entries = unpack(data)
    assert [
        (
            PacketKind(entry.kind),
            (entry.generation, entry.key, entry.samples, entry.meta),
            entry.sender_ns,
            entry.count_or_bytes,
            bytes(data[slice(*entry.pickle_span)]),
        )
        for entry in entries
    ] == fields
    assert {entry.sent_at_ns for entry in entries} == {now_ns}
    assert sum(entry.nbytes for entry in entries) == len(data) - (PACKET_BYTES - MAX_ENTRY_BYTES)


@given(several, st.data())
def test_damage_to_one_of_several_entries_rejects_the_packet(fields, draw):
    data = join(fields)
    offset = draw.draw(st.integers(0, 3) | st.integers(KIND_OFFSET, len(data) - 1))
    data[offset] ^= 1 << draw.draw(st.integers(0, 7))
    with pytest.raises(TransportError):
        unpack(data)
    with pytest.raises(TransportError):
        unpack(data[: draw.draw(st.integers(0, len(data) - 1))])


def test_a_packet_with_one_entry_is_the_same_from_both_packers():
    header = (3, (5, 1), 2, b"meta")
    assert join_entries([pack_entry(PacketKind.ITEM, header, 0, pickle_data=b"item")], 0) == pack(
        PacketKind.ITEM, header, pickle_data=b"item"
    )


def test_an_entry_with_buffers_does_not_share_its_packet():
    header = (1, (0,), 1, b"")
    alone = pack(PacketKind.ITEM, header, descriptors=[(0, 0, 0, 0, 0, 10)])
    entry = pack_entry(PacketKind.ITEM, header, 0)
    with pytest.raises(TransportError, match="shares its packet"):
        unpack(join_entries([entry, bytes(alone[PACKET_BYTES - MAX_ENTRY_BYTES :])], 0))


# ---------------------------------------------------------------------------------------------- descriptors


@pytest.fixture(scope="module")
def loop():
    loop = LoopbackHop(TransportRule(threshold_bytes=2048))
    with loop.stack:
        yield loop


random_values = st.one_of(st.integers(0, 3), u16, u64)
random_descriptors = st.tuples(
    st.sampled_from([0, 0, 1, 77, INLINE_ARENA]),
    st.integers(0, 3),
    u32,
    random_values | st.integers(0, 1 << 31),
    random_values,
    random_values,
)


@settings(max_examples=200)
@given(st.lists(random_descriptors, max_size=4), st.integers(0, 3), st.binary(max_size=80), st.sampled_from([1, 2]))
def test_random_descriptors_raise_a_transport_error_and_touch_nothing(
    loop, packed_descriptors, flags, pickle, generation
):
    # Packed here, because `pack` adds an offset to inline descriptors.
    packed_header = struct.pack(
        "<BBHIIHHqIQ", 1, flags, 0, generation, 1, len(packed_descriptors), 0, 0, len(pickle), 0
    )
    payload = (
        packed_header + b"".join(struct.pack("<HHIQQQ", *descriptor) for descriptor in packed_descriptors) + pickle
    )
    os.write(loop.hop.pipe.write_fd, struct.pack("<IIq", zlib.crc32(payload), 0, 0) + payload)
    try:
        received = loop.hop.receiver.receive(2, 0.0)
    except TransportError:
        received = None
    if received is not None:
        assert received.kind == PacketKind.ITEM
    loop.receiver_pool.release_queue.clear()


def test_a_damaged_pickle_is_rejected(loop):
    for pickle in (b"", b"\x80\x05.", b"\x80\x05\x97.", b"garbage"):
        os.write(loop.hop.pipe.write_fd, pack(PacketKind.ITEM, (1, (0,), 1, b""), pickle_data=pickle))
        with pytest.raises(TransportError, match="cannot be unpickled in the receiving process"):
            loop.hop.receiver.receive(1)


def test_the_kind_has_one_offset_in_packets_and_fragments():
    assert pack(PacketKind.END_OF_SEGMENT, (1, (0,), 1, b""))[KIND_OFFSET] == PacketKind.END_OF_SEGMENT
    assert PacketFlag.PICKLE_IN_BLOCK | PacketFlag.DESCRIPTOR_TABLE == 3


@pytest.mark.parametrize(
    "descriptor,message",
    [
        ((INLINE_ARENA, 0, 0, 0, 4000, 97), "bytes past its packet"),
        ((77, 0, 0, 0, 0, 9), r"names arena 77; this process knows \[0\]"),
        ((0, 0, 0, 1 << 40, 0, 9), "bytes past arena 0"),
        ((0, 0, 0, 0, 1 << 40, 9), "bytes past arena 0"),
    ],
)
def test_an_invalid_descriptor_is_reported_with_its_target(loop, descriptor, message):
    os.write(loop.hop.pipe.write_fd, pack(PacketKind.ITEM, (1, (0,), 1, b""), descriptors=[descriptor, descriptor]))
    with pytest.raises(TransportError, match=message):
        loop.hop.receiver.receive(1)
    loop.receiver_pool.release_queue.clear()
