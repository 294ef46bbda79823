"""The source: indexed, or a stream that keeps what is not delivered yet."""

from __future__ import annotations

from collections.abc import Callable

from tests.protocol_model.memory import Block
from tests.protocol_model.packets import Entry, EntryKind, Hop, count_blocks
from tests.protocol_model.processes import Process, Seek, SharedState
from tests.protocol_model.rules import Rule

_FORGET_CHANCE = 0.5
"""A stream may forget an item that it sends once more: it can read it again. So a lease of an older era ends early."""


class Source(Process):
    """Sends `items` items, at most `window` ahead of the first order point.

    A stream keeps its items until they are delivered, to send them again after a seek. If it dies, its successor reads
    the stream again from the start and skips to the cursor; here that is the same as an index.

    With `sends_ranges` an index sends numbers of items, and the workers make the items.
    """

    def __init__(
        self,
        shared: SharedState,
        outgoing: Hop,
        *,
        items: int,
        window: int,
        stream: bool,
        sends_ranges: bool,
    ) -> None:
        super().__init__("source", 0, shared)
        self.outbox = self.make_outbox(outgoing)
        self.items = items
        self.window = window
        self.stream = stream
        self._sends_ranges = sends_ranges
        self._rnd = shared.rnd
        self.first = 0
        self.next = 0
        self.kept: dict[tuple[int, int], Block] = {}
        """Stream: the blocks of (epoch, item) that are not delivered yet."""
        self.delivered_item: Callable[[], int] = lambda: 0
        """The source items below this number are delivered for good. The sink publishes it."""

    def seek(self, seek: Seek) -> None:
        """Begin at the cursor's item."""
        self.dead = False
        self.enter(seek)
        self.first = seek.cursor.item
        self.next = seek.cursor.item

    def die(self) -> None:
        """Lose the kept items too."""
        super().die()
        self.kept = {}

    def blocks_held(self) -> int:
        """Made and held back."""
        return count_blocks(self.outbox.entries)

    def step(self) -> bool:
        """Send one item or a range, if the hop and the window allow it; at the end, publish the total."""
        if self.dead:
            return False
        self._release_delivered()
        if self.next >= self.items:
            return self.outbox.flush_before_wait() or self._publish_total()
        admitted = min(self._consumed() + self.window, self.items) - self.next
        if self.outbox.is_full() or admitted <= 0:
            return self.outbox.flush_before_wait()
        if self._sends_ranges:
            rows = self._rnd.randint(1, min(self.shared.max_rows, admitted))
            self.outbox.put(Entry(self.generation, EntryKind.RANGE, (self.next,), rows=rows))
            self.next += rows
            return True
        block = self._block()
        entry = Entry(self.generation, EntryKind.ITEM, (self.next,), block)
        if self.shared.joins_chunk():
            entry = entry._replace(block=None, value=self.memory.read(block))
            self.memory.release(block)
        self.outbox.put(entry)
        self.next += 1
        return True

    def _release_delivered(self) -> None:
        if not self.kept:
            return
        delivered = (self.epoch, self.delivered_item())
        for place in [place for place in self.kept if place < delivered]:
            self.drop_lease(self.kept.pop(place))

    def _publish_total(self) -> bool:
        if self.board.has_total(0, self.generation, self.items):
            return False
        self.board.publish_total(0, self.generation, self.items)
        return True

    def _consumed(self) -> int:
        if self.shared.keeps(Rule.TAG_PROGRESS):
            return self.board.consumed(0, self.generation, default=self.first)
        return self.board.consumed_in_any_generation(0)

    def _block(self) -> Block:
        place = (self.epoch, self.next)
        if place in self.kept:
            block = self.pass_on(self.kept[place])
            if self.kept[place].era < self.era and self._rnd.random() < _FORGET_CHANCE:
                self.drop_lease(self.kept.pop(place))
            return block
        block = self.allocate(("s", *place))
        if self.stream:
            self.memory.retain(block)
            self.leases.append(block)
            self.kept[place] = block
        return block
