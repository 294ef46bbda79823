"""The lineage of an order point's output: what it was made of. It travels with the item as `meta`. Pure functions."""

from __future__ import annotations

import zlib
from typing import Final, Protocol, Self

import msgspec
from msgspec.structs import replace

from stagepipe.core import Cursor, ImposedSkip

_MAX_LINEAGE_BYTES: Final = 3000
"""What a packet has room for beside the item itself: see `transport/packet.py`."""
_MIN_COMPRESS_BYTES: Final = 200
"""Below this size, compression saves too little to be worth its time."""
_ZLIB_FIRST_BYTE: Final = b"\x78"
"""The first byte of zlib's output (RFC 1950). A lineage that is not compressed starts with the head of an array."""

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class SupportsLineage(Protocol):
    """A lineage that `pack_lineage` can write."""

    def to_wire(self) -> object:
        """Return what is written."""

    def shrink(self) -> Self | None:
        """Return the lineage without what it needs least; None if nothing is left to drop."""


class OutputLineage(msgspec.Struct, frozen=True, array_like=True):
    """With `order: source`: what an output was made of, and where to resume after it.

    `resume_cursor` reproduces everything after the output. The output was made of source items `source_begin` to
    `source_end` (exclusive). `skips` are the skips that shaped it: to reproduce it, the same items must be skipped.
    """

    resume_cursor: Cursor = Cursor()
    source_begin: int = 0
    source_end: int = 0
    skips: frozenset[ImposedSkip] = frozenset()

    def to_wire(self) -> Self:
        """Return the lineage itself."""
        return self

    def shrink(self) -> Self | None:
        """Drop the skips. If their errors do not recur after a resume, those items are delivered."""
        if not self.skips and not self.resume_cursor.skips:
            return None
        return replace(self, resume_cursor=replace(self.resume_cursor, skips=frozenset()), skips=frozenset())


def pack_lineage(lineage: SupportsLineage) -> bytes:
    """Serialize a lineage. Where it is too large for a packet, parts of it are dropped, as far as `shrink` can."""
    while True:
        data = _encode(lineage.to_wire())
        if len(data) >= _MIN_COMPRESS_BYTES:
            data = zlib.compress(data, 1)
        smaller = lineage.shrink() if len(data) > _MAX_LINEAGE_BYTES else None
        if smaller is None:
            return data
        lineage = smaller


def decompress_lineage(data: bytes) -> bytes:
    """Return the MessagePack form of a packed lineage."""
    return zlib.decompress(data) if data[:1] == _ZLIB_FIRST_BYTE else data


_decode_output_lineage = msgspec.msgpack.Decoder(OutputLineage).decode


def unpack_lineage(data: bytes) -> OutputLineage:
    """Deserialize a lineage. Empty `data`, which no order point wrote, gives the default lineage.

    >>> unpack_lineage(pack_lineage(OutputLineage(Cursor(None, 3), 2, 3))).resume_cursor.item
    3
    """
    return _decode_output_lineage(decompress_lineage(data)) if data else OutputLineage()
