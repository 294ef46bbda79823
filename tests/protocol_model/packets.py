"""Packets, and the hops that carry them."""

from __future__ import annotations

import enum
from collections import deque
from typing import NamedTuple

from tests.protocol_model.cursors import Cursor, ErrorSkip, Key
from tests.protocol_model.memory import Block


class PacketKind(enum.Enum):
    """What a packet says about its key."""

    ITEM = "item"
    """A value, in a block."""
    TOMBSTONE = "tombstone"
    """No value: a stage dropped it."""
    SKIP = "skip"
    """No value: a stage failed on it."""
    CLOSE = "close"
    """A generator has ended; `parts` is the number of parts that it made of the key."""


class Packet(NamedTuple):
    """One message on a hop."""

    generation: int
    kind: PacketKind
    key: Key
    block: Block | None = None
    parts: int = 0
    after: Cursor | None = None
    """From an order point: the cursor from which all that follows this item can be made again."""
    skips: frozenset[ErrorSkip] = frozenset()
    """The error skips that shaped this item."""
    stage: int = -1
    """The stage that failed, if the kind is SKIP."""


class Hop:
    """A bounded queue, shared by all processes on both sides."""

    def __init__(self, capacity: int) -> None:
        self.queue: deque[Packet] = deque()
        self.capacity = capacity

    def is_full(self) -> bool:
        """Whether a sender must wait."""
        return len(self.queue) >= self.capacity
