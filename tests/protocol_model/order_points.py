"""Order points: Batch, Shuffle and the sink. Each is one process that ends a segment and restores its order."""

from __future__ import annotations

import enum
from collections import deque
from typing import Any

from msgspec.structs import replace

from stagepipe.core import Cursor, ImposedSkip
from tests.protocol_model.packets import Entry, EntryKind, Hop, Inbox, count_blocks
from tests.protocol_model.processes import Process, Seek, SharedState
from tests.protocol_model.reorder import Reorder
from tests.protocol_model.rules import Rule
from tests.protocol_model.stage_functions import batched, shuffled


class OrderPoint(Process):
    """Consumes the leaves of a segment in order. `cursor` is the position after the last consumed leaf."""

    LEAVES_CHUNK = Rule.DROP_REST_AT_SEEK

    def __init__(self, name: str, segment: int, shared: SharedState, *, incoming: Hop) -> None:
        super().__init__(name, segment, shared)
        self.inbox = Inbox(incoming)
        self.finished = False
        """Whether all items of the epoch are consumed."""
        self._begin(Seek())

    def seek(self, seek: Seek) -> None:
        """Begin at the cursor."""
        self.dead = False
        self._begin(seek)

    def die(self) -> None:
        """Lose the entry in hand and what is held."""
        super().die()
        self.inbox.entries.clear()

    def blocks_held(self) -> int:
        """Those in hand. Those that the reorder holds are leases."""
        return count_blocks(self.inbox.entries)

    def step(self) -> bool:
        """Read an entry, accept it, consume what is ready; at the end, finish the epoch."""
        if self.dead:
            return False
        moved = self._receive()
        if not self.finished and self.board.has_total(self.segment, self.generation, self._consumed_items):
            self.finished = True
            self._finish()
            return True
        return moved

    @property
    def _consumed_items(self) -> int:
        return self.reorder.item - self._uncounted

    def consume(self, entry: Entry) -> None:
        """Take over a leaf."""
        raise NotImplementedError

    def _begin(self, seek: Seek) -> None:
        for block in list(self.leases):
            self.drop_lease(block)
        self.enter(seek)
        self.cursor = seek.cursor
        if not self.shared.keeps(Rule.REMEMBER_EMITTED_KEYS):
            self.cursor = replace(self.cursor, emitted_keys=frozenset())
        self.reorder = Reorder(
            self.cursor,
            self._give_back,
            remember_last=self.shared.keeps(Rule.REMEMBER_LAST_LEAF),
            any_order=self.shared.any_order,
        )
        self.finished = False
        self._uncounted = 0
        """Items that were consumed and are not counted: none, unless a rule is broken."""

    def _give_back(self, entry: Entry) -> None:
        if entry.block:
            self.drop_lease(entry.block)

    def _receive(self) -> bool:
        if self.rows:
            self._add(self.rows.popleft())
            return True
        inbox = self.inbox
        moved = not inbox.entries and inbox.read()
        if not inbox.entries or self.must_wait_with(inbox.entries[0]):
            return moved
        entry = self.accept(inbox)
        if entry is not None:
            self._add(entry)
        elif self.rows and self.reorder.is_out(self.rows[0].key) and not self.shared.keeps(Rule.KEEP_OTHER_ROWS):
            self.rows = deque(row._replace(kind=EntryKind.TOMBSTONE, value=None) for row in self.rows)
        return True

    def _add(self, entry: Entry) -> None:
        self.reorder.add(entry)
        self._consume_ready()

    def _consume_ready(self) -> None:
        for leaf in self.reorder.ready():
            if leaf is None:
                self._end_item()
                continue
            self._move_past(leaf)
            self.consume(leaf)

    def _move_past(self, leaf: Entry) -> None:
        cursor = self.cursor
        if not self.shared.any_order:
            skips = leaf.skips if self.shared.keeps(Rule.CARRY_SKIPS) else frozenset()
            last = leaf.key
            if leaf.row >= 0 and not self.shared.keeps(Rule.CURSOR_INSIDE_CHUNK):
                last = leaf.row_key(leaf.rows - 1 - leaf.row)
            self.cursor = replace(cursor, item=last[0], last_key=last, emitted_count=0, skips=skips)
            return
        item = cursor.item if self.shared.keeps(Rule.RESUME_AT_LOWEST_OPEN) else max(cursor.item, leaf.key[0] + 1)
        self.cursor = replace(cursor, item=item, emitted_keys=cursor.emitted_keys | {leaf.key})

    def _end_item(self) -> None:
        ended = self.reorder.item - 1
        origin = self.reorder.origins.pop(ended, None)
        emitted_keys = frozenset(key for key in self.cursor.emitted_keys if key[0] > ended)
        upstream = None
        if origin and self.segment:
            upstream = origin.after
            self._add_skips(origin.skips)
        self.cursor = Cursor(upstream, ended + 1, emitted_keys=emitted_keys)
        if origin and origin.row > 0 and not self.shared.keeps(Rule.COUNT_EACH_ROW):
            self._uncounted += 1
        self.board.publish_consumed(self.segment, self.generation, self._consumed_items)

    def _add_skips(self, skips: frozenset[ImposedSkip]) -> None:
        """Note the error skips that shaped the item just consumed."""

    def _finish(self) -> None:
        """All items of the epoch are consumed."""


class Sink(OrderPoint):
    """Delivers the leaves. Its cursor is the committed one, on disk: a successor has it too."""

    def __init__(self, segment: int, shared: SharedState, *, incoming: Hop) -> None:
        super().__init__("sink", segment, shared, incoming=incoming)
        self.delivered: list[Any] = []
        """The values of this epoch."""
        self.delivery_count = 0
        """The values of all epochs."""
        self.stopped = False

    def stop(self) -> None:
        """Deliver nothing until the next seek arrives."""
        self.stopped = True

    def step(self) -> bool:
        """As any order point, unless stopped."""
        return False if self.stopped else super().step()

    def consume(self, entry: Entry) -> None:
        """Deliver a value."""
        if entry.kind is EntryKind.ITEM:
            self.delivered.append(self.value_of(entry))
            self.delivery_count += 1
            self._give_back(entry)

    def _begin(self, seek: Seek) -> None:
        super()._begin(seek)
        self.stopped = False


class Grouping(enum.Enum):
    """What an order point inside the pipeline makes of a group of `size` leaves."""

    BATCH = "batch"
    """One output."""
    SHUFFLE = "shuffle"
    """The same values in a random order."""


class GroupingPoint(OrderPoint):
    """Batch or Shuffle. It numbers its outputs, which begins a new segment, and attaches a cursor to each."""

    def __init__(
        self,
        name: str,
        segment: int,
        shared: SharedState,
        *,
        grouping: Grouping,
        size: int,
        window: int,
        incoming: Hop,
        outgoing: Hop,
    ) -> None:
        self.unsent: deque[Entry] = deque()
        super().__init__(name, segment, shared, incoming=incoming)
        self.grouping = grouping
        self.size = size
        self.window = window
        self.outbox = self.make_outbox(outgoing)

    def die(self) -> None:
        """Lose the outputs that were not sent too."""
        super().die()
        self.unsent = deque()

    def blocks_held(self) -> int:
        """Made and not sent, held back, and in hand."""
        return count_blocks(self.unsent, self.outbox.entries) + super().blocks_held()

    def step(self) -> bool:
        """Send an output; if there is none, do as any order point."""
        if self.unsent and not self.dead:
            return self._send()
        return super().step() or (not self.dead and self.outbox.flush_before_wait())

    def consume(self, entry: Entry) -> None:
        """Add a leaf to the group. A complete group becomes outputs."""
        if entry.kind is EntryKind.SKIP:
            self.skips |= {ImposedSkip(entry.stage, entry.key)}
        if entry.kind is not EntryKind.ITEM:
            return
        self.group.append(self.value_of(entry))
        self._give_back(entry)
        self._add_skips(entry.skips)
        if len(self.group) == self.size:
            self._flush()

    def _begin(self, seek: Seek) -> None:
        for entry in self.unsent:
            self.memory.release(entry.block)
        self.unsent = deque()
        super()._begin(seek)
        self.number = seek.first_number
        self.group: list[Any] = []
        self.group_start = replace(seek.cursor, emitted_count=0, skips=frozenset())
        self.emitted = seek.cursor.emitted_count
        self.skips: frozenset[ImposedSkip] = frozenset()

    def _add_skips(self, skips: frozenset[ImposedSkip]) -> None:
        self.skips |= skips

    def _send(self) -> bool:
        first = self.board.first_numbers[self.segment]
        consumed = self.board.consumed(self.segment + 1, self.generation, default=first)
        if self.outbox.is_full() or self.unsent[0].key[0] >= consumed + self.window:
            return self.outbox.flush_before_wait()
        self.outbox.put(self.unsent.popleft())
        return True

    def _finish(self) -> None:
        if self.group:
            self._flush()
        self.board.publish_total(self.segment + 1, self.generation, self.number)

    def _flush(self) -> None:
        """Make the outputs of the group, except those that are out already."""
        values = self._outputs()
        for index, value in enumerate(values):
            if index < self.emitted:
                continue
            after = self.cursor  # where the next group begins
            if index < len(values) - 1:
                after = replace(self.group_start, emitted_count=index + 1, skips=self.skips)
            entry = Entry(
                self.generation,
                EntryKind.ITEM,
                (self.number,),
                self.allocate(value),
                after=after,
                skips=self.skips,
            )
            self.unsent.append(entry)
            self.number += 1
        self.group = []
        self.group_start = self.cursor
        self.emitted = 0
        self.skips = frozenset()

    def _outputs(self) -> list[Any]:
        if self.grouping is Grouping.BATCH:
            return [batched(self.group)]
        return shuffled(self.group, epoch=self.epoch, item=self.group_start.item, last=self.group_start.last_key)
