"""The wire format of a hop: one packet is one atomic write of at most 4,096 bytes. Pure; both sides of a hop use it.

    prefix           checksum, time of the write
    entries          one entry, or several without descriptors; each has
        work         nanoseconds of work on the sending side
        header       kind, generation, key, lengths
        key parts    4 bytes each, for items that a generator made
        descriptors  the location of each buffer: in an arena, or inline in this packet
        meta         the cursor of an order point, to continue after this item (opaque here)
        pickle       the item without its buffers; for CHUNK: (items, small arrays, tombstones)
        buffers      the small buffers, each at a multiple of 16

The checksum is the CRC-32 of all bytes after the first entry's work. A damaged packet is rejected as a whole and has no
effect. All numbers are little-endian.

An item that is too large for a packet and must use the pipe is sent in fragments. A FRAGMENTED entry, the only entry of
its packet, announces the body. Fragments are only used between one writer and one reader, so no other packet comes
between them. A seek, the end of the run or a kill may stop either side in the middle. The reader then receives a packet
of a newer generation instead of the next fragment, and drops the partial item. A reader also drops fragments that it
does not expect. So neither side ever waits for the other to finish an item that is no longer needed.

    body      each buffer at a multiple of 64, the pickle, then a span per part: start, length, flags
    fragment  checksum of the rest, generation, index, fragment count, kind; then a piece of the body
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import Key, TransportError

PACKET_BYTES = 4096
"""The largest atomic write to a pipe in packet mode: PIPE_BUF, see pipe(7)."""

INLINE_ARENA = 0xFFFF
"""The arena number of descriptors whose buffer is inline, in the packet itself."""

_PREFIX = struct.Struct("<IQ")  # unsigned: a damaged time is never negative, so no duration overflows a counter
_TIMESTAMPS = struct.Struct("<QI")
_ENTRY_HEADER = struct.Struct("<IBBHIIHHqIQ")
_BODY_OFFSET = _PREFIX.size + _ENTRY_HEADER.size
_SINGLE = struct.Struct("<IQIBBHIIHHqIQ")
"""The prefix and the header of the first entry."""
_SINGLE_START = struct.Struct("<IQI")
_SINGLE_REST = struct.Struct("<BBHIIHHqIQ")
KIND_OFFSET = _PREFIX.size + 4
"""The offset of the first kind byte in a packet, and of the only one in a fragment."""
MAX_ENTRY_BYTES = PACKET_BYTES - _PREFIX.size
"""The room for entries in a packet."""
_DESCRIPTOR = struct.Struct("<HHIQQQ")
DESCRIPTOR_BYTES = _DESCRIPTOR.size
_TABLE_HEADER = struct.Struct("<II")
TABLE_HEADER_BYTES = _TABLE_HEADER.size
INLINE_ALIGN_BYTES = 16
"""The alignment of inline buffers: enough for the largest NumPy scalar."""
_MAX_SENDER_NS = 0xFFFFFFFF


class PacketKind(IntEnum):
    """The statement of an entry about its key."""

    ITEM = 1
    TOMBSTONE = 2  # dropped on purpose
    ERROR_SKIP = 3  # dropped because of an error
    END_OF_PARTS = 4  # a generator has ended after `count` parts
    END_OF_SEGMENT = 5  # the segment has ended after `count` items
    FRAGMENTED = 6  # an item too large for a packet: `count_or_bytes` bytes follow in fragments
    CHUNK = 8  # `count_or_bytes` consecutive items that are pickled together; 7 is the kind of a fragment


_new_tuple = tuple.__new__
KINDS = frozenset(map(int, PacketKind))


class PacketFlag(IntEnum):
    """The bits of an entry's flags."""

    PICKLE_IN_BLOCK = 1  # the last buffer is the pickle
    DESCRIPTOR_TABLE = 2  # too many descriptors for a packet: its only descriptor locates a table of them


BufferDescriptor = tuple[int, int, int, int, int, int]
"""The location of a buffer: arena, flags, 0, block, start, length, in bytes. `start` counts from the block, or from the
packet if inline. A plain tuple, because both sides make one for each buffer.
"""

SHARED_BLOCK = 1
"""A descriptor flag: another process may hold a lease on this block."""
PICKLE_BUFFER = 2
"""A descriptor flag: the buffer is a `PickleBuffer` of a third-party type, passed to pickle in order."""

PacketHeader = tuple[int, Key, int, bytes]
"""The fields that every entry has: generation, key, samples (as many as the item stands for), meta (the cursor).
"""


class Entry(NamedTuple):
    """A decoded entry. `data` is the whole packet; `pickle_span` is the (start, end) of the entry's pickle in it."""

    kind: int
    flags: int
    generation: int
    key: Key
    samples: int
    count_or_bytes: int  # the count of END_OF_PARTS, END_OF_SEGMENT and CHUNK, the bytes of FRAGMENTED
    sender_ns: int
    sent_at_ns: int
    nbytes: int
    descriptors: tuple[BufferDescriptor, ...]
    meta: bytes
    pickle_span: tuple[int, int]
    data: bytes | bytearray


def overhead_bytes(header: PacketHeader, buffer_count: int) -> int:
    """Return the number of bytes before the pickle in a packet with one entry."""
    return _BODY_OFFSET + 4 * (len(header[1]) - 1) + DESCRIPTOR_BYTES * buffer_count + len(header[3])


def pack(
    kind: int,
    header: PacketHeader,
    *,
    flags: int = 0,
    count_or_bytes: int = 0,
    descriptors: Sequence[BufferDescriptor] = (),
    pickle_data: bytes = b"",
    inline_buffers: Sequence[bytes] = (),
) -> bytearray:
    """Return a packet with one entry, without timestamps: `write_timestamps` adds them just before the packet is sent.

    The starts of inline descriptors count from the first inline buffer; `pack` adds its offset. Raises TransportError
    if the packet is too long.
    """
    if inline_buffers:
        body_bytes = overhead_bytes(header, len(descriptors)) + len(pickle_data)
        padding = -body_bytes % INLINE_ALIGN_BYTES
        inline_offset = body_bytes + padding
        descriptors = [
            (arena, flag, reserved, block, start + inline_offset if arena == INLINE_ARENA else start, length)
            for arena, flag, reserved, block, start, length in descriptors
        ]
        inline_buffers = (bytes(padding), *inline_buffers)
    entry = pack_entry(
        kind,
        header,
        0,
        flags=flags,
        count_or_bytes=count_or_bytes,
        descriptors=descriptors,
        pickle_data=pickle_data,
    )
    if inline_buffers:
        entry += b"".join(inline_buffers)
    if len(entry) > MAX_ENTRY_BYTES:
        check_entry_fits(entry, header)
    return join_entries((entry,), 0)


def pack_entry(
    kind: int,
    header: PacketHeader,
    sender_ns: int,
    *,
    flags: int = 0,
    count_or_bytes: int = 0,
    descriptors: Sequence[BufferDescriptor] = (),
    pickle_data: bytes = b"",
) -> bytes:
    """Return an entry, for `join_entries`. The caller must limit it to MAX_ENTRY_BYTES.

    `sender_ns` is the sending side's work time, in ns. An entry with descriptors needs its own packet.
    """
    generation, key, samples, meta = header
    part_count = len(key) - 1
    entry = _ENTRY_HEADER.pack(
        min(_MAX_SENDER_NS, sender_ns),
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
    if part_count:
        entry += struct.pack(f"<{part_count}I", *key[1:])
    if len(descriptors) == 1:
        entry += _DESCRIPTOR.pack(*descriptors[0])
    elif descriptors:
        entry += b"".join([_DESCRIPTOR.pack(*descriptor) for descriptor in descriptors])
    return entry + meta + pickle_data if meta else entry + pickle_data


def check_entry_fits(entry: bytes, header: PacketHeader) -> None:
    """Raise TransportError if an entry is too long for a packet."""
    if len(entry) > MAX_ENTRY_BYTES:
        raise TransportError(
            f"item {header[1][0]}: its packet has {len(entry) + _PREFIX.size} bytes, {len(header[3])} of them the "
            f"cursor of an order point; a packet holds at most {PACKET_BYTES}"
        )


def join_entries(entries: Sequence[bytes], now_ns: int) -> bytearray:
    """Return the packet of `entries`, written at `now_ns`. Together they have at most MAX_ENTRY_BYTES."""
    payload = b"".join(entries)
    checksum = zlib.crc32(payload[KIND_OFFSET - _PREFIX.size :])  # a view of it would take longer than the copy
    return bytearray(_PREFIX.pack(checksum, now_ns) + payload)


def pack_small(  # noqa: PLR0917 - called for each item
    kind: int, generation: int, item: int, sender_ns: int, pickle_data: bytes, now_ns: int
) -> bytes:
    """Return the packet of a small item without parts and meta, written at `now_ns`. Takes two thirds of `pack_entry`.

    Its count is 1. The caller ensures that the pickle fits.
    """
    rest = _SINGLE_REST.pack(kind, 0, 0, generation, 1, 0, 0, item, len(pickle_data), 1) + pickle_data
    return _SINGLE_START.pack(zlib.crc32(rest), now_ns, min(_MAX_SENDER_NS, sender_ns)) + rest


def pack_descriptors(descriptors: Iterable[BufferDescriptor]) -> bytes:
    """Return a descriptor table for a separate block: checksum, length in bytes, then the descriptors."""
    table = b"".join([_DESCRIPTOR.pack(*descriptor) for descriptor in descriptors])
    return _TABLE_HEADER.pack(zlib.crc32(table), len(table)) + table


def unpack_descriptors(data: bytes) -> tuple[BufferDescriptor, ...]:
    """Invert `pack_descriptors`. Raises TransportError if the table is damaged."""
    checksum = int.from_bytes(data[:4], "little")
    table = memoryview(data)[TABLE_HEADER_BYTES:]
    if descriptor_table_bytes(data) != len(data) or zlib.crc32(table) != checksum:
        raise TransportError(
            f"a descriptor table of {len(data)} bytes in a block is damaged: its length or checksum does not match"
        )
    return tuple(_DESCRIPTOR.iter_unpack(table))


def descriptor_table_bytes(header: bytes) -> int:
    """Return the size in bytes of a whole descriptor table, from its header; -1 if `header` is not one."""
    if len(header) < TABLE_HEADER_BYTES:
        return -1
    _, nbytes = _TABLE_HEADER.unpack_from(header)
    return -1 if not nbytes or nbytes % DESCRIPTOR_BYTES else int(nbytes) + TABLE_HEADER_BYTES


def write_timestamps(packet: bytearray, sender_ns: int, now_ns: int) -> None:
    """Write the sending side's work time (at most 4.3 s, the range of 32 bits) and the time of sending, both in ns."""
    _TIMESTAMPS.pack_into(packet, 4, now_ns, min(sender_ns, _MAX_SENDER_NS))


def write_sent_at(packet: bytearray, now_ns: int) -> None:
    """Update the time of sending, in ns, because the packet had to wait for room in the pipe."""
    packet[4:12] = now_ns.to_bytes(8, "little")


def unpack(data: bytes | bytearray) -> list[Entry]:
    """Return the entries of a packet, at least one; inline buffers are writable. Raises TransportError if damaged."""
    size = len(data)
    if size < _BODY_OFFSET:
        raise TransportError(f"a packet of {size} bytes is shorter than its header")
    first = _SINGLE.unpack_from(data)
    checksum, sent_at_ns, sender_ns, kind, flags, part_count, generation, samples = first[:8]
    if zlib.crc32(data[KIND_OFFSET:]) != checksum:
        raise TransportError(f"a packet of {size} bytes fails its checksum: it was damaged in transit")
    buffer_count, meta_bytes, item, nbytes, count = first[8:]
    start = _BODY_OFFSET + DESCRIPTOR_BYTES * buffer_count
    if start + nbytes == size and buffer_count <= 1 and not (part_count or meta_bytes) and kind in KINDS:
        descriptors: tuple[BufferDescriptor, ...] = (
            (_DESCRIPTOR.unpack_from(data, _BODY_OFFSET),) if buffer_count else ()
        )
        entry_bytes = size - _PREFIX.size
        single = (kind, flags, generation, (item,), samples, count, sender_ns, sent_at_ns, entry_bytes, descriptors)
        return [_new_tuple(Entry, (*single, b"", (start, size), data))]  # the frequent case
    return _unpack_entries(data, sent_at_ns)


def _unpack_entries(data: bytes | bytearray, sent_at_ns: int) -> list[Entry]:
    """Decode all entries of a packet whose checksum is correct."""
    size = len(data)
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
                descriptors = tuple(_DESCRIPTOR.iter_unpack(data[descriptors_start:meta_start]))
                meta = bytes(data[meta_start:start])
        end = start + nbytes
        if end > size or kind not in KINDS:
            raise TransportError(f"an entry of kind {kind} in a packet of {size} bytes ends at {end} by its header")
        if descriptors:
            if offset != _PREFIX.size:
                raise TransportError(f"an entry with {buffer_count} buffers shares its packet with others")
            data = bytearray(data)
            next_offset = size  # inline buffers are the rest of the packet
        else:
            next_offset = end
        header = (kind, flags, generation, key, samples, count, sender_ns, sent_at_ns, next_offset - offset)
        entries.append(_new_tuple(Entry, (*header, descriptors, meta, (start, end), data)))  # `Entry(...)` takes longer
        offset = next_offset
    return entries


_BUFFER_ALIGN_BYTES = 64
_FRAGMENT_KIND = 7
"""The kind byte of a fragment. A packet has its `PacketKind` at the same offset."""
_FRAGMENT_HEADER = struct.Struct("<IIIIBxxx")  # the kind is at KIND_OFFSET
_MAX_FRAGMENT_DATA_BYTES = PACKET_BYTES - _FRAGMENT_HEADER.size
_SPAN_STRUCT = struct.Struct("<QQQ")
_SPAN_COUNT_STRUCT = struct.Struct("<I")

BodyContents = tuple[list[Any], list[int], memoryview]
"""The buffers, the flags of their descriptors, and the pickle."""


def encode_body(buffers: Iterable[tuple[NDArray[np.uint8], int]], pickle_data: bytes) -> bytearray:
    """Return the whole item as one byte string: its buffers with their flags, and its pickle."""
    parts = [*buffers, (np.frombuffer(pickle_data, np.uint8), 0)]
    spans, end = [], 0
    for raw_bytes, flags in parts:
        start = -(-end // _BUFFER_ALIGN_BYTES) * _BUFFER_ALIGN_BYTES
        spans.append((start, raw_bytes.size, flags))
        end = start + raw_bytes.size
    body = bytearray(end)
    target = np.frombuffer(body, np.uint8)
    for (raw_bytes, _), (start, length, _) in zip(parts, spans, strict=True):
        target[start : start + length] = raw_bytes
    del target
    for span in spans:
        body += _SPAN_STRUCT.pack(*span)
    return body + _SPAN_COUNT_STRUCT.pack(len(spans))


def split_into_fragments(body: bytearray, generation: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the fragments of `body`, each as a header and a piece of the body."""
    view = memoryview(body)
    fragment_count = -(-len(body) // _MAX_FRAGMENT_DATA_BYTES)
    for index in range(fragment_count):
        offset = index * _MAX_FRAGMENT_DATA_BYTES
        chunk = view[offset : offset + _MAX_FRAGMENT_DATA_BYTES]
        header = _FRAGMENT_HEADER.pack(0, generation, index, fragment_count, _FRAGMENT_KIND)[4:]
        yield zlib.crc32(chunk, zlib.crc32(header)).to_bytes(4, "little") + header, chunk


def is_fragment(data: bytes | bytearray) -> bool:
    """Whether `data` is a complete fragment, of any item."""
    return (
        len(data) > _FRAGMENT_HEADER.size
        and data[KIND_OFFSET] == _FRAGMENT_KIND
        and zlib.crc32(memoryview(data)[4:]) == int.from_bytes(data[:4], "little")
    )


class FragmentAssembler:
    """Assembles a body from its fragments."""

    def __init__(self, entry: Entry) -> None:
        """`entry` announces the body. Memory grows with the received fragments, not with the announced size."""
        self._generation = entry.generation
        self._expected_bytes = entry.count_or_bytes
        self._received_data = bytearray()
        self._next_index = 0

    @property
    def is_complete(self) -> bool:
        """Whether all fragments have arrived."""
        return len(self._received_data) == self._expected_bytes

    def add_fragment(self, data: bytes) -> bool:
        """Add the next fragment; False if it belongs to another item. Raises TransportError if one is missing."""
        _, generation, index, _, _ = _FRAGMENT_HEADER.unpack_from(data)
        if generation != self._generation:
            return False
        if index != self._next_index:
            raise TransportError(
                f"fragment {self._next_index} of a large item is missing; fragment {index} arrived instead"
            )
        self._received_data += memoryview(data)[_FRAGMENT_HEADER.size :]
        if len(self._received_data) > self._expected_bytes:
            raise TransportError(
                f"a large item was announced with {self._expected_bytes} bytes, but {len(self._received_data)} arrived"
            )
        self._next_index += 1
        return True

    def decode_body(self) -> BodyContents:
        """Return the contents of the complete body. Raises TransportError if its spans are inconsistent."""
        data = self._received_data
        end = len(data) - _SPAN_COUNT_STRUCT.size
        count = int.from_bytes(data[end:], "little") if end > 0 else 0
        spans_offset = end - count * _SPAN_STRUCT.size
        if not count or spans_offset < 0:
            raise TransportError(f"a large item of {len(data)} bytes cannot hold a table of {count} spans")
        view = memoryview(data)
        spans = list(_SPAN_STRUCT.iter_unpack(view[spans_offset:end]))
        if any(start + length > spans_offset for start, length, _ in spans):
            raise TransportError(f"a span ends beyond the {spans_offset} bytes of data in its large item")
        buffers: list[Any] = [np.frombuffer(data, np.uint8, length, start) for start, length, _ in spans[:-1]]
        start, length, _ = spans[-1]
        return buffers, [flags for *_, flags in spans[:-1]], view[start : start + length]
