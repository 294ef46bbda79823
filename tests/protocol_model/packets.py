"""Packets of one or several entries, the hops that carry them, and what a process holds of them."""

from __future__ import annotations

import enum
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from stagepipe.core import Cursor, ImposedSkip, Key
from tests.protocol_model.memory import Block
from tests.protocol_model.rules import Rule

_WRITE_CHANCE = 0.1
"""That a process writes although it could hold back more: costs, or a thread that watches the time, say so."""


class EntryKind(enum.Enum):
    """What an entry says about its key."""

    ITEM = "item"
    """A value, in a block or in the entry."""
    CHUNK = "chunk"
    """The values of several consecutive items, in one block, with None for a tombstone. The key is the first one's."""
    RANGE = "range"
    """Several consecutive items that the reader makes itself. The key is the first one's."""
    TOMBSTONE = "tombstone"
    """No value: a stage dropped it."""
    SKIP = "skip"
    """No value: a stage failed on it."""
    CLOSE = "close"
    """A generator has ended; `parts` is the number of parts that it made of the key."""


class Entry(NamedTuple):
    """What a process says about one key."""

    generation: int
    kind: EntryKind
    key: Key
    block: Block | None = None
    value: Any = None
    """A value without a block: it joins a chunk, or has come in one."""
    parts: int = 0
    after: Cursor | None = None
    """From an order point: the cursor from which all that follows this item can be made again."""
    skips: frozenset[ImposedSkip] = frozenset()
    """The error skips that shaped this item."""
    stage: str = ""
    """The stage that failed, if the kind is SKIP."""
    row: int = -1
    """The item's place in the chunk that it came in; below 0 if it came alone."""
    rows: int = 1
    """How many items the chunk has."""

    def row_key(self, row: int) -> Key:
        """The key of an item of a chunk that begins here."""
        return (*self.key[:-1], self.key[-1] + row)

    def iter_rows(self, values: Sequence[Any]) -> Iterator[Entry]:
        """The items of a chunk."""
        for row, value in enumerate(values):
            kind = EntryKind.TOMBSTONE if value is None else EntryKind.ITEM
            yield self._replace(kind=kind, key=self.row_key(row), block=None, value=value, row=row)


Packet = tuple[Entry, ...]
"""What is written at once, and read at once: by one process, or lost as a whole."""


class Hop:
    """A bounded queue of packets, shared by all processes on both sides."""

    def __init__(self, capacity: int) -> None:
        self.queue: deque[Packet] = deque()
        self.capacity = capacity
        self.most_entries = 0
        """Of all packets so far."""
        self.most_rows = 0
        """Of all chunks so far."""

    def is_full(self) -> bool:
        """Whether a sender must wait."""
        return len(self.queue) >= self.capacity


class Inbox:
    """The entries of the packet that a process has read from a hop."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        self.entries: deque[Entry] = deque()
        """Those whose turn has not come."""
        self.first_key: Key = ()
        self.is_first = True
        """Whether the next entry is the first of its packet."""

    def read(self) -> bool:
        """Read a packet. False if there is none."""
        if not self._hop.queue:
            return False
        self.entries.extend(self._hop.queue.popleft())
        self.first_key = self.entries[0].key
        self.is_first = True
        return True

    def take(self) -> Entry:
        """The next entry."""
        self.is_first = False
        return self.entries.popleft()


class Outbox:
    """The entries that a process holds back, to write several of them as one packet.

    Values without a block, and tombstones between them, become rows of a chunk while their keys are consecutive.
    """

    def __init__(
        self,
        rnd: random.Random,
        hop: Hop,
        allocate: Callable[[Any], Block],
        *,
        max_entries: int,
        max_rows: int,
        broken: Rule | None,
    ) -> None:
        self._rnd = rnd
        self._hop = hop
        self._allocate = allocate
        self._max_entries = max_entries
        self._max_rows = max_rows
        self._broken = broken
        self.entries: list[Entry] = []
        self.rows: list[Entry] = []
        """The chunk that is not complete."""

    def is_full(self) -> bool:
        """Whether another entry must wait for room in the hop."""
        return len(self.entries) + bool(self.rows) >= self._max_entries - 1 and self._hop.is_full()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held back."""
        return not self.entries and not self.rows

    def put(self, entry: Entry) -> None:
        """Hold an entry back, or write it with those held back."""
        joins = entry.value is not None or (entry.kind is EntryKind.TOMBSTONE and entry.after is None)
        is_gap = bool(self.rows) and entry.key != self.rows[0].row_key(len(self.rows))
        if not joins or (is_gap and self._broken is not Rule.CUT_CHUNK_AT_GAP):
            self._close_chunk()
        if joins:
            self.rows.append(entry)
            if len(self.rows) >= self._max_rows:
                self._close_chunk()
        else:
            self._hold(entry)
        if self._rnd.random() < _WRITE_CHANCE:
            self.flush()

    def flush(self) -> bool:
        """Write what is held back, without a wait for room. False if nothing moved."""
        if not (self.entries or self.rows) or self._hop.is_full():
            return False
        self._close_chunk()
        if self.entries:
            self._write()
        return True

    def flush_before_wait(self) -> bool:
        """The process is about to wait: write what is held back. False if nothing moved."""
        return self._broken is not Rule.FLUSH_BEFORE_WAIT and self.flush()

    def clear(self) -> None:
        """The process has died."""
        self.entries = []
        self.rows = []

    def _close_chunk(self) -> None:
        rows, self.rows = self.rows, []
        values = tuple(row.value for row in rows)
        if self._broken is Rule.KEEP_ROW_OF_TOMBSTONE:
            values = tuple(value for value in values if value is not None)
        if values:
            self._hop.most_rows = max(self._hop.most_rows, len(rows))
            block = self._allocate(values)
            self._hold(Entry(rows[-1].generation, EntryKind.CHUNK, rows[0].key, block, rows=len(values)))

    def _hold(self, entry: Entry) -> None:
        self.entries.append(entry)
        if len(self.entries) >= self._max_entries:
            self._write()

    def _write(self) -> None:
        if self._broken is Rule.TAG_EACH_ENTRY:
            generation = self.entries[-1].generation
            self.entries = [entry._replace(generation=generation) for entry in self.entries]
        self._hop.queue.append(tuple(self.entries))
        self._hop.most_entries = max(self._hop.most_entries, len(self.entries))
        self.entries = []


def count_blocks(*entries: Sequence[Entry]) -> int:
    """How many of the entries have a block."""
    return sum(entry.block is not None for each in entries for entry in each)
