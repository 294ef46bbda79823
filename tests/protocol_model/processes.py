"""What all processes share: a generation, an era, leases, and the way they enter a seek."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from stagepipe.core import Cursor, ImposedSkip
from tests.protocol_model.memory import Block, Memory
from tests.protocol_model.packets import Entry, EntryKind, Hop, Inbox, Outbox
from tests.protocol_model.rules import Rule
from tests.protocol_model.windows import Board, CurrentItem

START = Cursor()
_JOIN_CHANCE = 0.8
"""That an item is one of those that may share a chunk."""


@dataclass(frozen=True, kw_only=True)
class Seek:
    """The message that tells a process where to begin."""

    generation: int = 0
    era: int = 0
    epoch: int = 0
    cursor: Cursor = START
    """Where the segment of the process begins."""
    first_number: int = 0
    """The number of an order point's next output."""
    imposed_skips: frozenset[ImposedSkip] = frozenset()
    """What the stages must skip, whether or not they would fail again."""
    lone_items: frozenset[tuple[str, int]] = frozenset()
    """The stages and items that a worker processes while it processes no other."""


@dataclass
class SharedState:
    """The memory that every process can see."""

    rnd: random.Random
    board: Board
    broken: Rule | None = None
    memory: Memory = field(default_factory=Memory)
    max_entries: int = 1
    """How many entries a packet may have."""
    max_rows: int = 1
    """How many items a chunk may have; 1: there are no chunks."""
    any_order: bool = False
    """Whether the sink delivers leaves as they arrive. Then there is one segment."""
    wiped_value_seen: bool = False
    """Whether a stage function was called with the content of a wiped block."""

    def keeps(self, rule: Rule) -> bool:
        """Whether the processes follow the rule in this run."""
        return self.broken is not rule

    def joins_chunk(self) -> bool:
        """Whether the next item may share a chunk."""
        return self.max_rows > 1 and self.rnd.random() < _JOIN_CHANCE


class Process:
    """A process with an arena and leases. It is dead until it, or its successor, receives a seek."""

    LEAVES_CHUNK: ClassVar = Rule.LEAVE_CHUNK_AT_SEEK
    """The rule by which it leaves the rest of a chunk."""

    def __init__(self, name: str, segment: int, shared: SharedState) -> None:
        self.name = name
        self.segment = segment
        self.shared = shared
        self.memory = shared.memory
        self.board = shared.board
        self.generation = 0
        self.era = 0
        self.epoch = 0
        self.leases: list[Block] = []
        self.rows: deque[Entry] = deque()
        """The rest of the chunk in hand. Its values were copied out of the block."""
        self.outbox: Outbox | None = None
        self.calls: list[Any] = []
        """The items in progress, of a worker."""
        self.timed_out: CurrentItem | None = None
        """The item that was in progress for too long, so that the process was killed."""
        self.dead = True
        self.is_dormant = False
        """Whether its slot has no process: it does not count."""
        self.is_retiring = False
        """Whether it takes no more packets, and leaves when nobody needs it."""
        self.has_left = False
        """Whether it has ended by itself, which the supervisor has not noticed."""
        self.first_era = 0
        """In which it was started. It waits for a seek of this era or a later one."""
        self.on_entry: Callable[[Process], None] = lambda process: None
        """Takes the report of a process that has entered a seek: its leases."""

    def seek(self, seek: Seek) -> None:
        """Receive a seek."""
        raise NotImplementedError

    def step(self) -> bool:
        """Do one thing. False if there was nothing to do."""
        raise NotImplementedError

    def die(self) -> None:
        """Lose all that the process holds."""
        self.leases = []
        self.rows.clear()
        if self.outbox:
            self.outbox.clear()
        self.dead = True
        self.is_retiring = False

    def blocks_held(self) -> int:
        """How many blocks are inside the process without a lease, received or ready to be sent."""
        return 0

    def make_outbox(self, hop: Hop) -> Outbox:
        """The outbox of a process that sends to `hop`."""
        shared = self.shared
        return Outbox(
            shared.rnd,
            hop,
            self.allocate,
            max_entries=shared.max_entries,
            max_rows=shared.max_rows,
            broken=shared.broken,
        )

    def allocate(self, value: Any) -> Block:
        """A new block of the own arena."""
        return self.memory.allocate(self.name, self.era, value)

    def enter(self, seek: Seek) -> None:
        """Work in the seek's generation and era from now on."""
        self.generation = seek.generation
        self.era = seek.era
        self.epoch = seek.epoch
        if self.shared.keeps(self.LEAVES_CHUNK):
            self.rows.clear()
        if self.outbox:
            is_kept = not self.shared.keeps(Rule.DISCARD_CHUNK_AT_SEEK)
            self.outbox.rows = [row._replace(generation=self.generation) for row in self.outbox.rows if is_kept]
        self.on_entry(self)

    def accept(self, inbox: Inbox) -> Entry | None:
        """Take an entry and lease its block. One of an older generation is dropped and its block given back: None.

        None for a chunk too: its items are in hand from now on.
        """
        must_check = inbox.is_first or self.shared.keeps(Rule.CHECK_EACH_ENTRY)
        entry = inbox.take()
        if not must_check:
            entry = entry._replace(generation=self.generation)
        if entry.generation < self.generation:
            if entry.block and entry.block.era == self.era and self.shared.keeps(Rule.RELEASE_DROPPED_ENTRIES):
                self.memory.release(entry.block)
            return None
        if entry.block:
            self.leases.append(entry.block)
        if entry.kind is EntryKind.CHUNK:
            self.rows.extend(entry.iter_rows(self.memory.read_rows(entry.block, entry.rows)))
            self.drop_lease(entry.block)
            return None
        if entry.kind is EntryKind.RANGE:
            items = range(entry.key[0], entry.key[0] + entry.rows)
            self.rows.extend(entry.iter_rows([("s", self.epoch, item) for item in items]))
            return None
        return entry

    def must_wait_with(self, entry: Entry) -> bool:
        """Whether the entry is of a newer generation: it waits in hand until its seek arrives here."""
        return entry.generation > self.generation and self.shared.keeps(Rule.WAIT_FOR_OWN_SEEK)

    def value_of(self, entry: Entry) -> Any:
        """The value of an item."""
        return self.memory.read(entry.block) if entry.block else entry.value

    def drop_lease(self, block: Block) -> None:
        """End a lease."""
        self.leases.remove(block)
        self.memory.release(block)

    def pass_on(self, block: Block) -> Block:
        """The block to send for a received one: the same if it is of this era, else a copy."""
        if block.era == self.era or not self.shared.keeps(Rule.COPY_OLD_BLOCKS):
            self.memory.retain(block)
            return block
        return self.allocate(self.memory.read(block))
