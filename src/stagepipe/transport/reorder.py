"""Order, restored at an order point: holds what came early and hands out leaves in the order of their keys. Pure.

An item that a generator cut is a tree of parts; a node is through when a close packet has said how many parts it has
and all of them are through. What lies behind the cursor, or comes twice, is refused. The executable model of the
protocol has the same rules in quadratic time; here every packet costs the depth of its key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from stagepipe.core import Key
from stagepipe.transport.packet import Kind
from stagepipe.transport.receiver import Received


class Leaf(NamedTuple):
    """The next thing in order: an item (its packet), a place where one was dropped, or the end of a whole item."""

    packet: Received | None
    item: int


@dataclass(slots=True)
class _Node:
    children: dict[int, _Node | Received] = field(default_factory=dict)
    next: int = 0
    count: int | None = None

    @property
    def through(self) -> bool:
        return self.count is not None and self.next >= self.count


class Reorder:
    """One stretch's order from `item` on, of which the leaves up to `last` are out already.

    With `any_order` items are handed out as they come; in order come the ends of items, and for each item that is out
    already a tombstone in its place. `out` are leaves above `item` that are out already.
    """

    def __init__(
        self, item: int, last: Key | None, *, any_order: bool = False, out: frozenset[Key] = frozenset()
    ) -> None:
        """Begin at a cursor's place."""
        self.item = item
        self._last, self._out = last, out
        self._any = any_order
        self._root: dict[int, _Node | Received] = {}
        self._early: deque[Received] = deque()
        self.closed = 0

    def __len__(self) -> int:
        """How many items are held."""
        return len(self._root)

    def add(self, packet: Received) -> bool:
        """Take a packet in; False if it is refused (its place is behind, or taken)."""
        first, *rest = packet.key
        if first < self.item:
            return False
        place, part = self._root, first
        for following in rest:
            node = place.get(part)
            if node is None:
                node = place[part] = _Node()
            if not isinstance(node, _Node) or following < node.next:
                return False
            place, part = node.children, following
        return self._set(place, part, packet)

    def straight(self, packet: Received) -> bool:
        """Whether `packet` is the whole of the item that is next: then it need not be taken in, and is through."""
        if packet.kind != Kind.ITEM or packet.key != (self.item,) or self._last is not None or self.item in self._root:
            return False
        if self._out and packet.key in self._out:
            return False
        self.item += 1
        self.closed += 1
        return True

    def _set(self, place: dict[int, _Node | Received], part: int, packet: Received) -> bool:
        found = place.get(part)
        if packet.kind == Kind.CLOSE:
            if found is None:
                found = place[part] = _Node()
            if not isinstance(found, _Node) or found.count is not None:
                return False
            found.count = packet.count
            return True
        if found is not None:
            return False
        if packet.kind == Kind.ITEM and self._is_out(packet.key):  # only its place counts
            packet.kind, packet.value = Kind.TOMBSTONE, None
        if self._any and packet.kind == Kind.ITEM:
            self._early.append(packet)
            packet = Received(Kind.TOMBSTONE, packet.key, packet.samples, 0, packet.meta, None)
        place[part] = packet
        return True

    def _is_out(self, key: Key) -> bool:
        return (self._last is not None and key <= self._last) or key in self._out

    def ready(self) -> Iterator[Leaf]:
        """Leaves in order, each with its packet, and after an item's last one a leaf without a packet.

        Whoever stops in the middle goes on with the next call: nothing comes twice, nothing is lost.
        """
        while self._early:
            packet = self._early.popleft()
            yield Leaf(packet, packet.key[0])
        while True:
            found = self._root.get(self.item)
            if found is None:
                return
            if isinstance(found, _Node):
                yield from self._walk(found)
                if not found.through:
                    return
            else:
                self._root[self.item] = _Node(count=0)  # its leaf is out, its end is not
                if not self._is_out(found.key):
                    yield Leaf(found, self.item)
            del self._root[self.item]
            self.item += 1
            self.closed += 1
            self._last = None
            yield Leaf(None, self.item - 1)

    def _walk(self, node: _Node) -> Iterator[Leaf]:
        while not node.through:
            child = node.children.get(node.next)
            if child is None:
                return
            if isinstance(child, _Node):
                yield from self._walk(child)
                if not child.through:
                    return
            del node.children[node.next]
            node.next += 1
            if not isinstance(child, _Node) and not self._is_out(child.key):
                yield Leaf(child, child.key[0])
