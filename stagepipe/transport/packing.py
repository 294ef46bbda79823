"""Packs an encoded item into a packet, following the hop's rule. Every `Sender` has one `Packer`.

Invariants:
- The rule decides, this module executes: it compares no size with a threshold. It asks the rule once for each structure
  (the sizes of an item's parts and of its header), because a call for each item would cost a tenth of a hop.
- The packer reads the rule's word once for each item, before it places anything. A second read could make the parts of
  one item follow two rules.
- A reference that goes with the packet is in `carried.block_ids` from the moment it is taken until the packet is
  written. On an error in between, exactly these references are released: one too few would leak a block, one too many
  would free a block that the receiver reads.
- Leases are taken before the packet's bytes are chosen, because a lease that cannot be handed on is copied instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stagepipe.core import TransportError
from stagepipe.timing import TransferKind
from stagepipe.transport.codec import EncodedBuffer, Encoder
from stagepipe.transport.memory import BlockId, Lease, SharedMemoryPool
from stagepipe.transport.packet import (
    INLINE_ALIGN_BYTES,
    INLINE_ARENA,
    MAX_ENTRY_BYTES,
    PACKET_BYTES,
    PICKLE_BUFFER,
    SHARED_BLOCK,
    BufferDescriptor,
    PacketFlag,
    PacketHeader,
    PacketKind,
    join_entries,
    overhead_bytes,
    pack,
    pack_descriptors,
    pack_entry,
)
from stagepipe.transport.rule import SHARED_MEMORY, Placement, TransportRule, Way
from stagepipe.transport.transports import TICKET_BASE, Transport

_BLOCK_ALIGN_BYTES = 64
"""The alignment of buffers in a block: a cache line."""

PICKLE_INDEX = -1

PlaceInMemory = tuple[int, int, int]
"""Arena, block, and the offset of a buffer in the block."""

ForwardedLeases = dict[int, tuple[int, int, bool]]
"""By lease index: arena, block, and whether another process may also hold a lease on the block."""


class CarriedBlocks:
    """The blocks that go with the packet in the making."""

    def __init__(self, encoder: Encoder, memory: SharedMemoryPool) -> None:
        """`encoder` holds the encoded item of the packet."""
        self._encoder = encoder
        self._memory = memory
        self.block_ids: list[BlockId] = []
        self.copy_kind = TransferKind.COPIED
        """How bytes are copied to the most recently allocated block."""

    def release(self) -> None:
        """Release the blocks of a packet that was not sent."""
        for arena, block in self.block_ids:
            self._memory.release_block(arena, block)
        self.block_ids = []

    # ------------------------------------------------------------------ blocks of leases

    def forward(self, lease_box: list[Lease]) -> tuple[int, int, bool] | None:
        """Take the reference of a lease: (arena, block, is shared). None if its bytes must be copied."""
        block_id = lease_box[0].block_id
        is_shared = None if block_id is None else self._memory.forward_lease(lease_box, block_id)
        if block_id is None or is_shared is None:
            return None
        self.block_ids.append(block_id)
        return (*block_id, is_shared)

    def forward_leases(self, ways: Sequence[Way]) -> ForwardedLeases:
        """Take the references of the buffers whose way is SHARED. Returns them by lease index."""
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
        """Copy buffers to a new block, then the pickle if `has_pickle`. Returns the places by index, and the bytes.

        The index of the pickle is PICKLE_INDEX.
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
        """Write the descriptors to a separate block. Returns the descriptor of that table."""
        table = pack_descriptors(descriptors)
        arena, block, target = self.allocate(len(table))
        target[:] = np.frombuffer(table, np.uint8)
        return arena, 0, 0, block, 0, len(table)

    def allocate(
        self, nbytes: int, *, for_several_items: bool = False
    ) -> tuple[int, int, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
        """Allocate a block that goes with the packet. Returns the arena, the block, and its bytes as a uint8 array."""
        own_arena = self._memory.arena
        if own_arena is None:
            raise TransportError(f"this process has no shared memory to hold {nbytes} bytes")
        block = self._memory.allocate(nbytes, for_several_items=for_several_items)
        self.copy_kind = TransferKind.COLD_COPY if own_arena.allocator.is_last_block_cold else TransferKind.COPIED
        self.block_ids.append((own_arena.number, block))
        start = block - own_arena.era_start
        return own_arena.number, block, own_arena.data[start : start + nbytes]


class CarriedBuffers(CarriedBlocks):
    """The buffers of the packet in the making that a `Transport` carries, and the blocks that it forwards."""

    def __init__(self, encoder: Encoder, memory: SharedMemoryPool, arena: int, transport: Transport) -> None:
        """`arena` is the number of the transport in descriptors."""
        super().__init__(encoder, memory)
        self._arena = arena
        self._transport = transport

    def place(self, indexes: Sequence[int], *, has_pickle: bool) -> tuple[dict[int, PlaceInMemory], int]:
        """Place each buffer separately, and the pickle if it does not go in the packet."""
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


_ITEM = int(PacketKind.ITEM)
_MAX_SINGLE_BYTES = PACKET_BYTES // 2
"""The largest pickle with cursor that certainly fits a packet together with the key and a descriptor."""
_MAX_STRUCTURES = 64
"""Placements to keep. Items of one hop mostly share one structure, or have sizes that never repeat."""


@dataclass(slots=True, kw_only=True)
class SendCounts:
    """Counts of sent messages by transfer, and of sent bytes by path."""

    pipe_messages: int = 0
    shared_memory_messages: int = 0
    mixed_messages: int = 0
    inline_bytes: int = 0
    copied_bytes: int = 0
    zero_copy_bytes: int = 0


class Packer:
    """Packs encoded items. `carried` has the blocks whose references go with the last packet."""

    def __init__(
        self,
        encoder: Encoder,
        memory: SharedMemoryPool,
        rule: TransportRule,
        rule_word: Sequence[int],
        counts: SendCounts,
    ) -> None:
        """`encoder` holds the encoded item; `pack` adds to `counts`. `rule_word` is the rule's word; it may change."""
        self._encoder = encoder
        self._counts = counts
        self._pickles_to_block = rule.mode == SHARED_MEMORY
        self._rule_word = rule_word
        self._rule = rule
        self._known_word = rule.word
        self._placements: dict[tuple[int, ...], Placement] = {}
        self._single = rule.place((1,), 0)
        """The placement of the last single buffer."""
        carrier = memory.find_transport(rule.mode)
        self._has_fast_path = carrier is None and not self._pickles_to_block
        self.carried = CarriedBlocks(encoder, memory) if carrier is None else CarriedBuffers(encoder, memory, *carrier)
        self.transfer_kind = TransferKind.PIPE
        """How the last packet is transferred."""
        self.bytes_in_blocks = 0
        """The bytes in blocks that the last packet describes."""

    def pack_entry(self, header: PacketHeader, sender_ns: int) -> bytes | None:
        """Return an encoded item without buffers as an entry that may share its packet; None if it may not."""
        encoder = self._encoder
        pickle_data = encoder.pickle_data
        pickle_bytes = len(pickle_data)
        if pickle_bytes > MAX_ENTRY_BYTES or self._pickles_to_block:
            return None
        entry = pack_entry(_ITEM, header, sender_ns, pickle_data=pickle_data)
        if len(entry) > MAX_ENTRY_BYTES:
            return None
        counts = self._counts
        counts.pipe_messages += 1
        counts.inline_bytes += pickle_bytes
        return entry

    def pack(self, header: PacketHeader) -> bytearray | None:
        """Return the packet of the encoded item; None if the item must use the pipe and is too large for a packet.

        Call it for items for which `pack_entry` returns None.
        """
        encoder = self._encoder
        buffers = encoder.buffers
        self.carried.block_ids = []
        self.transfer_kind = TransferKind.PIPE
        self.bytes_in_blocks = 0
        word = self._rule_word[0]
        if word != self._known_word:
            self._adopt_rule(word)
        if len(buffers) == 1 and self._has_fast_path and len(encoder.pickle_data) + len(header[3]) <= _MAX_SINGLE_BYTES:
            packet = self._pack_single_buffer(buffers[0], header)
            if packet is not None:
                return packet
        sizes = [buffer.nbytes for buffer in buffers]
        structure = (PACKET_BYTES - overhead_bytes(header, len(buffers)), len(encoder.pickle_data), *sizes)
        placement = self._placements.get(structure) or self._place(structure)
        if placement.in_pieces:
            return None
        forwarded = self.carried.forward_leases(placement.ways) if encoder.lease_boxes else {}
        return self._assemble_packet(forwarded, placement, header)

    def _adopt_rule(self, word: int) -> None:
        """Follow the new rule that the supervisor wrote."""
        self._known_word = word
        self._rule = self._rule.with_word(word)
        self._placements.clear()
        self._single = self._rule.place((1,), 0)

    def _pack_single_buffer(self, buffer: EncodedBuffer, header: PacketHeader) -> bytearray | None:
        """Return the packet of an item with one array in a block; None if it stays inline. This case must be fast."""
        counts, carried, pickle_data = self._counts, self.carried, self._encoder.pickle_data
        nbytes = buffer.nbytes
        placement = self._single
        if not placement.low_bytes <= nbytes < placement.high_bytes:
            placement = self._single = self._rule.place((nbytes,), 0)
        if placement.low_bytes == 0:
            return None
        flags = PICKLE_BUFFER if buffer.is_pickle_buffer else 0
        forwarded = None if buffer.lease_index < 0 else carried.forward(self._encoder.lease_boxes[buffer.lease_index])
        if forwarded is not None:
            arena, block, is_shared = forwarded
            descriptor = (arena, flags | SHARED_BLOCK if is_shared else flags, 0, block, buffer.lease_offset, nbytes)
            self.transfer_kind = TransferKind.ZERO_COPY
            counts.zero_copy_bytes += nbytes
        else:
            arena, block, target = carried.allocate(nbytes)
            self._encoder.copy_into(buffer, target)
            descriptor = (arena, flags, 0, block, 0, nbytes)
            self.transfer_kind = carried.copy_kind
            counts.copied_bytes += nbytes
        self.bytes_in_blocks = nbytes
        counts.shared_memory_messages += 1
        counts.inline_bytes += len(pickle_data)
        return join_entries((pack_entry(_ITEM, header, 0, descriptors=(descriptor,), pickle_data=pickle_data),), 0)

    def _place(self, structure: tuple[int, ...]) -> Placement:
        """Ask the rule where the parts of these items go. Raises TransportError if they do not fit their packet."""
        room_bytes, pickle_bytes, *sizes = structure
        placement = self._rule.place(sizes, pickle_bytes, room_bytes)
        if placement.excess_bytes:
            raise TransportError(
                f"`transport=pipe` between several workers sends an item in one packet, but "
                f"this item needs {room_bytes + placement.excess_bytes} bytes and its packet has {room_bytes}; set "
                "`transport=auto`, or `workers=1` on both sides of the hop"
            )
        if len(self._placements) >= _MAX_STRUCTURES:
            self._placements.clear()
        self._placements[structure] = placement
        return placement

    def _assemble_packet(self, forwarded: ForwardedLeases, placement: Placement, header: PacketHeader) -> bytearray:
        """Return the packet of the encoded item. Copies buffers whose lease could not be handed on."""
        encoder, carried, counts = self._encoder, self.carried, self._counts
        has_pickle = placement.is_pickle_copied
        copied = [
            index
            for index, way in enumerate(placement.ways)
            if way is not Way.INLINE and encoder.buffers[index].lease_index not in forwarded
        ]
        places, block_bytes = carried.place(copied, has_pickle=has_pickle) if copied or has_pickle else ({}, 0)
        descriptors, inline_buffers, forwarded_bytes = self._describe_buffers(places, forwarded)
        pickle_data, flags = encoder.pickle_data, 0
        if has_pickle:
            arena, block, start = places[PICKLE_INDEX]
            descriptors.append((arena, 0, 0, block, start, len(pickle_data)))
            pickle_data, flags = b"", int(PacketFlag.PICKLE_IN_BLOCK)
        in_blocks = [descriptor[5] for descriptor in descriptors if descriptor[0] != INLINE_ARENA]
        if in_blocks:
            self.transfer_kind = carried.copy_kind if block_bytes else TransferKind.ZERO_COPY
            self.bytes_in_blocks = sum(in_blocks)
        if placement.has_descriptor_table:
            flags |= PacketFlag.DESCRIPTOR_TABLE
            descriptors = [carried.write_descriptor_table(descriptors)]
        packet = pack(
            PacketKind.ITEM,
            header,
            flags=flags,
            descriptors=descriptors,
            pickle_data=pickle_data,
            inline_buffers=inline_buffers,
        )
        if not in_blocks:
            counts.pipe_messages += 1
        elif inline_buffers:
            counts.mixed_messages += 1
        else:
            counts.shared_memory_messages += 1
        counts.inline_bytes += sum(map(len, inline_buffers)) + len(pickle_data)
        counts.copied_bytes += block_bytes
        counts.zero_copy_bytes += forwarded_bytes
        return packet

    def _describe_buffers(
        self, places: dict[int, PlaceInMemory], forwarded: ForwardedLeases
    ) -> tuple[list[BufferDescriptor], list[bytes], int]:
        """Return a descriptor for each buffer, the bytes of inline buffers, and the number of bytes handed on."""
        encoder = self._encoder
        descriptors: list[BufferDescriptor] = []
        inline_buffers: list[bytes] = []
        inline_bytes = forwarded_bytes = 0
        for index, buffer in enumerate(encoder.buffers):
            flags = PICKLE_BUFFER if buffer.is_pickle_buffer else 0
            nbytes = buffer.nbytes
            if index in places:
                arena, block, start = places[index]
            elif buffer.lease_index in forwarded:
                arena, block, is_shared = forwarded[buffer.lease_index]
                start = buffer.lease_offset
                flags |= SHARED_BLOCK if is_shared else 0
                forwarded_bytes += nbytes
            else:
                arena, block, start = INLINE_ARENA, 0, inline_bytes
                padding = -nbytes % INLINE_ALIGN_BYTES
                inline_buffers.append(encoder.raw_bytes(buffer).tobytes() + bytes(padding))
                inline_bytes += nbytes + padding
            descriptors.append((arena, flags, 0, block, start, nbytes))
        return descriptors, inline_buffers, forwarded_bytes
