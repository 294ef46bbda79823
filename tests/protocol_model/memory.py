"""All arenas in one place: blocks, their reference counts, and the wipe after a death."""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import Any, NamedTuple

WIPED = "WIPED"
"""What a reader finds in a block that was wiped."""


class Block(NamedTuple):
    """The address of a value."""

    owner: str
    era: int
    number: int


class Memory:
    """Blocks with reference counts. The last release frees a block."""

    def __init__(self) -> None:
        self.values: dict[Block, Any] = {}
        self._references: dict[Block, int] = {}
        self._allocated = 0

    def allocate(self, owner: str, era: int, value: Any) -> Block:
        """A new block with one reference."""
        self._allocated += 1
        block = Block(owner, era, self._allocated)
        self.values[block] = value
        self._references[block] = 1
        return block

    def retain(self, block: Block) -> None:
        """Add a reference."""
        self._references[block] = self._references.get(block, 0) + 1

    def release(self, block: Block) -> None:
        """Remove a reference. A release of a block that was wiped is ignored."""
        if block not in self._references:
            return
        self._references[block] -= 1
        if self._references[block] <= 0:
            del self._references[block]
            self.values.pop(block, None)

    def read(self, block: Block) -> Any:
        """The value, or `WIPED`."""
        return self.values.get(block, WIPED)

    def read_rows(self, block: Block, rows: int) -> tuple[Any, ...]:
        """The values of a chunk, or as many times `WIPED`."""
        values = self.read(block)
        return (WIPED,) * rows if values == WIPED else values

    def has_blocks(self, owner: str, era: int) -> bool:
        """Whether a block that `owner` has allocated in this era is in use."""
        return any(block.owner == owner and block.era == era for block in self.values)

    def wipe_slot(self, owner: str, eras: Container[int]) -> None:
        """The slot of `owner` is empty: nobody uses the blocks of these eras, whose pages go back to the kernel."""
        for block in [block for block in self.values if block.owner == owner and block.era in eras]:
            del self.values[block]
            del self._references[block]

    def wipe_before(self, era: int, leased: Collection[Block]) -> None:
        """Free the blocks of older eras, except those that a live process still leases."""
        for block in [block for block in self.values if block.era < era and block not in leased]:
            del self.values[block]
            del self._references[block]
