"""The workers of a stage: they share the hop before it and the hop after it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from stagepipe.core import ImposedSkip, Key
from tests.protocol_model.memory import WIPED
from tests.protocol_model.packets import Entry, EntryKind, Hop, Inbox, count_blocks
from tests.protocol_model.processes import Process, Seek, SharedState
from tests.protocol_model.rules import Rule
from tests.protocol_model.stage_functions import DeadlyValues, Function, SpecialResult
from tests.protocol_model.windows import CurrentItem

_END_CHANCE = 0.25
"""That a call ends, in a step of its worker."""


@dataclass
class Call:
    """An item in progress, or one whose result waits for those before it."""

    entry: Entry
    slot: int = 0
    """Its place on the board."""
    result: Any = None
    """None while it lasts. An entry that is passed on has None for good."""
    has_ended: bool = False


class Worker(Process):
    """Calls the stage's function on up to `threads` items at once. The results leave in the order of the items."""

    def __init__(
        self,
        name: str,
        segment: int,
        shared: SharedState,
        *,
        stage: str,
        function: Function,
        deadly: DeadlyValues | None,
        threads: int,
        incoming: Hop,
        outgoing: Hop,
    ) -> None:
        super().__init__(name, segment, shared)
        self.stage = stage
        self.function = function
        self._deadly = deadly
        self._threads = threads
        self.inbox = Inbox(incoming)
        self.outbox = self.make_outbox(outgoing)
        self.unsent: deque[Entry] = deque()
        self.imposed_skips: frozenset[ImposedSkip] = frozenset()
        self._lone_items: frozenset[tuple[str, int]] = frozenset()
        self.received_seek: Seek | None = None
        self.is_leaving = False
        """Whether it has found that it may leave."""

    def seek(self, seek: Seek) -> None:
        """The control thread receives the seek; the main thread enters it between items."""
        self.received_seek = seek
        self.dead = False

    def die(self) -> None:
        """Lose what was received, made and announced."""
        super().die()
        self.unsent.clear()
        self.inbox.entries.clear()
        self.received_seek = None
        self.calls = []
        self.is_leaving = False

    def blocks_held(self) -> int:
        """Made and not sent, held back, and in hand."""
        return count_blocks(self.unsent, self.outbox.entries, self.inbox.entries)

    def step(self) -> bool:
        """Send an entry, enter a seek, end a call, begin one or read a packet: the first that is possible."""
        if self.dead:
            return False
        if self.is_retiring and (self.is_leaving or self._may_leave()):
            return self._leave()
        if self.unsent:
            return self._send()
        if self.received_seek and not (self.calls and self.shared.keeps(Rule.END_CALLS_BEFORE_SEEK)):
            self._enter_seek(self.received_seek)
            return True
        if self.calls and (self.received_seek or self.shared.rnd.random() < _END_CHANCE):
            self._end_call(self.shared.rnd.choice([call for call in self.calls if not call.has_ended]))
            return True
        return self._take_next() if self._may_go_on() else self.outbox.flush_before_wait()

    def _may_leave(self) -> bool:
        in_hand = (self.calls, self.rows, self.unsent, self.inbox.entries)
        keeps = self.shared.keeps
        if keeps(Rule.LEAVE_WITH_EMPTY_HANDS) and (any(in_hand) or not self.outbox.is_empty):
            return False
        return not (keeps(Rule.AWAIT_RELEASES) and self.memory.has_blocks(self.name, self.era))

    def _leave(self) -> bool:
        """Find that it may leave; then, in another step, end. Nothing comes into its hands between."""
        if not self.is_leaving:
            self.is_leaving = True
            return True
        if not self.shared.keeps(Rule.STOP_READING):
            self.inbox.read()
        self.die()
        self.has_left = True
        return True

    def _send(self) -> bool:
        if self.outbox.is_full():
            return False
        self.outbox.put(self.unsent.popleft())
        return True

    def _enter_seek(self, seek: Seek) -> None:
        self.enter(seek)
        self.imposed_skips = seek.imposed_skips
        self._lone_items = seek.lone_items
        self.received_seek = None

    def _may_go_on(self) -> bool:
        """Whether the next item, if there is one in hand, may be in progress together with those that are."""
        entries = self.rows or self.inbox.entries
        if not entries or not self.calls:
            return True
        if len(self.calls) >= self._threads:
            return False
        keys = [entries[0].key, *(call.entry.key for call in self.calls)]
        is_lone = any((self.stage, key[0]) in self._lone_items for key in keys)
        return not (is_lone and self.shared.keeps(Rule.TRY_SUSPECTS_ALONE))

    def _take_next(self) -> bool:
        inbox = self.inbox
        if self.rows:
            self._begin_call(self.rows.popleft())
            return True
        if not inbox.entries and not self.is_retiring and inbox.read():
            return True
        if not inbox.entries or self.must_wait_with(inbox.entries[0]):
            return self.outbox.flush_before_wait()
        entry = self.accept(inbox)
        if entry is not None:
            self._begin_call(entry)
        return True

    def _begin_call(self, entry: Entry) -> None:
        call = Call(entry)
        self.calls.append(call)
        if entry.kind is not EntryKind.ITEM:
            call.has_ended = True
        elif self._is_skipped(entry):
            call.result = SpecialResult.FAILED
            call.has_ended = True
        else:
            slots = self.board.current_items.setdefault(self.name, {})
            if self.shared.keeps(Rule.NAME_EACH_CALL):
                call.slot = next(slot for slot in range(len(self.calls)) if slot not in self._used_slots())
            slots[call.slot] = CurrentItem(self.epoch, self.stage, self._named_key(entry))
            if self._threads == 1:
                self._end_call(call)
        self._emit_ended()

    def _used_slots(self) -> set[int]:
        return {call.slot for call in self.calls[:-1] if not call.has_ended}

    def _is_skipped(self, entry: Entry) -> bool:
        key = entry.key if self.shared.keeps(Rule.SKIP_EACH_ROW) else entry.row_key(-max(entry.row, 0))
        return ImposedSkip(self.stage, key) in self.imposed_skips

    def _named_key(self, entry: Entry) -> Key:
        if entry.row >= 0:
            return entry.key if self.shared.keeps(Rule.NAME_EACH_ROW) else entry.row_key(-entry.row)
        return entry.key if self.shared.keeps(Rule.NAME_EACH_ENTRY) else self.inbox.first_key

    def _end_call(self, call: Call) -> None:
        value = self.value_of(call.entry)
        self.shared.wiped_value_seen |= value == WIPED
        slots = self.board.current_items[self.name]
        if self._deadly and self._deadly.kills(value):
            self.timed_out = slots.get(call.slot) if self._deadly.hangs(value) else None
            self.die()
            return
        call.result = self.function(value)
        call.has_ended = True
        if self.shared.keeps(Rule.CLEAR_CURRENT_ITEM):
            slots.pop(call.slot, None)
        self._emit_ended()

    def _emit_ended(self) -> None:
        while self.calls and self.calls[0].has_ended:
            call = self.calls.pop(0)
            self._emit(call.entry._replace(generation=self.generation, row=-1), call.result)
            if call.entry.block:
                self.drop_lease(call.entry.block)

    def _emit(self, entry: Entry, result: Any) -> None:
        if result is None:
            self.unsent.append(entry)
        elif result is SpecialResult.FAILED:
            self.unsent.append(entry._replace(kind=EntryKind.SKIP, block=None, value=None, stage=self.stage))
        elif result is SpecialResult.DROPPED:
            self.unsent.append(entry._replace(kind=EntryKind.TOMBSTONE, block=None, value=None))
        elif result is SpecialResult.UNCHANGED and entry.block:
            self.unsent.append(entry._replace(block=self.pass_on(entry.block)))
        elif isinstance(result, list):
            for part, value in enumerate(result):
                self._emit_value(entry._replace(key=(*entry.key, part)), value)
            self.unsent.append(entry._replace(kind=EntryKind.CLOSE, block=None, value=None, parts=len(result)))
        else:
            self._emit_value(entry, entry.value if result is SpecialResult.UNCHANGED else result)

    def _emit_value(self, entry: Entry, value: Any) -> None:
        has_cursor = entry.after is not None and self.shared.keeps(Rule.SEND_CURSORS_ALONE)
        if not has_cursor and self.shared.joins_chunk():
            self.unsent.append(entry._replace(block=None, value=value))
        else:
            self.unsent.append(entry._replace(block=self.allocate(value), value=None))
