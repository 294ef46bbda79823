"""Packs an encoded item into a packet: each buffer is forwarded in its block, copied into a new block, or inline.

Every `Sender` has one `Packer`.
"""

from __future__ import annotations

from dataclasses import dataclass

from stagepipe.core import TransportError, format_setting
from stagepipe.timing import TransferKind
from stagepipe.transport.codec import EncodedBuffer, Encoder
from stagepipe.transport.hop.carried_blocks import BlockContents, CarriedBlocks, ForwardedLeases
from stagepipe.transport.memory import SharedMemoryPool
from stagepipe.transport.wire import (
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
    TransferPolicy,
    overhead_bytes,
    pack,
    pack_entry,
)


@dataclass(slots=True, kw_only=True)
class SendCounts:
    """What a sender has sent: messages by transfer, and bytes by how they went."""

    pipe_messages: int = 0
    shared_memory_messages: int = 0
    mixed_messages: int = 0
    inline_bytes: int = 0
    copied_bytes: int = 0
    zero_copy_bytes: int = 0


class Packer:
    """Packs encoded items. `carried` are the blocks whose references go with the last packet."""

    def __init__(self, encoder: Encoder, memory: SharedMemoryPool, policy: TransferPolicy, counts: SendCounts) -> None:
        """`encoder` holds the encoded item; `pack` adds to `counts`."""
        self._encoder = encoder
        self._policy = policy
        self._counts = counts
        self._policy_word = policy.policy_word
        self._threshold_bytes = 0
        self._large_in_pipe = False
        self.carried = CarriedBlocks(encoder, memory)
        self.transfer_kind = TransferKind.PIPE
        """How the last packet is transferred."""
        self.bytes_in_blocks = 0
        """The bytes in blocks that the last packet describes."""

    def pack_entry(self, header: PacketHeader, sender_ns: int) -> bytes | None:
        """The encoded item as an entry, which may share its packet; None if it needs a packet of its own."""
        encoder = self._encoder
        pickle_data = encoder.pickle_data
        pickle_bytes = len(pickle_data)
        if encoder.buffers or pickle_bytes > MAX_ENTRY_BYTES or self._policy.force_shared_memory:
            return None
        entry = pack_entry(PacketKind.ITEM, header, sender_ns, pickle_data=pickle_data)
        if len(entry) > MAX_ENTRY_BYTES:
            return None
        counts = self._counts
        counts.pipe_messages += 1
        counts.inline_bytes += pickle_bytes
        return entry

    def pack(self, header: PacketHeader) -> bytearray | None:
        """The packet of the encoded item; None if the item must go through the pipe and is too large for a packet.

        For an item that `pack_entry` does not take.
        """
        encoder = self._encoder
        policy = self._policy
        pickle_data = encoder.pickle_data
        buffers = encoder.buffers
        self.carried.block_ids = []
        self.transfer_kind = TransferKind.PIPE
        self.bytes_in_blocks = 0
        policy_word = self._policy_word[0]
        self._threshold_bytes = policy_word >> 1
        self._large_in_pipe = bool(policy_word & 1)
        pickle_bytes = len(pickle_data)
        if len(buffers) == 1 and not policy.force_shared_memory:
            single = self._pack_single_buffer(buffers[0], header)
            if single is not None:
                return single
        if policy.pipe_only:
            self._check_fits_packet(header)
        total_bytes = pickle_bytes + sum([buffer.nbytes for buffer in buffers])
        use_fragments = self._large_in_pipe and total_bytes < self._threshold_bytes
        forwarded = (
            self.carried.forward_leases(self._threshold_bytes) if encoder.lease_boxes and not use_fragments else {}
        )
        contents = self._choose_block_contents(forwarded, header)
        if use_fragments and (contents.buffer_indexes or contents.has_pickle):
            return None
        return self._assemble_packet(forwarded, contents, header)

    def _pack_single_buffer(self, buffer: EncodedBuffer, header: PacketHeader) -> bytearray | None:
        """The packet of an item with a single array, the case that must be fast; None if it needs the general case."""
        encoder = self._encoder
        counts = self._counts
        pickle_data = encoder.pickle_data
        nbytes = buffer.nbytes
        flags = PICKLE_BUFFER if buffer.is_pickle_buffer else 0
        available_bytes = PACKET_BYTES - overhead_bytes(header, 1) - len(pickle_data) - INLINE_ALIGN_BYTES
        if available_bytes < 0:
            return None
        if nbytes < self._threshold_bytes:
            if nbytes > available_bytes:
                return None  # fragments, or a block after all
            inline_buffers = [encoder.raw_bytes(buffer).tobytes()]
            packet = pack(
                PacketKind.ITEM,
                header,
                descriptors=[(INLINE_ARENA, flags, 0, 0, 0, nbytes)],
                pickle_data=pickle_data,
                inline_buffers=inline_buffers,
            )
            counts.pipe_messages += 1
            counts.inline_bytes += nbytes + len(pickle_data)
            return packet
        if buffer.lease_index >= 0:
            return self._forward_single_buffer(buffer, header, flags)
        arena, block, target = self.carried.allocate(nbytes)
        encoder.copy_into(buffer, target)
        descriptor = (arena, flags, 0, block, 0, nbytes)
        packet = pack(PacketKind.ITEM, header, descriptors=[descriptor], pickle_data=pickle_data)
        self.transfer_kind = self.carried.copy_kind
        self.bytes_in_blocks = nbytes
        counts.shared_memory_messages += 1
        counts.copied_bytes += nbytes
        counts.inline_bytes += len(pickle_data)
        return packet

    def _forward_single_buffer(self, buffer: EncodedBuffer, header: PacketHeader, flags: int) -> bytearray | None:
        """The packet of an item with a single array that is in a block already; None if it must be copied."""
        encoder = self._encoder
        counts = self._counts
        forwarded = self.carried.forward(encoder.lease_boxes[buffer.lease_index])
        if forwarded is None:
            return None
        arena, block, is_shared = forwarded
        descriptor = (arena, flags | SHARED_BLOCK if is_shared else flags, 0, block, buffer.lease_offset, buffer.nbytes)
        packet = pack(PacketKind.ITEM, header, descriptors=[descriptor], pickle_data=encoder.pickle_data)
        self.transfer_kind = TransferKind.ZERO_COPY
        self.bytes_in_blocks = buffer.nbytes
        counts.shared_memory_messages += 1
        counts.zero_copy_bytes += buffer.nbytes
        counts.inline_bytes += len(encoder.pickle_data)
        return packet

    def _check_fits_packet(self, header: PacketHeader) -> None:
        """Raise TransportError if the item does not fit a packet."""
        encoder = self._encoder
        buffers = encoder.buffers
        nbytes = len(encoder.pickle_data) + sum([buffer.nbytes + INLINE_ALIGN_BYTES for buffer in buffers])
        available_bytes = PACKET_BYTES - overhead_bytes(header, len(buffers))
        if nbytes > available_bytes:
            raise TransportError(
                f"`{format_setting('transport', 'pipe')}` between several workers sends an item in one packet, but "
                f"this item needs {nbytes} bytes and its packet has {available_bytes}; set "
                f"`{format_setting('transport', 'auto')}`, or `{format_setting('workers', 1)}` on both sides of the hop"
            )

    def _choose_block_contents(self, forwarded: ForwardedLeases, header: PacketHeader) -> BlockContents:
        """Choose what goes to a new block: large buffers, then the largest that do not fit the packet, then the pickle.

        Last, the descriptors go to a table of their own.
        """
        encoder = self._encoder
        buffers = encoder.buffers
        pickle_bytes = len(encoder.pickle_data)
        in_block: list[int] = []
        inline: list[int] = []
        available_bytes = PACKET_BYTES - overhead_bytes(header, len(buffers) + 1) - pickle_bytes - INLINE_ALIGN_BYTES
        for index, buffer in enumerate(buffers):
            if buffer.lease_index in forwarded:
                continue
            if buffer.nbytes >= self._threshold_bytes:
                in_block.append(index)
            else:
                inline.append(index)
                available_bytes -= buffer.nbytes + INLINE_ALIGN_BYTES
        inline_total_bytes = sum([buffers[index].nbytes for index in inline])
        if inline_total_bytes >= self._threshold_bytes:  # each is too small, but one block for all of them is cheaper
            available_bytes += inline_total_bytes + INLINE_ALIGN_BYTES * len(inline)
            in_block = sorted(in_block + inline)
            inline = []
        if available_bytes < 0 and inline:
            inline.sort(key=lambda index: buffers[index].nbytes)
            while inline and available_bytes < 0:
                index = inline.pop()
                available_bytes += buffers[index].nbytes + INLINE_ALIGN_BYTES
                in_block.append(index)
            in_block.sort()
        has_pickle = available_bytes < 0 or self._policy.force_shared_memory
        return BlockContents(in_block, has_pickle, has_pickle and available_bytes + pickle_bytes < 0)

    def _assemble_packet(self, forwarded: ForwardedLeases, contents: BlockContents, header: PacketHeader) -> bytearray:
        encoder = self._encoder
        counts = self._counts
        pickle_data = encoder.pickle_data
        offsets, arena, block, block_bytes = (
            self.carried.fill_block(contents) if contents.buffer_indexes or contents.has_pickle else ({}, 0, 0, 0)
        )
        descriptors: list[BufferDescriptor] = []
        inline_buffers: list[bytes] = []
        inline_bytes = forwarded_bytes = 0
        for index, buffer in enumerate(encoder.buffers):
            flags = PICKLE_BUFFER if buffer.is_pickle_buffer else 0
            nbytes = buffer.nbytes
            if index in offsets:
                descriptors.append((arena, flags, 0, block, offsets[index], nbytes))
                continue
            reference = forwarded.get(buffer.lease_index)
            if reference is not None:
                owner, owner_block, is_shared = reference
                if is_shared:
                    flags |= SHARED_BLOCK
                descriptors.append((owner, flags, 0, owner_block, buffer.lease_offset, nbytes))
                forwarded_bytes += nbytes
                continue
            descriptors.append((INLINE_ARENA, flags, 0, 0, inline_bytes, nbytes))
            padding = -nbytes % INLINE_ALIGN_BYTES
            inline_buffers.append(encoder.raw_bytes(buffer).tobytes() + bytes(padding))
            inline_bytes += nbytes + padding
        packet_flags = 0
        if contents.has_pickle:
            packet_flags = PacketFlag.PICKLE_IN_BLOCK
            descriptors.append((arena, 0, 0, block, block_bytes - len(pickle_data), len(pickle_data)))
        block_buffer_count = len(descriptors) - len(inline_buffers)
        if block_buffer_count:
            self.transfer_kind = self.carried.copy_kind if block_bytes else TransferKind.ZERO_COPY
            self.bytes_in_blocks = sum([descriptor[5] for descriptor in descriptors if descriptor[0] != INLINE_ARENA])
        if contents.has_descriptor_table:
            packet_flags |= PacketFlag.DESCRIPTOR_TABLE
            descriptors = [self.carried.write_descriptor_table(descriptors)]
        packet = pack(
            PacketKind.ITEM,
            header,
            flags=packet_flags,
            descriptors=descriptors,
            pickle_data=b"" if contents.has_pickle else pickle_data,
            inline_buffers=inline_buffers,
        )
        if not block_buffer_count:
            counts.pipe_messages += 1
        elif inline_buffers:
            counts.mixed_messages += 1
        else:
            counts.shared_memory_messages += 1
        counts.inline_bytes += inline_bytes if contents.has_pickle else inline_bytes + len(pickle_data)
        counts.copied_bytes += block_bytes
        counts.zero_copy_bytes += forwarded_bytes
        return packet
