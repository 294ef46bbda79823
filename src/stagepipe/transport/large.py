"""What is too large for a packet and forced through the pipe all the same: a body, cut into fragments. Pure.

A packet of kind LARGE announces the body; it goes between one writer and one reader, so nothing else comes in between.
Either side may be cut off in the middle, by a seek, the end, or a kill. Then what follows is no fragment of this item,
and the next packet is of a newer generation: the reader drops what it has. Fragments that nobody waits for are dropped
as well. So neither side ever has to wait for the other to finish something that nobody wants.

    body      each buffer at a multiple of 64, the pickle, then a span for each: start, length, flags
    fragment  check of all that follows, generation, number, how many there are, kind; then a piece of the body
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import TransportError
from stagepipe.transport.packet import KIND_AT, PACKET_BYTES, Packet

_ALIGN = 64
_KIND = 7
"""Where a packet has its `Kind`, a fragment has this."""
_HEAD = struct.Struct("<IIIIBxxx")  # the kind lies at KIND_AT
_PIECE_BYTES = PACKET_BYTES - _HEAD.size
_SPAN = struct.Struct("<QQQ")
_COUNT = struct.Struct("<I")

Opened = tuple[list[Any], list[int], memoryview]
"""Buffers, the flags of their descriptors, and the pickle."""


def make_body(buffers: Iterable[tuple[NDArray[np.uint8], int]], pickle: bytes) -> bytearray:
    """All that an item is, in one piece: its buffers with their flags, and its pickle."""
    pieces = [*buffers, (np.frombuffer(pickle, np.uint8), 0)]
    spans, end = [], 0
    for raw, flags in pieces:
        start = -(-end // _ALIGN) * _ALIGN
        spans.append((start, raw.size, flags))
        end = start + raw.size
    body = bytearray(end)
    target = np.frombuffer(body, np.uint8)
    for (raw, _), (start, length, _) in zip(pieces, spans, strict=True):
        target[start : start + length] = raw
    del target
    for span in spans:
        body += _SPAN.pack(*span)
    return body + _COUNT.pack(len(spans))


def fragments(body: bytearray, generation: int) -> Iterator[tuple[bytes, memoryview]]:
    """The body, cut: a head and a piece each."""
    view = memoryview(body)
    total = -(-len(body) // _PIECE_BYTES)
    for number in range(total):
        at = number * _PIECE_BYTES
        piece = view[at : at + _PIECE_BYTES]
        yield _head(generation, number, total, piece), piece


def _head(generation: int, number: int, total: int, piece: memoryview) -> bytes:
    rest = _HEAD.pack(0, generation, number, total, _KIND)[4:]
    return zlib.crc32(piece, zlib.crc32(rest)).to_bytes(4, "little") + rest


def is_fragment(data: bytearray) -> bool:
    """Whether it is a whole fragment, of whatever item."""
    return (
        len(data) > _HEAD.size
        and data[KIND_AT] == _KIND
        and zlib.crc32(memoryview(data)[4:]) == int.from_bytes(data[:4], "little")
    )


class Body:
    """A body on its way in."""

    def __init__(self, packet: Packet) -> None:
        """`packet` announces it. Memory is taken as the pieces come, whatever it announces."""
        self._generation, self._nbytes, self._data, self._number = packet.generation, packet.number, bytearray(), 0

    @property
    def complete(self) -> bool:
        """Whether all of it is here."""
        return len(self._data) == self._nbytes

    def add(self, data: bytearray) -> bool:
        """Take the next fragment; False if it is another item's. TransportError if one between them is missing."""
        _, generation, number, _, _ = _HEAD.unpack_from(data)
        if generation != self._generation:
            return False
        if number != self._number:
            raise TransportError(f"fragment {self._number} of a large item is missing; fragment {number} came instead")
        self._data += memoryview(data)[_HEAD.size :]
        if len(self._data) > self._nbytes:
            raise TransportError(f"a large item of {self._nbytes} bytes came with {len(self._data)}")
        self._number += 1
        return True

    def open(self) -> Opened:
        """What the body holds. TransportError if it does not hold together."""
        data = self._data
        end = len(data) - _COUNT.size
        count = int.from_bytes(data[end:], "little") if end > 0 else 0
        table = end - count * _SPAN.size
        if not count or table < 0:
            raise TransportError(f"a large item of {len(data)} bytes cannot hold a table of {count} spans")
        view = memoryview(data)
        spans = list(_SPAN.iter_unpack(view[table:end]))
        if any(start + length > table for start, length, _ in spans):
            raise TransportError("a span points past the large item that it is of")
        pieces: list[Any] = [np.frombuffer(data, np.uint8, length, start) for start, length, _ in spans[:-1]]
        start, length, _ = spans[-1]
        return pieces, [flags for *_, flags in spans[:-1]], view[start : start + length]
