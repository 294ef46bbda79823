"""The workers of a stage: they share the hop before it and the hop after it.

A chunk is processed item by item. The results that are values become rows of a chunk; any other result cuts it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from stagepipe.core import ImposedSkip, Key
from tests.protocol_model.memory import WIPED
from tests.protocol_model.packets import Entry, EntryKind, Hop, Inbox, Outbox
from tests.protocol_model.processes import Process, Seek, SharedState
from tests.protocol_model.rules import Rule
from tests.protocol_model.stage_functions import DeadlyValues, Function, SpecialResult
from tests.protocol_model.windows import CurrentItem


class Worker(Process):
    """Calls the stage's function on one item at a time, of a chunk too."""

    def __init__(
        self,
        name: str,
        segment: int,
        shared: SharedState,
        *,
        stage: str,
        function: Function,
        deadly: DeadlyValues | None,
        incoming: Hop,
        outgoing: Hop,
    ) -> None:
        super().__init__(name, segment, shared)
        self.stage = stage
        self.function = function
        self._deadly = deadly
        self._epoch = 0
        self.inbox = Inbox(incoming)
        self.outbox = Outbox(outgoing, shared.max_entries, shared.broken)
        self.unsent: deque[Entry] = deque()
        self.imposed_skips: frozenset[ImposedSkip] = frozenset()
        self.received_seek: Seek | None = None
        self._chunk: Entry | None = None
        """The chunk in hand."""
        self._next_row = 0
        self._rows: list[Any] = []
        """Results that were not sent, of consecutive items from `_rows_key` on."""
        self._rows_key: Key = ()

    def seek(self, seek: Seek) -> None:
        """The control thread receives the seek; the main thread enters it between items."""
        self.received_seek = seek
        self.dead = False

    def die(self) -> None:
        """Lose what was received, made and announced."""
        super().die()
        self.unsent.clear()
        self.inbox.entries.clear()
        self.outbox.entries = []
        self.received_seek = None
        self._chunk = None
        self._rows = []

    def entries_held(self) -> int:
        """Made and not sent, held back, and in hand."""
        return len(self.unsent) + len(self.outbox.entries) + len(self.inbox.entries)

    def step(self) -> bool:
        """Send an entry, enter a seek, read a packet or process an entry in hand: the first that is possible."""
        if self.dead:
            return False
        if self.unsent:
            return self._send()
        if self.received_seek or self._chunk is not None:
            self._enter_seek_or_process_row()
            return True
        inbox = self.inbox
        if not inbox.entries:
            return inbox.read() or self.outbox.flush_before_wait()
        if inbox.entries[0].generation > self.generation:  # the entry waits in hand until its seek arrives here
            return self.outbox.flush_before_wait()
        entry = self.accept(inbox)
        if entry is not None:
            self._process(entry)
        return True

    def _enter_seek_or_process_row(self) -> None:
        seek = self.received_seek
        if seek is None:
            self._process_row()
            return
        self.enter(seek)
        self.imposed_skips = seek.imposed_skips
        self._epoch = seek.epoch
        self.received_seek = None
        self._leave_chunk()

    def _send(self) -> bool:
        if self.outbox.is_full():
            return False
        self.outbox.put(self.unsent.popleft())
        return True

    def _leave_chunk(self) -> None:
        if self._chunk is None:
            return
        if not self.shared.keeps(Rule.LEAVE_CHUNK_AT_SEEK):
            self._chunk = self._chunk._replace(generation=self.generation)
            return
        self.drop_lease(self._chunk.block)
        self._chunk = None
        self._rows = []

    def _process(self, entry: Entry) -> None:
        if entry.block is None:
            self.unsent.append(entry)
        elif ImposedSkip(self.stage, entry.key) in self.imposed_skips:
            self._emit(entry, SpecialResult.FAILED)
            self.drop_lease(entry.block)
        elif entry.kind is EntryKind.CHUNK:
            self._chunk = entry
            self._next_row = 0
        else:
            named_key = entry.key if self.shared.keeps(Rule.NAME_EACH_ENTRY) else self.inbox.first_key
            self._call(entry, self.memory.read(entry.block), named_key)
            if not self.dead:
                self.drop_lease(entry.block)

    def _process_row(self) -> None:
        """Process the next item of the chunk in hand; after the last, send the rows."""
        chunk = self._chunk
        value = self.memory.read_rows(chunk.block, chunk.rows)[self._next_row]
        entry = Entry(chunk.generation, EntryKind.ITEM, (chunk.key[0] + self._next_row,))
        self._call(entry, value, entry.key if self.shared.keeps(Rule.NAME_EACH_SAMPLE) else chunk.key)
        self._next_row += 1
        if not self.dead and self._next_row == chunk.rows:
            self._send_rows(chunk.generation)
            self.drop_lease(chunk.block)
            self._chunk = None

    def _call(self, entry: Entry, value: Any, named_key: Key) -> None:
        self.shared.wiped_value_seen |= value == WIPED
        self.board.current_items[self.name] = CurrentItem(self._epoch, self.stage, named_key)
        if ImposedSkip(self.stage, entry.key) in self.imposed_skips:
            result = SpecialResult.FAILED
        elif self._deadly and self._deadly.kills(value):
            self.die()
            return
        else:
            result = self.function(value)
        if self._chunk is None:
            self._emit(entry, result)
        else:
            self._emit_row(entry, value if result is SpecialResult.UNCHANGED else result)
        if self.shared.keeps(Rule.CLEAR_CURRENT_ITEM):
            del self.board.current_items[self.name]

    def _emit_row(self, entry: Entry, result: object) -> None:
        """Keep a value as a row; send the rows before anything else."""
        if isinstance(result, SpecialResult | list):
            if self.shared.keeps(Rule.CUT_CHUNK_AT_GAP):
                self._send_rows(entry.generation)
            self._emit(entry, result)
            return
        if not self._rows:
            self._rows_key = entry.key
        self._rows.append(result)

    def _send_rows(self, generation: int) -> None:
        if self._rows:
            block = self.memory.allocate(self.name, self.era, tuple(self._rows))
            rows = len(self._rows)
            self.unsent.append(Entry(generation, EntryKind.CHUNK, self._rows_key, block, rows=rows))
        self._rows = []

    def _emit(self, entry: Entry, result: object) -> None:
        if result is SpecialResult.FAILED:
            self.unsent.append(entry._replace(kind=EntryKind.SKIP, block=None, stage=self.stage))
        elif result is SpecialResult.DROPPED:
            self.unsent.append(entry._replace(kind=EntryKind.TOMBSTONE, block=None))
        elif result is SpecialResult.UNCHANGED:
            self.unsent.append(entry._replace(block=self.pass_on(entry.block)))
        elif isinstance(result, list):
            for part, value in enumerate(result):
                block = self.memory.allocate(self.name, self.era, value)
                self.unsent.append(entry._replace(key=(*entry.key, part), block=block))
            self.unsent.append(entry._replace(kind=EntryKind.CLOSE, block=None, parts=len(result)))
        else:
            block = self.memory.allocate(self.name, self.era, result)
            self.unsent.append(entry._replace(block=block))
