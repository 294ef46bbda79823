"""Puts a run of plain items that exceeds a packet into a block of shared memory, and leases it where it arrives.

A packet holds one row of 2 kB, and costs both sides 30 us of CPU time. In a block, fifteen rows share a packet. The
reader copies them out, so that a row which is kept does not keep the block.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Final

import numpy as np

from stagepipe.core import ArenaFullError, TransportError
from stagepipe.transport.hop.carried_blocks import CarriedBlocks
from stagepipe.transport.hop.plain_run import PLAIN_RUN, PlainItem, RunTimes, encode_run
from stagepipe.transport.memory import Lease, SharedMemoryPool
from stagepipe.transport.wire import INLINE_ARENA, Entry, PacketFlag, pack, write_timestamps

RUN_BLOCK_BYTES: Final = 32 << 10
"""The room for plain items in a block. It stays in the caches, and a row that is kept keeps no more than this."""


class RunBlocks:
    """Packs the runs of a sending process."""

    def __init__(self, carried: CarriedBlocks) -> None:
        """`carried` holds the block of the last run."""
        self._carried = carried

    def pack(
        self, items: list[PlainItem], generation: int, send_ns: int, *, has_arrays: bool
    ) -> tuple[bytearray, RunTimes] | None:
        """The packet of a run in a block, and its times; None if there is no memory for it.

        `send_ns`: what the write will take for each item.
        """
        data, encode_ns, made_ns = encode_run(items, has_arrays=has_arrays)
        begin_ns = perf_counter_ns()
        nbytes, count = len(data), len(items)
        self._carried.block_ids = []
        try:
            arena, block, target = self._carried.allocate(nbytes, for_several_items=True)
        except ArenaFullError:
            return None
        target[:] = np.frombuffer(data, np.uint8)
        packet = pack(
            PLAIN_RUN,
            (generation, (0,), 1, b""),
            flags=PacketFlag.PICKLE_IN_BLOCK,
            count_or_bytes=count,
            descriptors=[(arena, 0, 0, block, 0, nbytes)],
        )
        now_ns = perf_counter_ns()
        copy_ns = (now_ns - begin_ns) // count
        write_timestamps(packet, encode_ns + copy_ns + send_ns, now_ns)
        return packet, RunTimes(encode_ns, nbytes // count, made_ns, copy_ns, is_in_block=True)

    def release(self) -> None:
        """Release the block of a run that was not sent."""
        self._carried.release()


def lease_run(entry: Entry, memory: SharedMemoryPool) -> Lease | None:
    """A lease on the block of a received run; None if the run is in its packet. Raises TransportError if damaged."""
    if not entry.descriptors:
        return None
    arena, _, _, block, start, nbytes = entry.descriptors[0]
    if len(entry.descriptors) != 1 or entry.flags != PacketFlag.PICKLE_IN_BLOCK or arena == INLINE_ARENA or start:
        raise TransportError(f"a run has {len(entry.descriptors)} descriptors and the flags {entry.flags}")
    return memory.lease_block(arena, block, nbytes, is_shared=False)
