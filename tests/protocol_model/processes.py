"""What all processes share: a generation, an era, leases, and the way they enter a seek."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stagepipe.core import Cursor, ImposedSkip
from tests.protocol_model.memory import Block, Memory
from tests.protocol_model.packets import Entry, Inbox
from tests.protocol_model.rules import Rule
from tests.protocol_model.windows import Board

START = Cursor()


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


@dataclass
class SharedState:
    """The memory that every process can see."""

    board: Board
    broken: Rule | None = None
    memory: Memory = field(default_factory=Memory)
    max_entries: int = 1
    """How many entries a packet may have."""
    any_order: bool = False
    """Whether the sink delivers leaves as they arrive. Then there is one segment."""
    wiped_value_seen: bool = False
    """Whether a stage function was called with the content of a wiped block."""

    def keeps(self, rule: Rule) -> bool:
        """Whether the processes follow the rule in this run."""
        return self.broken is not rule


class Process:
    """A process with an arena and leases. It is dead until it, or its successor, receives a seek."""

    def __init__(self, name: str, segment: int, shared: SharedState) -> None:
        self.name = name
        self.segment = segment
        self.shared = shared
        self.memory = shared.memory
        self.board = shared.board
        self.generation = 0
        self.era = 0
        self.leases: list[Block] = []
        self.dead = True
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
        self.dead = True

    def entries_held(self) -> int:
        """How many entries are inside the process, received or ready to be sent."""
        return 0

    def enter(self, seek: Seek) -> None:
        """Work in the seek's generation and era from now on."""
        self.generation = seek.generation
        self.era = seek.era
        self.on_entry(self)

    def accept(self, inbox: Inbox) -> Entry | None:
        """Take an entry and lease its block. One of an older generation is dropped and its block given back: None."""
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
        return entry

    def drop_lease(self, block: Block) -> None:
        """End a lease."""
        self.leases.remove(block)
        self.memory.release(block)

    def pass_on(self, block: Block) -> Block:
        """The block to send for a received one: the same if it is of this era, else a copy."""
        if block.era == self.era or not self.shared.keeps(Rule.COPY_OLD_BLOCKS):
            self.memory.retain(block)
            return block
        return self.memory.allocate(self.name, self.era, self.memory.read(block))
