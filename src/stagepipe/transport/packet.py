"""The wire format of a hop: one packet is one atomic write of at most 4,096 bytes. Pure; used by both sides of a hop.

    prefix       check, nanoseconds spent on the sending side, time stamp of the write
    header       kind, generation, key, lengths
    key parts    4 bytes each, for what a generator made
    descriptors  where each buffer lies: in an arena, or further down in this packet
    meta         from an order point: how to make all that follows (opaque here)
    pickle       the item without its buffers
    buffers      the small ones, each at a multiple of 16

The check is the CRC-32 of all that follows the prefix: a damaged packet is refused, not acted on. Little-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from stagepipe.core import Key, TransportError

PACKET_BYTES = 4096
"""What a pipe in packet mode takes in one atomic write: PIPE_BUF, see pipe(7)."""

INLINE = 0xFFFF
"""In a descriptor, the arena number that means: in this packet."""

_PREFIX = struct.Struct("<IIQ")  # a damaged stamp is never below 0, so no time since it is too long to count
_STAMPS = struct.Struct("<IQ")
_HEADER = struct.Struct("<BBHIIHHqIQ")
_WHOLE = struct.Struct(_PREFIX.format + _HEADER.format[1:])
_BODY = _PREFIX.size + _HEADER.size
KIND_AT = _PREFIX.size
"""Where every packet, and every fragment, has the byte of its kind."""
_DESCRIPTOR = struct.Struct("<HHIQQQ")
DESCRIPTOR_BYTES = _DESCRIPTOR.size
_TABLE = struct.Struct("<II")
TABLE_HEAD_BYTES = _TABLE.size
ALIGN = 16
"""Inline buffers begin at multiples of it: what the largest NumPy item wants."""
_SPENT_MAX = 0xFFFFFFFF


class Kind(IntEnum):
    """What a packet says of its key."""

    ITEM = 1
    TOMBSTONE = 2  # dropped on purpose
    SKIP = 3  # dropped for an error
    CLOSE = 4  # a generator is through: `count` parts
    END = 5  # the stretch is through: `count` items
    LARGE = 6  # forced through the pipe: `count` bytes follow in fragments


_FIRST_KIND, _LAST_KIND = int(min(Kind)), int(max(Kind))


class Flag(IntEnum):
    """Bits of a packet's flags."""

    STREAM = 1  # the pickle lies in the last buffer
    TABLE = 2  # the only descriptor says where the descriptors lie, of which there are too many for a packet


Descriptor = tuple[int, int, int, int, int, int]
"""Where a buffer lies: arena, flags, 0, block, start, length. In bytes; `start` counts from the block, or from the
packet if inline. A plain tuple: there is one a buffer on either side."""


SHARED = 1
"""A descriptor's flag: somebody else may hold a lease on this block."""
OUT_OF_BAND = 2
"""A descriptor's flag: a `PickleBuffer` of somebody else's type, handed to pickle in order."""


Head = tuple[int, Key, int, bytes]
"""What every packet says of itself: generation, key, samples (what the item counts for), meta (the order point's)."""


class Packet(NamedTuple):
    """A packet as read. `data` is the packet's own memory; `pickle` is the place of the pickle in it: (from, to)."""

    kind: int
    flags: int
    generation: int
    key: Key
    samples: int
    number: int  # the END's or CLOSE's count, or a LARGE one's bytes
    spent_ns: int
    sent_ns: int
    descriptors: tuple[Descriptor, ...]
    meta: bytes
    pickle: tuple[int, int]
    data: bytearray


def overhead_bytes(head: Head, buffers: int) -> int:
    """The bytes that a packet takes before its pickle."""
    return _BODY + 4 * (len(head[1]) - 1) + DESCRIPTOR_BYTES * buffers + len(head[3])


def pack(
    kind: int,
    head: Head,
    *,
    flags: int = 0,
    number: int = 0,
    descriptors: list[Descriptor] | tuple[()] = (),
    pickle: bytes | memoryview = b"",
    inline: list[bytes] | tuple[()] = (),
) -> bytearray:
    """A packet but for its stamps, which `stamp` writes at the last moment.

    The starts of inline descriptors count from the first inline buffer and are moved here. TransportError if it is
    too long.
    """
    generation, key, samples, meta = head
    parts = len(key) - 1
    if not parts and not descriptors:  # most small items
        header = _HEADER.pack(kind, flags, 0, generation, samples, 0, len(meta), key[0], len(pickle), number)
        return _checked(b"".join((header, meta, pickle)), head)
    header = _HEADER.pack(
        kind, flags, parts, generation, samples, len(descriptors), len(meta), key[0], len(pickle), number
    )
    pieces: list[bytes | memoryview] = [header]
    if parts:
        pieces.append(struct.pack(f"<{parts}I", *key[1:]))
    if descriptors:
        body = overhead_bytes(head, len(descriptors)) + len(pickle)
        padding = -body % ALIGN
        first = body + padding
        pieces += [_DESCRIPTOR.pack(a, f, e, b, s + first if a == INLINE else s, n) for a, f, e, b, s, n in descriptors]
        pieces += (meta, pickle, bytes(padding))
        pieces += inline
    else:
        pieces += (meta, pickle)
    return _checked(b"".join(pieces), head)


def _checked(rest: bytes, head: Head) -> bytearray:
    if len(rest) > PACKET_BYTES - KIND_AT:
        raise TransportError(
            f"item {head[1][0]}: a packet of {len(rest) + KIND_AT} bytes, {len(head[3])} of them an order point's "
            f"cursor, is more than the {PACKET_BYTES} that travel in one piece"
        )
    return bytearray(_PREFIX.pack(zlib.crc32(rest), 0, 0) + rest)


def pack_descriptors(descriptors: Iterable[Descriptor]) -> bytes:
    """Descriptors as a table for a block of their own: their check, how many bytes they are, one after another."""
    table = b"".join([_DESCRIPTOR.pack(*where) for where in descriptors])
    return _TABLE.pack(zlib.crc32(table), len(table)) + table


def unpack_descriptors(data: bytes) -> tuple[Descriptor, ...]:
    """The descriptors that `pack_descriptors` made bytes of. TransportError if they are damaged."""
    check, table = int.from_bytes(data[:4], "little"), memoryview(data)[TABLE_HEAD_BYTES:]
    if table_bytes(data) != len(data) or zlib.crc32(table) != check:
        raise TransportError(f"a table of descriptors in {len(data)} bytes of a block does not pass its check")
    return tuple(_DESCRIPTOR.iter_unpack(table))


def table_bytes(head: bytes) -> int:
    """The bytes of a table of descriptors, by its head; -1 if it is no such head."""
    if len(head) < TABLE_HEAD_BYTES:
        return -1
    _, nbytes = _TABLE.unpack_from(head)
    return -1 if not nbytes or nbytes % DESCRIPTOR_BYTES else int(nbytes) + TABLE_HEAD_BYTES


def stamp(packet: bytearray, spent_ns: int, now_ns: int) -> None:
    """Write what the sending side has worked for it (four seconds and more count as four), and the time of sending."""
    _STAMPS.pack_into(packet, 4, min(spent_ns, _SPENT_MAX), now_ns)


def unpack(data: bytearray) -> Packet:
    """Read a packet; TransportError if it is damaged."""
    size = len(data)
    if size < _BODY:
        raise TransportError(f"a packet of {size} bytes is shorter than its header")
    (check, spent_ns, sent_ns, kind, flags, parts, generation, samples, buffers, meta_length, item, length, number) = (
        _WHOLE.unpack_from(data)
    )
    view = memoryview(data)
    if zlib.crc32(view[KIND_AT:]) != check:
        raise TransportError("a packet does not pass its check: it was damaged on the way")
    meta_at = _BODY + 4 * parts + DESCRIPTOR_BYTES * buffers
    at = meta_at + meta_length
    if at + length > size or not _FIRST_KIND <= kind <= _LAST_KIND:
        raise TransportError(f"a packet of kind {kind} and {size} bytes says that it has {at + length}")
    key: Key = (item,)
    if parts:
        key = (item, *struct.unpack_from(f"<{parts}I", data, _BODY))
    descriptors = tuple(_DESCRIPTOR.iter_unpack(view[_BODY + 4 * parts : meta_at])) if buffers else ()
    meta = bytes(view[meta_at:at]) if meta_length else b""
    return Packet._make(
        (kind, flags, generation, key, samples, number, spent_ns, sent_ns, descriptors, meta, (at, at + length), data)
    )
