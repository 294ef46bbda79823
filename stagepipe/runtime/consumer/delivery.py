"""The delivery of one generation: puts its packets in order, and follows the position behind the last item delivered.

In the caller's process, on the thread that iterates. Every seek begins a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from stagepipe.core import Cursor, ImposedSkip
from stagepipe.plan import Plan
from stagepipe.runtime.consumer.position import ConsumerPosition, make_position
from stagepipe.runtime.flow import ProgressPublisher
from stagepipe.transport import PacketKind, ReceivedPacket, ReorderBuffer


class GenerationDelivery:
    """The items of the last segment from a cursor on, in order."""

    def __init__(self, generation: int, cursor: Cursor, plan: Plan, progress: ProgressPublisher) -> None:
        """Begin at `cursor`. The count of items that are completely delivered goes to `progress`."""
        segment = len(plan.segments) - 1
        self.generation = generation
        self._stage_names = plan.stage_names
        self._position: ConsumerPosition = make_position(cursor, segment, any_order=plan.any_order)
        self._reorder = ReorderBuffer(
            cursor.item,
            cursor.last_key,
            any_order=plan.any_order and not segment,
            emitted_keys=cursor.emitted_keys,
        )
        self._progress = progress
        self._meta_by_item: dict[int, bytes] = {}
        self._segment_items: int | None = None

    @property
    def cursor(self) -> Cursor:
        """The cursor after the last item delivered. Raises UsageError where there is none (`order: any`)."""
        return self._position.cursor

    @property
    def next_item(self) -> int:
        """All items of the segment below this number are delivered."""
        return self._reorder.next_item

    @property
    def count_early_items(self) -> Callable[[], int]:
        """Counts the items that have arrived before their turn, in whole or in part.

        It holds no reference to the delivery, because the delivery holds the `ProgressPublisher` that calls it.
        """
        return self._reorder.__len__

    @property
    def is_complete(self) -> bool:
        """Whether everything was delivered until the end of the segment."""
        return self._segment_items is not None and self._reorder.next_item >= self._segment_items

    def add(self, packet: ReceivedPacket) -> Iterable[ReceivedPacket]:
        """Add a packet. Returns the items that are ready now, in order.

        The position moves past an item as the returned iterable yields it. An iterable that is not used up loses
        nothing: the next one continues there.
        """
        reorder = self._reorder
        if packet.kind == PacketKind.END_OF_SEGMENT:
            self._segment_items = packet.count
            return self._pop_ready()
        item = packet.key[0]
        if packet.meta:
            self._meta_by_item[item] = packet.meta
        if not reorder.try_advance(packet):
            reorder.add(packet)
            return self._pop_ready()
        self._position.mark_item_complete(item, self._meta_by_item.pop(item, b""))
        return chain((packet,), self._pop_ready()) if len(reorder) else (packet,)

    def _pop_ready(self) -> Iterator[ReceivedPacket]:
        position = self._position
        for packet, item in self._reorder.pop_ready():
            if packet is None:
                position.mark_item_complete(item, self._meta_by_item.pop(item, b""))
                self._progress.publish(self._reorder.next_item)
                continue
            position.mark_delivered(packet.key, self._meta_by_item.get(item, b""))
            if packet.kind == PacketKind.ITEM:
                yield packet
            elif packet.kind == PacketKind.ERROR_SKIP:
                position.mark_skipped(ImposedSkip(self._stage_names[packet.count], packet.key))
