"""The lineage of an order point's outputs, and several items in one packet. Pure functions.

A lineage states the items from which an output was made. It is the item's `meta`: a range of items with `order:
source`, each leaf with `order: any`.

With `order: any`, the first order point takes leaves in the order of arrival, so an output's number does not determine
its leaves. Each output therefore names its leaves, and the lowest source item that was still open. Everything after the
first order point is in order again: a reader adds up the leaves and so knows everything that was delivered. A partly
delivered group is rebuilt from the same leaves.

A packet with several items has the first item's key, and its samples are the number of items.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import msgspec
import numpy as np
from msgspec.structs import replace

from stagepipe.core import Cursor, ImposedSkip, Key, UsageError
from stagepipe.stages import Rows

_MAX_LINEAGE_BYTES: Final = 3000
"""The room in a packet for the lineage next to the item: see `transport/packet.py`."""
_MIN_COMPRESS_BYTES: Final = 200
"""Below this size, compression saves too little to be worth its time."""
_ZLIB_FIRST_BYTE: Final = b"\x78"
"""The first byte of zlib's output (RFC 1950). An uncompressed lineage starts with an array header instead."""

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class SupportsLineage(Protocol):
    """A lineage that `pack_lineage` can write."""

    def to_wire(self) -> object:
        """Return the form to encode."""

    def shrink(self) -> Self | None:
        """Return the lineage without its least important part; None if nothing is left to drop."""


class OutputLineage(msgspec.Struct, frozen=True, array_like=True):
    """The lineage with `order: source`: the items of an output, and the cursor after it.

    `resume_cursor` reproduces everything after the output. The output was made of source items `source_begin` to
    `source_end` (exclusive). `skips` shaped the output: to reproduce it, the same items must be skipped.
    """

    resume_cursor: Cursor = Cursor()
    source_begin: int = 0
    source_end: int = 0
    skips: frozenset[ImposedSkip] = frozenset()

    def to_wire(self) -> Self:
        """Return the lineage itself."""
        return self

    def shrink(self) -> Self | None:
        """Drop the skips. If their errors do not recur after a resume, their items are delivered."""
        if not self.skips and not self.resume_cursor.skips:
            return None
        return replace(self, resume_cursor=replace(self.resume_cursor, skips=frozenset()), skips=frozenset())


def pack_lineage(lineage: SupportsLineage) -> bytes:
    """Serialize a lineage. If it is too large for a packet, drop parts of it as far as `shrink` can."""
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


LeafGroup = tuple[Key, ...]
"""The leaves of the first segment from which its order point made one output, in order."""

_PackedGroups = tuple[bytes | LeafGroup, ...]
_WireLineage = tuple[Cursor | None, int, _PackedGroups, _PackedGroups | None, bool, frozenset[ImposedSkip]]
"""The fields of an UnorderedLineage in their encoded form."""


class UnorderedLineage(msgspec.Struct, frozen=True, kw_only=True):
    """The lineage with `order: any`: the leaves of an order point's output, and the cursor after it.

    `resume_cursor` is the cursor after the output, without its root; None if it has only the root. `low_watermark` is
    the lowest source item that was then open. `consumed_groups` are the groups that the output completed. `open_groups`
    are the groups that the output, or the shuffled block around it, has started but not completed; None means unchanged
    since the previous output. If `has_exact_order` is False, the leaves of a group are known, but not their order.
    `skips` are the skips after the first order point that shaped the output.
    """

    resume_cursor: Cursor | None = None
    low_watermark: int
    consumed_groups: tuple[LeafGroup, ...] = ()
    open_groups: tuple[LeafGroup, ...] | None = ()
    has_exact_order: bool = True
    skips: frozenset[ImposedSkip] = frozenset()

    def to_wire(self) -> _WireLineage:
        """Return the fields with the groups packed."""
        opened = None if self.open_groups is None else self._pack_groups(self.open_groups)
        consumed = self._pack_groups(self.consumed_groups)
        return self.resume_cursor, self.low_watermark, consumed, opened, self.has_exact_order, self.skips

    def _pack_groups(self, groups: tuple[LeafGroup, ...]) -> _PackedGroups:
        return tuple(_pack_keys(group, self.low_watermark) for group in groups)

    def shrink(self) -> Self | None:
        """Drop the order of the leaves, which compress better when sorted, and then the skips."""
        if self.has_exact_order:
            groups = tuple(tuple(sorted(group)) for group in self.consumed_groups)
            return replace(self, consumed_groups=groups, has_exact_order=False)
        return replace(self, skips=frozenset()) if self.skips else None


_decode = msgspec.msgpack.Decoder(_WireLineage).decode


def unpack_unordered_lineage(data: bytes) -> UnorderedLineage:
    """Deserialize a lineage; the inverse of `pack_lineage`."""
    resume_cursor, low_watermark, consumed, opened, has_exact_order, skips = _decode(decompress_lineage(data))
    return UnorderedLineage(
        resume_cursor=resume_cursor,
        low_watermark=low_watermark,
        consumed_groups=_unpack_groups(consumed, low_watermark),
        open_groups=None if opened is None else _unpack_groups(opened, low_watermark),
        has_exact_order=has_exact_order,
        skips=skips,
    )


def unpack_source_items(data: bytes) -> list[int]:
    """Return the source items of an output, sorted, as far as its lineage names them."""
    lineage = unpack_unordered_lineage(data)
    return sorted({key[0] for group in (*lineage.consumed_groups, *(lineage.open_groups or ())) for key in group})


def _unpack_groups(groups: _PackedGroups, base_item: int) -> tuple[LeafGroup, ...]:
    return tuple(_unpack_keys(group, base_item) for group in groups)


def _pack_keys(group: LeafGroup, base_item: int) -> bytes | LeafGroup:
    """Pack whole items as differences: in a sorted group nearly all are 1."""
    if any(len(key) > 1 for key in group):
        return group
    items = np.array([base_item, *(key[0] for key in group)], np.int64)
    steps = np.diff(items)
    fits_int16 = not len(steps) or int(np.abs(steps).max()) < 1 << 15
    return (b"h" + steps.astype(np.int16).tobytes()) if fits_int16 else (b"q" + steps.tobytes())


def _unpack_keys(packed: bytes | LeafGroup, base_item: int) -> LeafGroup:
    if not isinstance(packed, bytes):
        return packed
    steps = np.frombuffer(packed, packed[:1].decode(), offset=1).astype(np.int64)
    return tuple((item,) for item in (base_item + np.cumsum(steps)).tolist())


class DeliveredLeaves:
    """The delivered leaves of the first segment, from the lowest open item on.

    >>> leaves = DeliveredLeaves(Cursor())
    >>> leaves.add([(2,), (1, 0)])
    >>> leaves.advance_watermark(1)
    >>> leaves.to_cursor().item, sorted(leaves.to_cursor().emitted_keys)
    (1, [(1, 0), (2,)])
    """

    def __init__(self, root: Cursor) -> None:
        """Start from `root`, the source's part of a cursor."""
        self._low_watermark = root.item
        self._keys_by_item: dict[int, list[Key]] = {}
        self.add(root.emitted_keys)

    def add(self, keys: Iterable[Key]) -> None:
        """Record leaves as delivered."""
        for key in keys:
            self._keys_by_item.setdefault(key[0], []).append(key)

    def advance_watermark(self, low_watermark: int) -> None:
        """Forget the leaves of items below `low_watermark`, which are all complete."""
        if low_watermark - self._low_watermark > len(self._keys_by_item):
            self._keys_by_item = {item: keys for item, keys in self._keys_by_item.items() if item >= low_watermark}
        else:
            for item in range(self._low_watermark, low_watermark):
                self._keys_by_item.pop(item, None)
        self._low_watermark = max(low_watermark, self._low_watermark)

    def to_cursor(self, open_groups: tuple[LeafGroup, ...] = ()) -> Cursor:
        """Return the root of a cursor that resumes here. `open_groups` must be rebuilt from the same leaves."""
        emitted_keys = frozenset(key for keys in self._keys_by_item.values() for key in keys)
        return Cursor(None, self._low_watermark, emitted_keys=emitted_keys, replay_groups=open_groups)


def attach_root(cursor: Cursor | None, root: Cursor) -> Cursor:
    """Return `cursor` with `root` as its source part."""
    return root if cursor is None else replace(cursor, upstream=attach_root(cursor.upstream, root))


def detach_root(cursor: Cursor | None, segment: int) -> Cursor | None:
    """Return a cursor of `segment` without its root; the inverse of `attach_root`."""
    if not segment:
        return None
    cursor = cursor or Cursor()
    return replace(cursor, upstream=detach_root(cursor.upstream, segment - 1))


def extract_root(cursor: Cursor | None, segment: int) -> Cursor:
    """Return the source part of a cursor of `segment`."""
    cursor = cursor or Cursor()
    return extract_root(cursor.upstream, segment - 1) if segment else cursor


def raise_inexact_cursor() -> None:
    """Raise UsageError for a position inside a group whose order of leaves is unknown."""
    message = (
        "with `order` set to `any`, a state cannot be saved between the rows of a batch this large; save it after the "
        "batch's last row, make the batch smaller, or set `order` to `source`"
    )
    raise UsageError(message)


@dataclass(slots=True)
class SampleChunk:
    """Consecutive samples as rows. An order point accepts it as the value of a chunk, like a list of values."""

    rows: Rows
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return map(self.rows.get, range(self.count))
