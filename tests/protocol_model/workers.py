"""The workers of a stage: they share the hop before it and the hop after it."""

from __future__ import annotations

from collections import deque

from tests.protocol_model.cursors import ErrorSkip
from tests.protocol_model.memory import WIPED
from tests.protocol_model.packets import Entry, EntryKind, Hop, Inbox, Outbox
from tests.protocol_model.processes import Process, Seek, SharedState
from tests.protocol_model.rules import Rule
from tests.protocol_model.stage_functions import DeadlyValues, Function, SpecialResult
from tests.protocol_model.windows import CurrentItem


class Worker(Process):
    """Calls the stage's function on one item at a time."""

    def __init__(
        self,
        name: str,
        segment: int,
        shared: SharedState,
        *,
        stage: int,
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
        self.imposed_skips: frozenset[ErrorSkip] = frozenset()
        self.received_seek: Seek | None = None

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

    def entries_held(self) -> int:
        """Made and not sent, held back, and in hand."""
        return len(self.unsent) + len(self.outbox.entries) + len(self.inbox.entries)

    def step(self) -> bool:
        """Send an entry, enter a seek, read a packet or process an entry in hand: the first that is possible."""
        if self.dead:
            return False
        if self.unsent:
            return self._send()
        if self.received_seek:
            self.enter(self.received_seek)
            self.imposed_skips = self.received_seek.imposed_skips
            self._epoch = self.received_seek.epoch
            self.received_seek = None
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

    def _send(self) -> bool:
        if self.outbox.is_full():
            return False
        self.outbox.put(self.unsent.popleft())
        return True

    def _process(self, entry: Entry) -> None:
        if entry.kind is not EntryKind.ITEM:
            self.unsent.append(entry)
            return
        value = self.memory.read(entry.block)
        self.shared.wiped_value_seen |= value == WIPED
        named_key = entry.key if self.shared.keeps(Rule.NAME_EACH_ENTRY) else self.inbox.first_key
        self.board.current_items[self.name] = CurrentItem(self._epoch, self.stage, named_key)
        if ErrorSkip(self.stage, entry.key) in self.imposed_skips:
            result = SpecialResult.FAILED
        elif self._deadly and self._deadly.kills(value):
            self.die()
            return
        else:
            result = self.function(value)
        self._emit(entry, result)
        self.drop_lease(entry.block)
        if self.shared.keeps(Rule.CLEAR_CURRENT_ITEM):
            del self.board.current_items[self.name]

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
