"""The wire format of a hop: one packet is one atomic write of at most 4,096 bytes. Pure; used by both sides of a hop.

    prefix       check, nanoseconds spent on the sending side, time stamp of the write
    header       kind, generation, key, lengths
    key parts    4 bytes each, for what a generator made
    descriptors  where each buffer lies: in an arena, or further down in this packet
    meta         from an order point: how to make all that follows (opaque here)
    pickle       the item without its buffers
    buffers      the small ones, each at a multiple of 16

The check is the CRC-32 of all that follows the prefix: a damaged packet is refused, not acted on.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple

from stagepipe.core import Key, TransportError

PACKET_BYTES = 4096
"""What a pipe in packet mode takes in one atomic write: PIPE_BUF, see pipe(7)."""

INLINE = 0xFFFF
"""In a descriptor, the arena number that means: in this packet."""

_PREFIX = struct.Struct("<IIq")
_HEADER = struct.Struct("<BBHIIHHqIQ")
_BODY = _PREFIX.size + _HEADER.size
_DESCRIPTOR = struct.Struct("<HHIQQQ")
_FRAGMENT = struct.Struct("<IIII")
FRAGMENT_BYTES = PACKET_BYTES - _FRAGMENT.size
DESCRIPTOR_BYTES = _DESCRIPTOR.size
_SPENT_MAX = 0xFFFFFFFF
_FRAGMENT_MARK = 0x47415246


class Kind(IntEnum):
    """What a packet says of its key."""

    ITEM = 1
    TOMBSTONE = 2  # dropped on purpose
    SKIP = 3  # dropped for an error
    CLOSE = 4  # a generator is through: `count` parts
    END = 5  # the stretch is through: `count` items
    LARGE = 6  # forced through the pipe: `count` bytes follow in fragments


class Flag(IntEnum):
    """Bits of a packet's flags."""

    STREAM = 1  # the pickle lies in the last buffer


class Descriptor(NamedTuple):
    """Where a buffer lies. Offsets and lengths in bytes; `start` counts from the block, or from the packet if inline."""

    arena: int
    flags: int
    era: int
    block: int
    start: int
    length: int


SHARED = 1
"""A descriptor's flag: somebody else may hold a lease on this block."""
OUT_OF_BAND = 2
"""A descriptor's flag: a `PickleBuffer` of somebody else's type, handed to pickle in order."""


class Packet(NamedTuple):
    """A packet as read. `data` is the packet's own memory; `pickle` is the place of the pickle in it."""

    kind: int
    flags: int
    generation: int
    key: Key
    samples: int
    count: int
    spent_ns: int
    sent_ns: int
    descriptors: tuple[Descriptor, ...]
    meta: bytes
    pickle: tuple[int, int]
    data: bytearray


def overhead_bytes(key: Key, buffers: int, meta: bytes) -> int:
    """The bytes that a packet takes before its pickle."""
    return _BODY + 4 * (len(key) - 1) + DESCRIPTOR_BYTES * buffers + len(meta)


def pack(
    kind: int,
    generation: int,
    key: Key,
    *,
    flags: int = 0,
    samples: int = 1,
    count: int = 0,
    spent_ns: int = 0,
    descriptors: list[tuple[int, int, int, int, int, int]] | tuple[()] = (),
    meta: bytes = b"",
    pickle: bytes | memoryview = b"",
    inline: list[bytes] | tuple[()] = (),
) -> bytearray:
    """A packet but for its time stamp, which `stamp` writes at the last moment.

    The starts of inline descriptors count from the first inline buffer and are moved here.
    """
    parts = len(key) - 1
    pieces: list[bytes | memoryview] = [b""]
    if parts:
        pieces.append(struct.pack(f"<{parts}I", *key[1:]))
    if descriptors:
        body = overhead_bytes(key, len(descriptors), meta) + len(pickle)
        padding = -body % 16
        first = body + padding
        pieces += [
            _DESCRIPTOR.pack(a, f, e, b, s + first if a == INLINE else s, n) for a, f, e, b, s, n in descriptors
        ]
        pieces += [meta, pickle]
        if inline:
            pieces.append(bytes(padding))
            pieces += inline
    else:
        pieces += [meta, pickle]
    pieces[0] = _HEADER.pack(
        kind, flags, parts, generation, samples, len(descriptors), len(meta), key[0], len(pickle), count
    )
    rest = b"".join(pieces)
    packet = bytearray(_PREFIX.size)
    _PREFIX.pack_into(packet, 0, zlib.crc32(rest), min(spent_ns, _SPENT_MAX), 0)
    packet += rest
    return packet


def stamp(packet: bytearray, now_ns: int) -> None:
    """Write the time of sending."""
    packet[8:16] = now_ns.to_bytes(8, "little")


def unpack(data: bytearray) -> Packet:
    """Read a packet; TransportError if it is damaged."""
    if len(data) < _BODY:
        message = f"a packet of {len(data)} bytes is shorter than its header"
        raise TransportError(message)
    check, spent_ns, sent_ns = _PREFIX.unpack_from(data)
    view = memoryview(data)
    if zlib.crc32(view[16:]) != check:
        message = "a packet does not pass its check: it was damaged on the way"
        raise TransportError(message)
    kind, flags, parts, generation, samples, buffers, meta_length, item, length, count = _HEADER.unpack_from(data, 16)
    at = _BODY
    key: Key = (item,)
    if parts:
        key = (item, *struct.unpack_from(f"<{parts}I", data, at))
        at += 4 * parts
    descriptors: tuple[Descriptor, ...] = ()
    if buffers:
        end = at + DESCRIPTOR_BYTES * buffers
        descriptors = tuple(map(Descriptor._make, _DESCRIPTOR.iter_unpack(view[at:end])))
        at = end
    meta = bytes(view[at : at + meta_length]) if meta_length else b""
    at += meta_length
    return Packet(
        kind, flags, generation, key, samples, count, spent_ns, sent_ns, descriptors, meta, (at, at + length), data
    )


def fragments(data: memoryview, generation: int) -> list[tuple[bytes, memoryview]]:
    """What is too large for a packet, cut: a head and a piece each."""
    pieces = range(0, len(data), FRAGMENT_BYTES)
    return [
        (_FRAGMENT.pack(_FRAGMENT_MARK, generation, number, len(pieces)), data[at : at + FRAGMENT_BYTES])
        for number, at in enumerate(pieces)
    ]


def fragment(data: bytearray, expected: int) -> memoryview:
    """The piece in a fragment; TransportError if it is not number `expected`."""
    mark, _, number, _ = _FRAGMENT.unpack_from(data)
    if mark != _FRAGMENT_MARK or number != expected:
        message = f"fragment {expected} of a large item is missing"
        raise TransportError(message)
    return memoryview(data)[_FRAGMENT.size :]
