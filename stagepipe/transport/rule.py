"""The rule of a hop: which of an item's buffers go in the packet, and which through shared memory. Pure.

Only `TransportRule.place` decides this. The packer executes its `Placement`, the forecast prices it, and the report
explains it. The decision depends only on sizes, so the packer asks once for each structure of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from stagepipe.transport.packet import DESCRIPTOR_BYTES, INLINE_ALIGN_BYTES, PACKET_BYTES, overhead_bytes

PIPE: Final = "pipe"
"""The config value of the mode that sends everything through the pipe."""
SHARED_MEMORY: Final = "shared_memory"
"""The config value of the mode that sends every buffer through shared memory."""

MAX_INLINE_BYTES = PACKET_BYTES - 512
"""The room in a packet after its header and the pickle of a small dict. Smaller arrays stay in the pickle: the second
copy costs less than a descriptor (3 KB took 14 µs a hop in the pickle, 29 µs with a descriptor)."""
ALWAYS_PIPE_THRESHOLD_BYTES = 1 << 62
"""The threshold of a hop that sends everything through the pipe."""
_NO_HEADER = (0, (0,), 1, b"")


class Way(Enum):
    """The path of a buffer."""

    INLINE = "inline"  # in the packet
    SHARED = "shared"  # handed on in its block if it is in one, else copied to one
    COPIED = "copied"  # copied to a block even if it is in one already: too small to keep the whole block in use


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the parts of an item go.

    `ways`: for each buffer, in order. `is_pickle_copied`: the pickle is copied to a block too. `has_descriptor_table`:
    so are the descriptors, which do not fit the packet. `in_pieces`: the item goes through the pipe in several packets.
    `excess_bytes`: the bytes by which the item exceeds the only packet that it may use. `low_bytes`, `high_bytes`:
    every single buffer with low <= size < high goes the same way, if it fits the packet where it must.
    """

    ways: tuple[Way, ...]
    is_pickle_copied: bool = False
    has_descriptor_table: bool = False
    in_pieces: bool = False
    excess_bytes: int = 0
    low_bytes: int = 0
    high_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class TransportRule:
    """The transport rule of a hop.

    A buffer of `threshold_bytes` or more goes to shared memory. So do all smaller buffers if their sum reaches the
    threshold, and those that do not fit the packet. `large_in_pipe`: an item below the threshold that exceeds a packet
    goes through the pipe in pieces. `mode` is the config value. `reason` states the origin of the threshold.
    """

    threshold_bytes: int
    mode: str = "auto"
    reason: str = ""
    large_in_pipe: bool = False

    @property
    def min_out_of_band_bytes(self) -> int:
        """The size below which arrays stay in the pickle."""
        return 0 if self.mode == SHARED_MEMORY else min(self.threshold_bytes, MAX_INLINE_BYTES)

    @property
    def is_packet_only(self) -> bool:
        """Whether an item that exceeds a packet is an error."""
        return self.mode == PIPE and not self.large_in_pipe

    @property
    def uses_blocks(self) -> bool:
        """Whether anything may go to blocks of shared memory."""
        return self.threshold_bytes < ALWAYS_PIPE_THRESHOLD_BYTES and self.mode in {"auto", SHARED_MEMORY}

    @property
    def word(self) -> int:
        """The part of the rule that the supervisor may change in a running pipeline, as one integer on the board.

        It has the threshold in bytes, shifted by one, and `large_in_pipe` in the lowest bit.

        >>> TransportRule(threshold_bytes=4096, large_in_pipe=True).word
        8193
        """
        return self.threshold_bytes << 1 | self.large_in_pipe

    def with_word(self, word: int) -> TransportRule:
        """Return this rule with the values that another process wrote as `word`."""
        return replace(self, threshold_bytes=word >> 1, large_in_pipe=bool(word & 1))

    def place(self, sizes: Sequence[int], pickle_bytes: int, room_bytes: int | None = None) -> Placement:
        """Choose the way of each buffer of an item, from their sizes in bytes.

        `pickle_bytes` is the size of the rest of the item. `room_bytes` is the room in the packet after its header and
        a descriptor for each buffer; by default the room for an item without parts and without the cursor of an order
        point.

        >>> placement = TransportRule(threshold_bytes=3584).place([1_200_000, 2000], pickle_bytes=200)
        >>> [way.value for way in placement.ways], placement.is_pickle_copied
        (['shared', 'inline'], False)
        """
        room = PACKET_BYTES - overhead_bytes(_NO_HEADER, len(sizes)) if room_bytes is None else room_bytes
        threshold = self.threshold_bytes
        if self.is_packet_only:
            excess = pickle_bytes + sum([size + INLINE_ALIGN_BYTES for size in sizes]) - room
            return Placement(ways=(Way.INLINE,) * len(sizes), excess_bytes=max(excess, 0), high_bytes=threshold)
        ways = [Way.SHARED if size >= threshold else Way.INLINE for size in sizes]
        low, high = (threshold, ALWAYS_PIPE_THRESHOLD_BYTES) if Way.SHARED in ways else (0, threshold)
        inline = [index for index, way in enumerate(ways) if way is Way.INLINE]
        inline_bytes = sum([sizes[index] for index in inline])
        free = room - DESCRIPTOR_BYTES - INLINE_ALIGN_BYTES - pickle_bytes  # the pickle may need a descriptor too
        if inline_bytes < threshold:
            free -= inline_bytes + INLINE_ALIGN_BYTES * len(inline)
            inline.sort(key=lambda index: sizes[index])
        else:  # each is too small for shared memory, but one block for all of them is cheaper
            for index in inline:
                ways[index] = Way.COPIED
            inline = []
        while inline and free < 0:
            index = inline.pop()  # the largest
            free += sizes[index] + INLINE_ALIGN_BYTES
            ways[index] = Way.COPIED
        is_pickle_copied = free < 0 or self.mode == SHARED_MEMORY
        if (
            self.large_in_pipe
            and pickle_bytes + sum(sizes) < threshold
            and (is_pickle_copied or len(inline) < len(sizes))
        ):
            return Placement(ways=(Way.INLINE,) * len(sizes), in_pieces=True, low_bytes=low, high_bytes=high)
        return Placement(
            ways=tuple(ways),
            is_pickle_copied=is_pickle_copied,
            has_descriptor_table=is_pickle_copied and free + pickle_bytes < 0,
            low_bytes=low,
            high_bytes=high,
        )
