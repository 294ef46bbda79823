"""Packets of one or several entries, and the hops that carry them."""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple

from stagepipe.core import Cursor, ImposedSkip, Key
from tests.protocol_model.memory import Block
from tests.protocol_model.rules import Rule


class EntryKind(enum.Enum):
    """What an entry says about its key."""

    ITEM = "item"
    """A value, in a block."""
    CHUNK = "chunk"
    """The values of several consecutive items, in one block. The key is the first one's."""
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
    parts: int = 0
    after: Cursor | None = None
    """From an order point: the cursor from which all that follows this item can be made again."""
    skips: frozenset[ImposedSkip] = frozenset()
    """The error skips that shaped this item."""
    stage: str = ""
    """The stage that failed, if the kind is SKIP."""
    row: int = -1
    """The item's place in the chunk that the block holds; below 0 if the block holds a single value."""
    rows: int = 1
    """How many items the block holds."""


Packet = tuple[Entry, ...]
"""What is written at once, and read at once: by one process, or lost as a whole."""


class Hop:
    """A bounded queue of packets, shared by all processes on both sides."""

    def __init__(self, capacity: int) -> None:
        self.queue: deque[Packet] = deque()
        self.capacity = capacity
        self.most_entries = 0
        """Of all packets so far."""

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
    """The entries that a process holds back, to write several of them as one packet."""

    def __init__(self, hop: Hop, max_entries: int, broken: Rule | None) -> None:
        self._hop = hop
        self._max_entries = max_entries
        self._broken = broken
        self.entries: list[Entry] = []

    def is_full(self) -> bool:
        """Whether another entry must wait for room in the hop."""
        return len(self.entries) >= self._max_entries - 1 and self._hop.is_full()

    def put(self, entry: Entry) -> None:
        """Hold an entry back, or write it with those held back."""
        self.entries.append(entry)
        if len(self.entries) >= self._max_entries:
            self._write()

    def flush_before_wait(self) -> bool:
        """The process is about to wait: write what is held back. False if nothing moved."""
        if not self.entries or self._hop.is_full() or self._broken is Rule.FLUSH_BEFORE_WAIT:
            return False
        self._write()
        return True

    def _write(self) -> None:
        if self._broken is Rule.TAG_EACH_ENTRY:
            generation = self.entries[-1].generation
            self.entries = [entry._replace(generation=generation) for entry in self.entries]
        self._hop.queue.append(tuple(self.entries))
        self._hop.most_entries = max(self._hop.most_entries, len(self.entries))
        self.entries = []
