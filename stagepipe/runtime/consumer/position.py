"""The consumer's position: the cursor after what it has delivered. In the caller's process."""

from __future__ import annotations

from typing import Protocol

from stagepipe.core import Cursor, ImposedSkip, Key
from stagepipe.runtime.protocol import (
    DeliveredLeaves,
    UnorderedLineage,
    attach_root,
    detach_root,
    extract_root,
    raise_inexact_cursor,
    unpack_lineage,
    unpack_unordered_lineage,
)


class ConsumerPosition(Protocol):
    """Follows what the consumer delivers. `meta` is the packed lineage of the item, from an order point."""

    def mark_delivered(self, key: Key, meta: bytes) -> None:
        """Record the leaf `key` as delivered or dropped."""

    def mark_skipped(self, skip: ImposedSkip) -> None:
        """Record a leaf that failed: if its item is repeated, the leaf must be skipped again."""

    def mark_item_complete(self, item: int, meta: bytes) -> None:
        """Record that all leaves of `item` were delivered."""

    @property
    def cursor(self) -> Cursor:
        """The cursor that reproduces everything after the last delivered leaf."""


class OrderedPosition:
    """`order: source`: the cursor of the segment before, the item, and its last delivered leaf."""

    def __init__(self, cursor: Cursor) -> None:
        """Start at `cursor`."""
        self._upstream = cursor.upstream
        self._item = cursor.item
        self._last_key = cursor.last_key
        self._skips = cursor.skips
        self._meta = b""

    def mark_delivered(self, key: Key, meta: bytes) -> None:
        """Record the next leaf in order. A leaf that is a whole item completes the item."""
        if len(key) == 1:
            self.mark_item_complete(key[0], meta)
        else:
            self._item = key[0]
            self._last_key = key
            self._meta = meta

    def mark_skipped(self, skip: ImposedSkip) -> None:
        """Record a skipped part of the current item. A whole skipped item is never repeated, so it is left out."""
        if skip.key[0] == self._item:
            self._skips |= {skip}

    def mark_item_complete(self, item: int, meta: bytes) -> None:
        """Move to the next item, unless the item's only leaf has completed it already."""
        if item >= self._item:
            self._upstream = unpack_lineage(meta).resume_cursor if meta else None
            self._item = item + 1
            self._last_key = None
            self._skips = frozenset()
            self._meta = b""

    @property
    def cursor(self) -> Cursor:
        """The cursor after the last delivered leaf."""
        skips = self._skips | unpack_lineage(self._meta).skips
        return Cursor(self._upstream, self._item, self._last_key, skips=skips)


class UnorderedPosition:
    """`order: any` without an order point: the lowest open item, and the leaves delivered above it."""

    def __init__(self, cursor: Cursor) -> None:
        """Start at `cursor`."""
        self._delivered_leaves = DeliveredLeaves(cursor)

    def mark_delivered(self, key: Key, meta: bytes) -> None:
        """Record a leaf, which may be anywhere above the lowest open item."""
        del meta
        self._delivered_leaves.add((key,))

    def mark_skipped(self, skip: ImposedSkip) -> None:
        """Do nothing: a skipped leaf counts as delivered."""

    def mark_item_complete(self, item: int, meta: bytes) -> None:
        """Raise the lowest open item; items are completed in order."""
        del meta
        self._delivered_leaves.advance_watermark(item + 1)

    @property
    def cursor(self) -> Cursor:
        """The cursor of the delivered leaves."""
        return self._delivered_leaves.to_cursor()


class DownstreamPosition:
    """`order: any` after an order point: items arrive in order, and their lineage names the leaves in each group."""

    def __init__(self, cursor: Cursor, segment: int) -> None:
        """Start at `cursor`, a cursor of `segment`."""
        root = extract_root(cursor, segment)
        self._delivered_leaves = DeliveredLeaves(root)
        self._open_groups = root.replay_groups
        self._detached_upstream = detach_root(cursor.upstream, segment - 1)
        self._item = cursor.item
        self._last_key = cursor.last_key
        self._skips = cursor.skips
        self._current_lineage: UnorderedLineage | None = None

    def mark_delivered(self, key: Key, meta: bytes) -> None:
        """Record the next leaf in order. A leaf that is a whole item completes the item."""
        if len(key) == 1:
            self.mark_item_complete(key[0], meta)
            return
        if self._current_lineage is None:
            self._current_lineage = unpack_unordered_lineage(meta)
            self._skips |= self._current_lineage.skips
        self._item = key[0]
        self._last_key = key

    def mark_skipped(self, skip: ImposedSkip) -> None:
        """Record a skipped part of the current item. A whole skipped item is never repeated, so it is left out."""
        if skip.key[0] == self._item:
            self._skips |= {skip}

    def mark_item_complete(self, item: int, meta: bytes) -> None:
        """Record the leaves that the item was made of as delivered."""
        if item < self._item:
            return
        lineage = unpack_unordered_lineage(meta)
        for group in lineage.consumed_groups:
            self._delivered_leaves.add(group)
        self._delivered_leaves.advance_watermark(lineage.low_watermark)
        self._open_groups = self._open_groups if lineage.open_groups is None else lineage.open_groups
        self._detached_upstream = lineage.resume_cursor
        self._item = item + 1
        self._last_key = None
        self._current_lineage = None
        self._skips = frozenset()

    @property
    def cursor(self) -> Cursor:
        """The cursor after the last delivered leaf. Raises UsageError inside a group without an exact order."""
        open_groups, lineage = self._open_groups, self._current_lineage
        if lineage is not None and self._last_key is not None:
            if not lineage.has_exact_order:
                raise_inexact_cursor()
            still_open = open_groups if lineage.open_groups is None else lineage.open_groups
            open_groups = (*lineage.consumed_groups, *still_open)
        root = self._delivered_leaves.to_cursor(open_groups)
        return Cursor(attach_root(self._detached_upstream, root), self._item, self._last_key, skips=self._skips)


def make_position(cursor: Cursor, segment: int, *, any_order: bool) -> ConsumerPosition:
    """Return the position of a consumer that reads `segment`."""
    if not any_order:
        return OrderedPosition(cursor)
    return DownstreamPosition(cursor, segment) if segment else UnorderedPosition(cursor)
