"""Order, restored at an order point: holds what came early and hands out leaves in the order of their keys. Pure.

An item that a generator cut is a tree of parts; a node is through when a close packet has said how many parts it has and
all of them are through. What lies behind the cursor, or comes twice, is refused. The executable model of the protocol
has the same rules in quadratic time; here every packet costs the depth of its key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from stagepipe.core import Key
from stagepipe.transport.channel import Received
from stagepipe.transport.packet import Kind


class Leaf(NamedTuple):
    """The next thing in order: an item (its packet), a place where one was dropped, or the end of a whole item."""

    packet: Received | None
    item: int


@dataclass(slots=True)
class _Node:
    children: dict[int, _Node | Received] = field(default_factory=dict)
    next: int = 0
    count: int | None = None


class Reorder:
    """One stretch's order from `item` on, of which the leaves up to `last` are out already.

    With `any_order` the leaves are handed out as they come, and only the ends of items are in order.
    """

    def __init__(self, item: int, last: Key | None, *, any_order: bool = False) -> None:
        """Begin at a cursor's place."""
        self.item = item
        self._last = last
        self._any = any_order
        self._root: dict[int, _Node | Received] = {}
        self._early: list[Received] = []
        self.closed = 0

    def __len__(self) -> int:
        """How many items are held."""
        return len(self._root)

    def add(self, packet: Received) -> bool:
        """Take a packet in; False if it is refused (its place is behind, or taken)."""
        key = packet.key
        if key[0] < self.item:
            return False
        if packet.kind == Kind.ITEM and self._last is not None and key <= self._last:
            packet.kind, packet.value = Kind.TOMBSTONE, None
        place = self._root
        node: _Node | None = None
        for depth, part in enumerate(key):
            if node is not None and part < node.next:
                return False
            found = place.get(part)
            if depth == len(key) - 1:
                return self._set(place, part, found, packet)
            if found is None:
                found = place[part] = _Node()
            if not isinstance(found, _Node):
                return False
            node, place = found, found.children
        return False

    def _set(
        self, place: dict[int, _Node | Received], part: int, found: _Node | Received | None, packet: Received
    ) -> bool:
        if packet.kind == Kind.CLOSE:
            if found is None:
                found = place[part] = _Node()
            if not isinstance(found, _Node) or found.count is not None:
                return False
            found.count = packet.count
            return True
        if found is not None:
            return False
        if self._any and packet.kind == Kind.ITEM:
            self._early.append(packet)
            packet = Received(Kind.TOMBSTONE, packet.key, packet.samples, 0, packet.meta, None)
        place[part] = packet
        return True

    def ready(self) -> Iterator[Leaf]:
        """Leaves in order, each with its packet, and after an item's last one a leaf without a packet."""
        while self._early:
            packet = self._early.pop(0)
            yield Leaf(packet, packet.key[0])
        while True:
            found = self._root.get(self.item)
            if found is None:
                return
            if isinstance(found, _Node):
                yield from self._walk(found)
                if found.count is None or found.next < found.count:
                    return
            else:
                yield Leaf(found, self.item)
            del self._root[self.item]
            self.item += 1
            self.closed += 1
            self._last = None
            yield Leaf(None, self.item - 1)

    def _walk(self, node: _Node) -> Iterator[Leaf]:
        while node.count is None or node.next < node.count:
            child = node.children.get(node.next)
            if child is None:
                return
            if isinstance(child, _Node):
                yield from self._walk(child)
                if child.count is None or child.next < child.count:
                    return
            else:
                yield Leaf(child, child.key[0])
            del node.children[node.next]
            node.next += 1
