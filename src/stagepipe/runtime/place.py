"""Where the reader of the last stretch stands: the cursor of what it has delivered. In the caller's process."""

from __future__ import annotations

from typing import Protocol

from stagepipe.core import Cursor, Key, Skip
from stagepipe.runtime.groups import Leaves, Made, refuse_inexact, root_of, unpack_made, with_root, without_root
from stagepipe.runtime.said import unpack_said


class Place(Protocol):
    """What the consumer tells, and asks for the cursor. `meta` is what an order point said of the item."""

    def leaf(self, key: Key, meta: bytes) -> None:
        """The leaf `key` is out, or was dropped."""

    def skipped(self, skip: Skip) -> None:
        """A leaf that is none because it failed: if its item is made again, it must be none again."""

    def end(self, item: int, meta: bytes) -> None:
        """All of `item` is out."""

    @property
    def cursor(self) -> Cursor:
        """From which all that comes next can be made again."""


class InOrder:
    """`order: source`: the cursor of the stretch before, the item, and its last leaf that is out."""

    def __init__(self, cursor: Cursor) -> None:
        """Begin there."""
        self._upstream, self._item, self._last = cursor.upstream, cursor.item, cursor.last
        self._skips, self._meta = cursor.skips, b""

    def leaf(self, key: Key, meta: bytes) -> None:
        """It is the next in order; a whole item ends with it."""
        if len(key) == 1:
            self.end(key[0], meta)
        else:
            self._item, self._last, self._meta = key[0], key, meta

    def skipped(self, skip: Skip) -> None:
        """A whole item that is skipped is not made again."""
        if skip.key[0] == self._item:
            self._skips |= {skip}

    def end(self, item: int, meta: bytes) -> None:
        """What has ended with its only leaf ends once."""
        if item >= self._item:
            self._upstream = unpack_said(meta).after if meta else None
            self._item, self._last = item + 1, None
            self._skips, self._meta = frozenset(), b""

    @property
    def cursor(self) -> Cursor:
        """As it is."""
        skips = self._skips | unpack_said(self._meta).skips
        return Cursor(self._upstream, self._item, self._last, skips=skips)


class AnyOrder:
    """`order: any` without an order point before: the lowest open item, and the leaves above it that are out."""

    def __init__(self, cursor: Cursor) -> None:
        """Begin there."""
        self._leaves = Leaves(cursor)

    def leaf(self, key: Key, meta: bytes) -> None:
        """It may be anywhere above the lowest open item."""
        del meta
        self._leaves.add((key,))

    def skipped(self, skip: Skip) -> None:
        """It is out as any leaf."""

    def end(self, item: int, meta: bytes) -> None:
        """Items end in order."""
        del meta
        self._leaves.raise_floor(item + 1)

    @property
    def cursor(self) -> Cursor:
        """As it is."""
        return self._leaves.cursor()


class BehindAnyOrder:
    """`order: any` behind an order point: in order here, of groups that were made of what came."""

    def __init__(self, cursor: Cursor, stretch: int) -> None:
        """Begin there; `stretch` is that of the cursor."""
        root = root_of(cursor, stretch)
        self._leaves = Leaves(root)
        self._held = root.groups
        self._after = without_root(cursor.upstream, stretch - 1)
        self._item, self._last, self._skips = cursor.item, cursor.last, cursor.skips
        self._current: Made | None = None

    def leaf(self, key: Key, meta: bytes) -> None:
        """It is the next in order; a whole item ends with it."""
        if len(key) == 1:
            self.end(key[0], meta)
            return
        if self._current is None:
            self._current = unpack_made(meta)
            self._skips |= self._current.skips
        self._item, self._last = key[0], key

    def skipped(self, skip: Skip) -> None:
        """A whole item that is skipped is not made again."""
        if skip.key[0] == self._item:
            self._skips |= {skip}

    def end(self, item: int, meta: bytes) -> None:
        """What the item was made of is out."""
        if item < self._item:
            return
        made = unpack_made(meta)
        for group in made.groups:
            self._leaves.add(group)
        self._leaves.raise_floor(made.floor)
        self._held = self._held if made.held is None else made.held
        self._after, self._item, self._last, self._current = made.after, item + 1, None, None
        self._skips = frozenset()

    @property
    def cursor(self) -> Cursor:
        """As it is; UsageError where it cannot be told."""
        held, made = self._held, self._current
        if made is not None and self._last is not None:
            if not made.exact:
                refuse_inexact()
            held = (*made.groups, *(held if made.held is None else made.held))
        root = self._leaves.cursor(held)
        return Cursor(with_root(self._after, root), self._item, self._last, skips=self._skips)


def place_at(cursor: Cursor, stretch: int, *, any_order: bool) -> Place:
    """The place of a reader of that stretch."""
    if not any_order:
        return InOrder(cursor)
    return BehindAnyOrder(cursor, stretch) if stretch else AnyOrder(cursor)
