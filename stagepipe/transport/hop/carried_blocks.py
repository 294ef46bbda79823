"""The blocks whose references go with a packet: new ones that it fills, and those of leases that it forwards.

Every `Packer` has one `CarriedBlocks`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stagepipe.core import TransportError
from stagepipe.timing import TransferKind
from stagepipe.transport.codec import Encoder
from stagepipe.transport.memory import BlockId, Lease, SharedMemoryPool
from stagepipe.transport.rule import Way
from stagepipe.transport.transports import TICKET_BASE, Transport
from stagepipe.transport.wire import BufferDescriptor, pack_descriptors

_BLOCK_ALIGN_BYTES = 64
"""Buffers in a block begin at multiples of a cache line."""

PICKLE_INDEX = -1

PlaceInMemory = tuple[int, int, int]
"""Arena, block, and where a buffer starts in it."""

ForwardedLeases = dict[int, tuple[int, int, bool]]
"""By lease index: arena, block, and whether another process may hold a lease on the block too."""


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

    def forward_leases(self, ways: Sequence[Way]) -> ForwardedLeases:
        """Take the references that go with the packet, by lease index: of the buffers whose way is SHARED."""
        lease_boxes = self._encoder.lease_boxes
        carried_ids = set(self.block_ids)
        forwarded: ForwardedLeases = {}
        for buffer, way in zip(self._encoder.buffers, ways, strict=True):
            index = buffer.lease_index
            if index < 0 or index in forwarded or way is not Way.SHARED or not lease_boxes[index]:
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

    def place(self, indexes: Sequence[int], *, has_pickle: bool) -> tuple[dict[int, PlaceInMemory], int]:
        """Copy buffers to a new block, the pickle last if it goes there. Returns their places by index, and the bytes.

        The pickle's index is PICKLE_INDEX.
        """
        encoder = self._encoder
        buffers = encoder.buffers
        offsets = {}
        end = 0
        for index in indexes:
            offsets[index] = end
            end += -(-buffers[index].nbytes // _BLOCK_ALIGN_BYTES) * _BLOCK_ALIGN_BYTES
        pickle_offset = end
        if has_pickle:
            end += len(encoder.pickle_data)
        arena, block, target = self.allocate(end)
        for index, offset in offsets.items():
            encoder.copy_into(buffers[index], target[offset : offset + buffers[index].nbytes])
        if has_pickle:
            target[pickle_offset:] = np.frombuffer(encoder.pickle_data, np.uint8)
        places = {index: (arena, block, offset) for index, offset in offsets.items()}
        if has_pickle:
            places[PICKLE_INDEX] = (arena, block, pickle_offset)
        return places, end

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


class CarriedBuffers(CarriedBlocks):
    """The buffers of one packet after the other that a `Transport` carries, and the blocks that it forwards."""

    def __init__(self, encoder: Encoder, memory: SharedMemoryPool, arena: int, transport: Transport) -> None:
        """`arena`: the number of the transport in descriptors."""
        super().__init__(encoder, memory)
        self._arena = arena
        self._transport = transport

    def place(self, indexes: Sequence[int], *, has_pickle: bool) -> tuple[dict[int, PlaceInMemory], int]:
        """Place each buffer by itself, and the pickle if it does not go in the packet."""
        encoder = self._encoder
        parts = [(index, encoder.raw_bytes(encoder.buffers[index])) for index in indexes]
        if has_pickle:
            parts.append((PICKLE_INDEX, np.frombuffer(encoder.pickle_data, np.uint8)))
        places = {}
        for index, data in parts:
            block = TICKET_BASE + self._transport.place(data)
            self.block_ids.append((self._arena, block))
            places[index] = (self._arena, block, 0)
        return places, sum([data.size for _, data in parts])
