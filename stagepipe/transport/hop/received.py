"""What a receiver hands to its process: an entry with its item, or the error of an item that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stagepipe.core import Key, TransportError
from stagepipe.transport.wire import Entry


@dataclass(slots=True)
class ReceivedPacket:
    """A received entry of a packet, with its item decoded. `count`: of a chunk, its items, set by its order point."""

    kind: int
    key: Key
    samples: int
    count: int
    meta: bytes
    value: Any


class UnreadableItemError(TransportError):
    """An item cannot be unpickled, from the exception of its class. `key`, `samples`, `meta`: those of its entry."""

    def __init__(self, entry: Entry, message: str) -> None:
        self.key = entry.key
        self.samples = entry.samples
        self.meta = entry.meta
        super().__init__(message)
