"""The source: indexed, or a stream that keeps what is not delivered yet."""

from __future__ import annotations

from collections.abc import Callable

from tests.protocol_model.memory import Block
from tests.protocol_model.packets import Entry, EntryKind, Hop, Outbox
from tests.protocol_model.processes import Process, Seek, SharedState
from tests.protocol_model.rules import Rule


class Source(Process):
    """Sends `items` items, at most `window` ahead of the first order point.

    A stream keeps its items until they are delivered, to send them again after a seek. If it dies, its successor reads
    the stream again from the start and skips to the cursor; here that is the same as an index.
    """

    def __init__(self, shared: SharedState, outgoing: Hop, *, items: int, window: int, stream: bool) -> None:
        super().__init__("source", 0, shared)
        self.outbox = Outbox(outgoing, shared.max_entries, shared.broken)
        self.items = items
        self.window = window
        self.stream = stream
        self.epoch = 0
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
        self.epoch = seek.epoch
        self.first = seek.cursor.item
        self.next = seek.cursor.item

    def die(self) -> None:
        """Lose the kept items too."""
        super().die()
        self.kept = {}
        self.outbox.entries = []

    def entries_held(self) -> int:
        """Made and held back."""
        return len(self.outbox.entries)

    def step(self) -> bool:
        """Send one item, if the hop and the window allow it; at the end, publish the total."""
        if self.dead:
            return False
        self._release_delivered()
        if self.next >= self.items:
            return self.outbox.flush_before_wait() or self._publish_total()
        if self.outbox.is_full() or self.next >= self._consumed() + self.window:
            return self.outbox.flush_before_wait()
        entry = Entry(self.generation, EntryKind.ITEM, (self.next,), self._block())
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
            return self.pass_on(self.kept[place])
        block = self.memory.allocate(self.name, self.era, ("s", *place))
        if self.stream:
            self.memory.retain(block)
            self.leases.append(block)
            self.kept[place] = block
        return block
