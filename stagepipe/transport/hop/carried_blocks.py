"""The blocks whose references go with a packet: new ones that it fills, and those of leases that it forwards.

Every `Packer` has one `CarriedBlocks`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagepipe.core import TransportError
from stagepipe.timing import TransferKind
from stagepipe.transport.codec import Encoder
from stagepipe.transport.memory import BlockId, Lease, SharedMemoryPool
from stagepipe.transport.wire import BufferDescriptor, pack_descriptors

_BLOCK_ALIGN_BYTES = 64
"""Buffers in a block begin at multiples of a cache line."""

ForwardedLeases = dict[int, tuple[int, int, bool]]
"""By lease index: arena, block, and whether another process may hold a lease on the block too."""


@dataclass(slots=True)
class BlockContents:
    """What goes into a new block: buffers, by their indexes, and after them perhaps the pickle."""

    buffer_indexes: list[int]
    has_pickle: bool
    has_descriptor_table: bool


class CarriedBlocks:
    """The blocks of one packet after the other."""

    def __init__(self, encoder: Encoder, memory: SharedMemoryPool) -> None:
        """`encoder` holds the encoded item of the packet."""
        self._encoder = encoder
        self._memory = memory
        self.block_ids: list[BlockId] = []
        self.copy_kind = TransferKind.COPIED
        """How bytes are copied to the block allocated last."""

    def release(self) -> None:
        """Release the blocks of a packet that was not sent."""
        for arena, block in self.block_ids:
            self._memory.release_block(arena, block)
        self.block_ids = []

    # ------------------------------------------------------------------ blocks of leases

    def forward(self, lease_box: list[Lease]) -> tuple[int, int, bool] | None:
        """Carry the reference of a lease: (arena, block, is shared). None if its bytes must be copied."""
        block_id = lease_box[0].block_id
        is_shared = None if block_id is None else self._memory.forward_lease(lease_box, block_id)
        if block_id is None or is_shared is None:
            return None
        self.block_ids.append(block_id)
        return (*block_id, is_shared)

    def forward_leases(self, threshold_bytes: int) -> ForwardedLeases:
        """Take the references that go with the packet, by lease index. The buffers of all other leases are copied.

        A small part of a block, of less than `threshold_bytes`, is copied too, so that it does not keep the whole block
        in use.
        """
        lease_boxes = self._encoder.lease_boxes
        carried_ids = set(self.block_ids)
        forwarded: ForwardedLeases = {}
        for buffer in self._encoder.buffers:
            index = buffer.lease_index
            if index < 0 or index in forwarded or buffer.nbytes < threshold_bytes or not lease_boxes[index]:
                continue
            lease_box = lease_boxes[index]
            block_id = lease_box[0].block_id
            if block_id is not None and block_id in carried_ids:
                # This process received the block twice: the receiver releases one reference, this process the other.
                forwarded[index] = (*block_id, True)
                continue
            reference = self.forward(lease_box)
            if reference is not None:
                forwarded[index] = reference
                carried_ids.add(reference[:2])
        return forwarded

    # ------------------------------------------------------------------ new blocks

    def fill_block(self, contents: BlockContents) -> tuple[dict[int, int], int, int, int]:
        """Copy `contents` to a new block, the pickle last. Returns (offsets by buffer index, arena, block, bytes)."""
        encoder = self._encoder
        buffers = encoder.buffers
        offsets = {}
        end = 0
        for index in contents.buffer_indexes:
            offsets[index] = end
            end += -(-buffers[index].nbytes // _BLOCK_ALIGN_BYTES) * _BLOCK_ALIGN_BYTES
        pickle_offset = end
        if contents.has_pickle:
            end += len(encoder.pickle_data)
        arena, block, target = self.allocate(end)
        for index, offset in offsets.items():
            encoder.copy_into(buffers[index], target[offset : offset + buffers[index].nbytes])
        if contents.has_pickle:
            target[pickle_offset:] = np.frombuffer(encoder.pickle_data, np.uint8)
        return offsets, arena, block, end

    def write_descriptor_table(self, descriptors: list[BufferDescriptor]) -> BufferDescriptor:
        """Write the descriptors to a block of their own. Returns the descriptor of that table."""
        table = pack_descriptors(descriptors)
        arena, block, target = self.allocate(len(table))
        target[:] = np.frombuffer(table, np.uint8)
        return arena, 0, 0, block, 0, len(table)

    def allocate(
        self, nbytes: int, *, for_several_items: bool = False
    ) -> tuple[int, int, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
        """Allocate a block that goes with the packet: (arena, block, its bytes as a uint8 array)."""
        own_arena = self._memory.arena
        if own_arena is None:
            raise TransportError(f"this process has no shared memory of its own for {nbytes} bytes")
        block = self._memory.allocate(nbytes, for_several_items=for_several_items)
        self.copy_kind = TransferKind.COLD_COPY if own_arena.allocator.is_last_block_cold else TransferKind.COPIED
        self.block_ids.append((own_arena.number, block))
        start = block - own_arena.era_start
        return own_arena.number, block, own_arena.data[start : start + nbytes]
