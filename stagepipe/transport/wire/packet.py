"""The wire format of a hop: one packet is one atomic write of at most 4,096 bytes. Pure; used by both sides of a hop.

    prefix           checksum, time of the write
    entries          one, or several without descriptors one after the other; each has
        work         nanoseconds on the sending side
        header       kind, generation, key, lengths
        key parts    4 bytes each, for items that a generator made
        descriptors  the location of each buffer: in an arena, or inline further down
        meta         the cursor of an order point, from which to continue after this item (opaque here)
        pickle       the item without its buffers; of a PLAIN_RUN: (keys, items)
        buffers      the small ones, each at a multiple of 16

The checksum is the CRC-32 of all bytes after the first entry's work: a damaged packet is rejected as a whole and has no
effect. Little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from stagepipe.core import Key, TransportError

PACKET_BYTES = 4096
"""The largest atomic write to a pipe in packet mode: PIPE_BUF, see pipe(7)."""

INLINE_ARENA = 0xFFFF
"""The arena number of a descriptor whose buffer is inline, in the packet itself."""

_PREFIX = struct.Struct("<IQ")  # unsigned times: a damaged one is never negative, so no duration overflows a counter
_TIMESTAMPS = struct.Struct("<QI")
_ENTRY_HEADER = struct.Struct("<IBBHIIHHqIQ")
_BODY_OFFSET = _PREFIX.size + _ENTRY_HEADER.size
KIND_OFFSET = _PREFIX.size + 4
"""The offset of the first kind byte in packets, and of the only one in fragments."""
MAX_ENTRY_BYTES = PACKET_BYTES - _PREFIX.size
"""The room for entries in a packet."""
_DESCRIPTOR = struct.Struct("<HHIQQQ")
DESCRIPTOR_BYTES = _DESCRIPTOR.size
_TABLE_HEADER = struct.Struct("<II")
TABLE_HEADER_BYTES = _TABLE_HEADER.size
INLINE_ALIGN_BYTES = 16
"""The alignment of inline buffers, as the largest NumPy scalar needs it."""
_MAX_SENDER_NS = 0xFFFFFFFF


class PacketKind(IntEnum):
    """What an entry states about its key."""

    ITEM = 1
    TOMBSTONE = 2  # dropped on purpose
    ERROR_SKIP = 3  # dropped because of an error
    END_OF_PARTS = 4  # a generator has ended after `count` parts
    END_OF_SEGMENT = 5  # the segment has ended after `count` items
    FRAGMENTED = 6  # an item too large for a packet: `count_or_bytes` bytes follow in fragments
    PLAIN_RUN = 8  # `count_or_bytes` items that are pickled together with their keys; 7 is the kind of a fragment


_new_tuple = tuple.__new__
_KINDS = frozenset(map(int, PacketKind))


class PacketFlag(IntEnum):
    """The bits of an entry's flags."""

    PICKLE_IN_BLOCK = 1  # the last buffer is the pickle
    DESCRIPTOR_TABLE = 2  # too many descriptors for a packet: its only descriptor locates a table of them


BufferDescriptor = tuple[int, int, int, int, int, int]
"""The location of a buffer: arena, flags, 0, block, start, length. In bytes; `start` counts from the block, or from the
packet if inline. A plain tuple, because both sides make one per buffer."""


SHARED_BLOCK = 1
"""A descriptor flag: another process may hold a lease on this block."""
PICKLE_BUFFER = 2
"""A descriptor flag: the `PickleBuffer` of a third-party type, passed to pickle in order."""


PacketHeader = tuple[int, Key, int, bytes]
"""The fields that every entry has: generation, key, samples (how many the item counts for), meta (the cursor)."""


class Entry(NamedTuple):
    """An entry as read. `data` is the whole packet; `pickle_span` is the (start, end) of the entry's pickle in it."""

    kind: int
    flags: int
    generation: int
    key: Key
    samples: int
    count_or_bytes: int  # the count of END_OF_PARTS, END_OF_SEGMENT and PLAIN_RUN, the bytes of FRAGMENTED
    sender_ns: int
    sent_at_ns: int
    nbytes: int
    descriptors: tuple[BufferDescriptor, ...]
    meta: bytes
    pickle_span: tuple[int, int]
    data: bytearray


def overhead_bytes(header: PacketHeader, buffer_count: int) -> int:
    """The bytes before the pickle in a packet with one entry."""
    return _BODY_OFFSET + 4 * (len(header[1]) - 1) + DESCRIPTOR_BYTES * buffer_count + len(header[3])


def pack(
    kind: int,
    header: PacketHeader,
    *,
    flags: int = 0,
    count_or_bytes: int = 0,
    descriptors: list[BufferDescriptor] | tuple[()] = (),
    pickle_data: bytes | memoryview = b"",
    inline_buffers: list[bytes] | tuple[()] = (),
) -> bytearray:
    """A packet with one entry, without its timestamps: `write_timestamps` writes them just before the packet is sent.

    The starts of inline descriptors count from the first inline buffer; `pack` adds its offset. Raises TransportError
    if the packet is too long.
    """
    generation, key, samples, meta = header
    part_count = len(key) - 1
    packed_header = _ENTRY_HEADER.pack(
        0,
        kind,
        flags,
        part_count,
        generation,
        samples,
        len(descriptors),
        len(meta),
        key[0],
        len(pickle_data),
        count_or_bytes,
    )
    sections: list[bytes | memoryview] = [packed_header]
    if part_count:
        sections.append(struct.pack(f"<{part_count}I", *key[1:]))
    if descriptors:
        pickle_end = overhead_bytes(header, len(descriptors)) + len(pickle_data)
        padding = -pickle_end % INLINE_ALIGN_BYTES
        inline_offset = pickle_end + padding
        sections += [
            _DESCRIPTOR.pack(
                arena, flag, reserved, block, start + inline_offset if arena == INLINE_ARENA else start, length
            )
            for arena, flag, reserved, block, start, length in descriptors
        ]
        sections += (meta, pickle_data, bytes(padding))
        sections += inline_buffers
    else:
        sections += (meta, pickle_data)
    entry = b"".join(sections)
    check_entry_fits(entry, header)
    return join_entries((entry,), 0)


def pack_entry(
    kind: int, header: PacketHeader, sender_ns: int, *, count_or_bytes: int = 0, pickle_data: bytes = b""
) -> bytes:
    """An entry without descriptors, for `join_entries`. The caller sees to it that it has at most MAX_ENTRY_BYTES.

    `sender_ns` is the sending side's work time, in ns.
    """
    generation, key, samples, meta = header
    part_count = len(key) - 1
    packed_header = _ENTRY_HEADER.pack(
        min(_MAX_SENDER_NS, sender_ns),
        kind,
        0,
        part_count,
        generation,
        samples,
        0,
        len(meta),
        key[0],
        len(pickle_data),
        count_or_bytes,
    )
    if part_count:
        packed_header += struct.pack(f"<{part_count}I", *key[1:])
    return packed_header + meta + pickle_data if meta else packed_header + pickle_data


def check_entry_fits(entry: bytes, header: PacketHeader) -> None:
    """Raise TransportError if an entry is too long for a packet."""
    if len(entry) > MAX_ENTRY_BYTES:
        raise TransportError(
            f"item {header[1][0]}: its packet has {len(entry) + _PREFIX.size} bytes, {len(header[3])} of them the "
            f"cursor of an order point; a packet holds at most {PACKET_BYTES}"
        )


def join_entries(entries: Sequence[bytes], now_ns: int) -> bytearray:
    """The packet of `entries`, which have at most MAX_ENTRY_BYTES together, written at `now_ns`."""
    payload = b"".join(entries)
    checksum = zlib.crc32(memoryview(payload)[KIND_OFFSET - _PREFIX.size :])
    return bytearray(_PREFIX.pack(checksum, now_ns) + payload)


def pack_descriptors(descriptors: Iterable[BufferDescriptor]) -> bytes:
    """A descriptor table, for a block of its own: checksum, length in bytes, then the descriptors."""
    table = b"".join([_DESCRIPTOR.pack(*descriptor) for descriptor in descriptors])
    return _TABLE_HEADER.pack(zlib.crc32(table), len(table)) + table


def unpack_descriptors(data: bytes) -> tuple[BufferDescriptor, ...]:
    """The inverse of `pack_descriptors`. Raises TransportError if the table is damaged."""
    checksum = int.from_bytes(data[:4], "little")
    table = memoryview(data)[TABLE_HEADER_BYTES:]
    if descriptor_table_bytes(data) != len(data) or zlib.crc32(table) != checksum:
        raise TransportError(
            f"a descriptor table of {len(data)} bytes in a block is damaged: its length or checksum does not match"
        )
    return tuple(_DESCRIPTOR.iter_unpack(table))


def descriptor_table_bytes(header: bytes) -> int:
    """The size in bytes of a whole descriptor table, from its header; -1 if `header` is not one."""
    if len(header) < TABLE_HEADER_BYTES:
        return -1
    _, nbytes = _TABLE_HEADER.unpack_from(header)
    return -1 if not nbytes or nbytes % DESCRIPTOR_BYTES else int(nbytes) + TABLE_HEADER_BYTES


def write_timestamps(packet: bytearray, sender_ns: int, now_ns: int) -> None:
    """Write the sending side's work time (at most 4.3 s, the range of 32 bits) and the time of sending, both in ns."""
    _TIMESTAMPS.pack_into(packet, 4, now_ns, min(sender_ns, _MAX_SENDER_NS))


def write_sent_at(packet: bytearray, now_ns: int) -> None:
    """Write the time of sending again, in ns: the packet had to wait for room in the pipe."""
    packet[4:12] = now_ns.to_bytes(8, "little")


def unpack(data: bytearray) -> list[Entry]:
    """The entries of a packet, at least one. Raises TransportError if the packet is damaged."""
    size = len(data)
    if size < _BODY_OFFSET:
        raise TransportError(f"a packet of {size} bytes is shorter than its header")
    checksum, sent_at_ns = _PREFIX.unpack_from(data)
    if zlib.crc32(memoryview(data)[KIND_OFFSET:]) != checksum:
        raise TransportError(f"a packet of {size} bytes fails its checksum: it was damaged in transit")
    entries = []
    offset = _PREFIX.size
    while offset < size:
        start = offset + _ENTRY_HEADER.size
        if start > size:
            raise TransportError(f"a packet of {size} bytes ends in the header of an entry")
        header = _ENTRY_HEADER.unpack_from(data, offset)
        sender_ns, kind, flags, part_count, generation, samples, buffer_count, meta_bytes, item, nbytes, count = header
        key: Key = (item,)
        descriptors: tuple[BufferDescriptor, ...] = ()
        meta = b""
        if part_count or buffer_count or meta_bytes:
            parts_start, descriptors_start = start, start + 4 * part_count
            meta_start = descriptors_start + DESCRIPTOR_BYTES * buffer_count
            start = meta_start + meta_bytes
            if start <= size:  # else it is rejected below
                key = (item, *struct.unpack_from(f"<{part_count}I", data, parts_start))
                descriptors = _unpack_buffer_descriptors(data, descriptors_start, meta_start)
                meta = bytes(data[meta_start:start])
        end = start + nbytes
        if end > size or kind not in _KINDS:
            raise TransportError(f"an entry of kind {kind} in a packet of {size} bytes ends at {end} by its header")
        if descriptors:
            if offset != _PREFIX.size:
                raise TransportError(f"an entry with {buffer_count} buffers shares its packet with others")
            next_offset = size  # inline buffers are the rest of the packet
        else:
            next_offset = end
        fields = (
            kind,
            flags,
            generation,
            key,
            samples,
            count,
            sender_ns,
            sent_at_ns,
            next_offset - offset,
            descriptors,
            meta,
            (start, end),
            data,
        )
        entries.append(_new_tuple(Entry, fields))  # a third of the time of `Entry(...)`
        offset = next_offset
    return entries


def _unpack_buffer_descriptors(data: bytearray, start: int, end: int) -> tuple[BufferDescriptor, ...]:
    if end - start == DESCRIPTOR_BYTES:  # an item with a single array: an eighth of the time of the line below
        return (_DESCRIPTOR.unpack_from(data, start),)
    return tuple(_DESCRIPTOR.iter_unpack(memoryview(data)[start:end])) if end > start else ()
