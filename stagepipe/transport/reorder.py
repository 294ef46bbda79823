"""Restores the order of items at an order point: holds early packets and emits leaves in key order. Pure.

An item that a generator divided is a tree of parts. A node is complete when an END_OF_PARTS packet has stated how many
parts it has, and all of them have been emitted. A chunk is one leaf for `count` consecutive items, of which none has
been emitted; its end is that of its last item. The executable model of the protocol implements the same rules in
quadratic time; here a packet costs the depth of its key.

Invariants:
- A position is emitted at most once, whatever arrives: packets before the cursor, and a second one for a position that
  is held, are rejected. After a seek the same items come again, so both are usual.
- A position that is emitted early (`any_order`, or emitted before the seek) leaves a tombstone. Without it the item
  would never end, and the cursor would stay before it for ever.
- What a leaf yields is removed before it is yielded: the caller may stop at any yield, and the next call goes on behind
  it. If the order were changed, a stop in between would emit it twice.
- The end of an item comes after its last leaf, and only then moves `next_item`: a cursor that was moved earlier would
  lose the rest of the item at the next seek.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from stagepipe.core import Key
from stagepipe.transport.packet import PacketKind
from stagepipe.transport.receiver import ReceivedPacket


class OrderedEvent(NamedTuple):
    """The next event in order: a leaf with its packet (an item or a dropped one), or the end of an item (no packet)."""

    packet: ReceivedPacket | None
    item: int


@dataclass(slots=True)
class _PartNode:
    children: dict[int, _PartNode | ReceivedPacket] = field(default_factory=dict)
    next_part: int = 0
    part_count: int | None = None
    item_count: int = 1

    @property
    def is_complete(self) -> bool:
        return self.part_count is not None and self.next_part >= self.part_count


class ReorderBuffer:
    """The order of a segment from item `next_item` on; its leaves up to `last_key` have been emitted before.

    With `any_order`, items are emitted as they arrive. Later, in order, come the ends of items, and a tombstone in the
    position of each item emitted early. `emitted_keys` are leaves after `next_item` that have been emitted before.
    """

    def __init__(
        self,
        next_item: int,
        last_key: Key | None,
        *,
        any_order: bool = False,
        emitted_keys: frozenset[Key] = frozenset(),
    ) -> None:
        """Start at the position of a cursor."""
        self.next_item = next_item
        self._last_key = last_key
        self._emitted_keys = emitted_keys
        self._is_any_order = any_order
        self._root: dict[int, _PartNode | ReceivedPacket] = {}
        self._chunk_items = 0  # held in chunks, beyond one for each
        self._unordered_packets: deque[ReceivedPacket] = deque()
        self.completed_items = 0

    def __len__(self) -> int:
        """The number of items held."""
        return len(self._root) + self._chunk_items

    def add(self, packet: ReceivedPacket) -> bool:
        """Add a packet; False if it is rejected, because its position was emitted already or is occupied."""
        item, *parts = packet.key
        if item < self.next_item:
            return False
        children = self._root
        part = item
        for next_part in parts:
            node = children.get(part)
            if node is None:
                node = children[part] = _PartNode()
            if not isinstance(node, _PartNode) or next_part < node.next_part:
                return False
            children = node.children
            part = next_part
        return self._insert(children, part, packet)

    def try_advance(self, packet: ReceivedPacket) -> bool:
        """Whether `packet` is the complete next item. If so, the order advances past it and `add` is not needed."""
        if (
            packet.kind != PacketKind.ITEM
            or packet.key != (self.next_item,)
            or self._last_key is not None
            or self.next_item in self._root
        ):
            return False
        if self._emitted_keys and packet.key in self._emitted_keys:
            return False
        self.next_item += 1
        self.completed_items += 1
        return True

    def _insert(self, children: dict[int, _PartNode | ReceivedPacket], part: int, packet: ReceivedPacket) -> bool:
        node = children.get(part)
        if packet.kind == PacketKind.END_OF_PARTS:
            if node is None:
                node = children[part] = _PartNode()
            if not isinstance(node, _PartNode) or node.part_count is not None:
                return False
            node.part_count = packet.count
            return True
        if node is not None:
            return False
        if packet.kind == PacketKind.ITEM and self._was_emitted(packet.key):  # it only completes its position
            packet.kind = PacketKind.TOMBSTONE
            packet.value = None
        if self._is_any_order and packet.kind == PacketKind.ITEM:
            self._unordered_packets.append(packet)
            packet = ReceivedPacket(PacketKind.TOMBSTONE, packet.key, packet.samples, 0, packet.meta, None)
        children[part] = packet
        self._chunk_items += _count_items(packet) - 1
        return True

    def _was_emitted(self, key: Key) -> bool:
        return (self._last_key is not None and key <= self._last_key) or key in self._emitted_keys

    def pop_ready(self) -> Iterator[OrderedEvent]:
        """The leaves that are ready, in order, each with its packet; after an item's last leaf, an event without one.

        Iteration may stop at any point: the next call continues there, without duplicates or gaps.
        """
        while self._unordered_packets:
            packet = self._unordered_packets.popleft()
            yield OrderedEvent(packet, packet.key[0])
        while True:
            node = self._root.get(self.next_item)
            if node is None:
                return
            item_count = 1
            if isinstance(node, _PartNode):
                item_count = node.item_count
                yield from self._pop_ready_parts(node)
                if not node.is_complete:
                    return
            else:
                item_count = _count_items(node)
                # Its leaf is emitted now, its end later.
                self._root[self.next_item] = _PartNode(part_count=0, item_count=item_count)
                if not self._was_emitted(node.key):
                    yield OrderedEvent(node, self.next_item)
            del self._root[self.next_item]
            self.next_item += item_count
            self.completed_items += item_count
            self._chunk_items -= item_count - 1
            self._last_key = None
            yield OrderedEvent(None, self.next_item - 1)

    def _pop_ready_parts(self, node: _PartNode) -> Iterator[OrderedEvent]:
        while not node.is_complete:
            child = node.children.get(node.next_part)
            if child is None:
                return
            if isinstance(child, _PartNode):
                yield from self._pop_ready_parts(child)
                if not child.is_complete:
                    return
            del node.children[node.next_part]
            node.next_part += 1
            if not isinstance(child, _PartNode) and not self._was_emitted(child.key):
                yield OrderedEvent(child, child.key[0])


def _count_items(packet: ReceivedPacket) -> int:
    """The number of consecutive items in a packet: more than one in a chunk."""
    return max(packet.count, 1) if packet.kind == PacketKind.ITEM else 1
