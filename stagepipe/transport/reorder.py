"""Restores the order of items at an order point: holds early packets and emits leaves in key order. Pure.

An item that a generator divided is a tree of parts. A node is complete when an END_OF_PARTS packet has stated its
number of parts and all of them have been emitted. A chunk is emitted whole: it is the leaf at `count` consecutive
positions, and each position refers to it. The executable model of the protocol implements the same rules in quadratic
time. Here a packet costs the depth of its key, and the next chunk in order costs one comparison.

Invariants:
- A position is emitted at most once. Packets before the cursor, and a second packet for a held position, are rejected.
  After a seek the same items come again, so both cases are common. A chunk that is only partly new is divided into its
  items.
- A position that is emitted early (with `any_order`, or before the seek) leaves a tombstone. Without it the item would
  never end, and the cursor would stay before it forever.
- A leaf is removed before it is yielded: the caller may stop at any yield, and the next call continues behind it. In
  the opposite order, a stop in between would emit the leaf twice.
- The end of an item comes after its last leaf, and only the end advances `next_item`: a cursor that advanced earlier
  would lose the rest of the item at the next seek. A caller that takes the items of a chunk one by one counts them
  itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stagepipe.core import Key
from stagepipe.transport.packet import PacketKind
from stagepipe.transport.receiver import ReceivedPacket, split_chunk

_ITEM: Final = int(PacketKind.ITEM)
_CHUNK: Final = int(PacketKind.CHUNK)


class OrderedEvent(NamedTuple):
    """The next event in order: leaves with their packet (an item, a chunk, a dropped item), or the end of an item.

    An end has no packet. The items of a chunk share one end, with the number of the last item.
    """

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
    """The order of a segment from item `next_item` on. Its leaves up to `last_key` were emitted earlier.

    With `any_order`, items are emitted as they arrive. Their ends come later, in order, and a tombstone takes the
    position of each item emitted early. `emitted_keys` are leaves after `next_item` that were emitted earlier.
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
        self._last_emitted_item = max((key[0] for key in emitted_keys), default=-1)
        self._is_any_order = any_order
        self.held: dict[int, _PartNode | ReceivedPacket] = {}
        """Packets and nodes by item. A chunk is stored at each of its items."""
        self._unordered_packets: deque[ReceivedPacket] = deque()
        self.completed_items = 0

    def __len__(self) -> int:
        """The number of items held."""
        return len(self.held)

    def add(self, packet: ReceivedPacket) -> bool:
        """Add a packet. Returns False if it is rejected, because its positions were emitted already or are occupied."""
        part, *parts = packet.key
        children = self.held
        first_open = self.next_item
        for next_part in parts:
            if part < first_open:
                return False
            node = children.get(part)
            if node is None:
                node = children[part] = _PartNode()
            if not isinstance(node, _PartNode):
                return False
            children, part, first_open = node.children, next_part, node.next_part
        count = _count_leaves(packet)
        if packet.kind == _CHUNK and (
            part < first_open or self._may_be_emitted(packet.key) or _has_any(children, part, count)
        ):
            added = [self.add(single) for single in split_chunk(packet)]
            return True in added
        return part >= first_open and self._insert(children, part, count, packet)

    def try_advance(self, packet: ReceivedPacket) -> bool:
        """Advance past `packet` if it is the next item or items. Returns whether it was; if so, do not `add` it."""
        first = self.next_item
        if packet.key != (first,) or self._last_key is not None or self._has_emitted_keys():
            return False
        if packet.kind == _CHUNK:
            count = packet.count
        elif packet.kind == _ITEM:
            count = 1
        else:
            return False
        if self.held and _has_any(self.held, first, count):
            return False
        self.next_item = first + count
        self.completed_items += count
        return True

    def _insert(
        self, children: dict[int, _PartNode | ReceivedPacket], part: int, count: int, packet: ReceivedPacket
    ) -> bool:
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
        if packet.kind == _ITEM and self._was_emitted(packet.key):  # the packet only completes its position
            packet.kind = PacketKind.TOMBSTONE
            packet.value = None
        if self._is_any_order and packet.kind in {_ITEM, _CHUNK}:
            self._unordered_packets.append(packet)
            packet = ReceivedPacket(PacketKind.TOMBSTONE, packet.key, packet.samples, packet.count, packet.meta, None)
        if count == 1:
            children[part] = packet
        else:
            children.update(dict.fromkeys(range(part, part + count), packet))
        return True

    def _was_emitted(self, key: Key) -> bool:
        return (self._last_key is not None and key <= self._last_key) or key in self._emitted_keys

    def _may_be_emitted(self, key: Key) -> bool:
        """Whether some leaves from `key` on may have been emitted before the cursor."""
        last_key = self._last_key
        return (last_key is not None and key <= last_key) or self._has_emitted_keys()

    def _has_emitted_keys(self) -> bool:
        if self._emitted_keys and self.next_item > self._last_emitted_item:
            self._emitted_keys = frozenset()
        return bool(self._emitted_keys)

    def pop_ready(self) -> Iterator[OrderedEvent]:
        """Yield the ready leaves in order, each with its packet; after an item's last leaf, an event without a packet.

        Iteration may stop at any point: the next call continues there, without duplicates or gaps.
        """
        while self._unordered_packets:
            packet = self._unordered_packets.popleft()
            yield OrderedEvent(packet, packet.key[0])
        while True:
            first = self.next_item
            node = self.held.get(first)
            if node is None:
                return
            if isinstance(node, _PartNode):
                count = node.item_count
                yield from self._pop_ready_parts(node)
                if not node.is_complete:
                    return
            else:
                count = _count_leaves(node)
                self.held[first] = _PartNode(part_count=0, item_count=count)  # the leaf is emitted now, the end later
                if not self._was_emitted(node.key):
                    yield OrderedEvent(node, first)
            _remove(self.held, first, count)
            self.next_item = first + count
            self.completed_items += count
            self._last_key = None
            yield OrderedEvent(None, first + count - 1)

    def _pop_ready_parts(self, node: _PartNode) -> Iterator[OrderedEvent]:
        while not node.is_complete:
            child = node.children.get(node.next_part)
            if child is None:
                return
            if isinstance(child, _PartNode):
                yield from self._pop_ready_parts(child)
                if not child.is_complete:
                    return
            count = 1 if isinstance(child, _PartNode) else _count_leaves(child)
            _remove(node.children, node.next_part, count)
            node.next_part += count
            if not isinstance(child, _PartNode) and not self._was_emitted(child.key):
                yield OrderedEvent(child, child.key[0])


def _count_leaves(packet: ReceivedPacket) -> int:
    """Count the consecutive leaves of a packet: more than one for a chunk or for the tombstone of a chunk."""
    return max(packet.count, 1) if packet.kind in _KINDS_OF_CHUNKS else 1


_KINDS_OF_CHUNKS: Final = frozenset((_CHUNK, int(PacketKind.TOMBSTONE)))


def _has_any(children: dict[int, _PartNode | ReceivedPacket], first: int, count: int) -> bool:
    """Whether any of the `count` positions from `first` on is occupied."""
    return not children.keys().isdisjoint(range(first, first + count))


def _remove(children: dict[int, _PartNode | ReceivedPacket], first: int, count: int) -> None:
    if len(children) == count:
        children.clear()
        return
    for position in range(first, first + count):
        del children[position]
