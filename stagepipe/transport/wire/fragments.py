"""Splits an item that is too large for one packet into fragments, for hops that must use the pipe. Pure; both sides.

A FRAGMENTED entry, in a packet of its own, announces the body. Fragments are only used between one writer and one
reader, so no other packet comes between them. A seek, the end of the run or a kill may stop either side in the middle.
The reader then receives a packet of a newer generation instead of the next fragment, and drops what it has. A reader
that expects no fragments drops them too. So neither side ever waits for the other to finish an item that is no longer
needed.

    body      each buffer at a multiple of 64, the pickle, then a span for each: start, length, flags
    fragment  checksum of all that follows, generation, index, fragment count, kind; then a chunk of the body
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import TransportError
from stagepipe.transport.wire.packet import KIND_OFFSET, PACKET_BYTES, Entry

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
    """The whole item as one byte string: its buffers with their flags, and its pickle."""
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
    """The fragments of `body`, each as its header and its chunk of the body."""
    view = memoryview(body)
    fragment_count = -(-len(body) // _MAX_FRAGMENT_DATA_BYTES)
    for index in range(fragment_count):
        offset = index * _MAX_FRAGMENT_DATA_BYTES
        chunk = view[offset : offset + _MAX_FRAGMENT_DATA_BYTES]
        yield _pack_fragment_header(generation, index, fragment_count, chunk), chunk


def _pack_fragment_header(generation: int, index: int, fragment_count: int, data: memoryview) -> bytes:
    header = _FRAGMENT_HEADER.pack(0, generation, index, fragment_count, _FRAGMENT_KIND)[4:]
    return zlib.crc32(data, zlib.crc32(header)).to_bytes(4, "little") + header


def is_fragment(data: bytearray) -> bool:
    """Whether `data` is a complete fragment, of any item."""
    return (
        len(data) > _FRAGMENT_HEADER.size
        and data[KIND_OFFSET] == _FRAGMENT_KIND
        and zlib.crc32(memoryview(data)[4:]) == int.from_bytes(data[:4], "little")
    )


class FragmentAssembler:
    """Assembles a body from its fragments."""

    def __init__(self, entry: Entry) -> None:
        """`entry` announces the body. Memory grows with the fragments received, not with the size announced."""
        self._generation = entry.generation
        self._expected_bytes = entry.count_or_bytes
        self._received_data = bytearray()
        self._next_index = 0

    @property
    def is_complete(self) -> bool:
        """Whether all fragments have arrived."""
        return len(self._received_data) == self._expected_bytes

    def add_fragment(self, data: bytearray) -> bool:
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
        """The contents of the complete body. Raises TransportError if its spans are inconsistent."""
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
