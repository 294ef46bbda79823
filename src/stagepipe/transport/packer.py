"""What of an item goes where: described where it lies, copied into a block, or inline. One a sender."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stagepipe.core import TransportError
from stagepipe.timing import Way
from stagepipe.transport.codec import Buffer, Encoder
from stagepipe.transport.lease import Memory, Token
from stagepipe.transport.packet import (
    ALIGN,
    INLINE,
    OUT_OF_BAND,
    PACKET_BYTES,
    SHARED,
    Descriptor,
    Flag,
    Head,
    Kind,
    overhead_bytes,
    pack,
    pack_descriptors,
)
from stagepipe.transport.policy import Policy

_BLOCK_ALIGN = 64
"""Buffers in a block begin at multiples of a cache line."""


@dataclass(slots=True)
class Counts:
    """What a sender has sent."""

    pipe: int = 0
    shared_memory: int = 0
    mixed: int = 0
    inline_bytes: int = 0
    copied_bytes: int = 0
    zero_copy_bytes: int = 0


@dataclass(slots=True)
class _Share:
    """Which buffers are copied into a block of one's own (their numbers), and what lies there behind them."""

    moved: list[int]
    stream: bool
    table: bool


Passed = dict[int, tuple[int, int, bool]]
"""By the number of a lease: arena, block, and whether somebody else may lease it too."""


class Packer:
    """Makes an item that is encoded into a packet. `carried` are the references to blocks that go with it."""

    def __init__(self, encoder: Encoder, memory: Memory, policy: Policy, counts: Counts) -> None:
        """`encoder` holds the item; `counts` are added to."""
        self._encoder, self._memory, self._policy, self._counts = encoder, memory, policy, counts
        self._word = policy.word
        self._threshold, self._large = 0, False
        self.carried: list[Token] = []
        self._copied = Way.COPIED
        self.way, self.block_bytes = Way.PIPE, 0
        """How the last packet goes, and the bytes that it describes in blocks."""

    def pack(self, head: Head) -> bytearray | None:
        """The packet; None if the item is to go through the pipe and is too large for one."""
        encoder, policy, counts = self._encoder, self._policy, self._counts
        data, buffers = encoder.pickle, encoder.buffers
        self.carried, self.way, self.block_bytes = [], Way.PIPE, 0
        word = self._word[0]
        self._threshold, self._large = word >> 1, bool(word & 1)
        if not buffers and len(data) + overhead_bytes(head, 0) <= PACKET_BYTES and not policy.force_shared:
            packet = pack(Kind.ITEM, head, pickle=data)
            counts.pipe += 1
            counts.inline_bytes += len(data)
            return packet
        if len(buffers) == 1 and not policy.force_shared:
            one = self._pack_one(buffers[0], head)
            if one is not None:
                return one
        if policy.pipe_only:
            self._refuse(head)
        pieces = self._large and len(data) + sum([buffer.nbytes for buffer in buffers]) < self._threshold
        passed = self._pass_on() if encoder.leases and not pieces else {}
        share = self._choose(passed, head)
        if pieces and (share.moved or share.stream):
            return None
        return self._assemble(passed, share, head)

    def _pack_one(self, buffer: Buffer, head: Head) -> bytearray | None:
        """The packet of the item with one array in it, the case to be fast at; None if it is a harder one."""
        encoder, counts = self._encoder, self._counts
        data, nbytes, flags = encoder.pickle, buffer.nbytes, OUT_OF_BAND if buffer.out_of_band else 0
        room = PACKET_BYTES - overhead_bytes(head, 1) - len(data) - ALIGN
        if room < 0:
            return None
        if nbytes < self._threshold:
            if nbytes > room:
                return None  # the pieces of it in the pipe, or a block after all
            inline = [encoder.raw(buffer).tobytes()]
            packet = pack(Kind.ITEM, head, descriptors=[(INLINE, flags, 0, 0, 0, nbytes)], pickle=data, inline=inline)
            counts.pipe += 1
            counts.inline_bytes += nbytes + len(data)
            return packet
        if buffer.lease >= 0:
            return self._pass_one(buffer, head, flags)
        arena, block, bytes_ = self._block(nbytes)
        encoder.copy(buffer, bytes_)
        packet = pack(Kind.ITEM, head, descriptors=[(arena, flags, 0, block, 0, nbytes)], pickle=data)
        self.way, self.block_bytes = self._copied, nbytes
        counts.shared_memory += 1
        counts.copied_bytes += nbytes
        counts.inline_bytes += len(data)
        return packet

    def _pass_one(self, buffer: Buffer, head: Head, flags: int) -> bytearray | None:
        """The same for one that lies in a block; None if it must be copied."""
        encoder, counts = self._encoder, self._counts
        box = encoder.leases[buffer.lease]
        token = box[0].token
        shared = None if token is None else self._memory.pass_on(box, token)
        if token is None or shared is None:
            return None
        self.carried.append(token)
        arena, block = token
        descriptor = (arena, flags | SHARED if shared else flags, 0, block, buffer.start, buffer.nbytes)
        packet = pack(Kind.ITEM, head, descriptors=[descriptor], pickle=encoder.pickle)
        self.way, self.block_bytes = Way.ZERO_COPY, buffer.nbytes
        counts.shared_memory += 1
        counts.zero_copy_bytes += buffer.nbytes
        counts.inline_bytes += len(encoder.pickle)
        return packet

    def _refuse(self, head: Head) -> None:
        """TransportError if the item does not fit a packet."""
        encoder = self._encoder
        buffers = encoder.buffers
        nbytes = len(encoder.pickle) + sum([buffer.nbytes + ALIGN for buffer in buffers])
        room = PACKET_BYTES - overhead_bytes(head, len(buffers))
        if nbytes > room:
            raise TransportError(
                f"{nbytes} bytes are forced through a pipe, which between several workers takes what fits a packet, "
                f"here {room} bytes; write `transport: auto`, or `workers: 1` on both sides of the hop"
            )

    def take_back(self) -> None:
        """The packet is not sent: what would have gone with it is given back."""
        for arena, block in self.carried:
            self._memory.refuse(arena, block)
        self.carried = []

    def _pass_on(self) -> Passed:
        """By lease, the reference that goes with the packet, and whether it is shared. What is missing is copied.

        Small pieces of a block are copied, so that they do not keep all of it from being used again.
        """
        leases, carried, threshold = self._encoder.leases, self.carried, self._threshold
        passed: Passed = {}
        for buffer in self._encoder.buffers:
            number = buffer.lease
            if number < 0 or number in passed or buffer.nbytes < threshold or not leases[number]:
                continue
            box = leases[number]
            token = box[0].token
            if token is None:
                continue
            if token in carried:
                # The same block, received twice: its reader gives it back once, and this process the other reference.
                passed[number] = (*token, True)
                continue
            shared = self._memory.pass_on(box, token)
            if shared is not None:
                carried.append(token)
                passed[number] = (*token, shared)
        return passed

    def _choose(self, passed: Passed, head: Head) -> _Share:
        """What does not fit the packet goes to the block, the largest first, at last the pickle and the descriptors."""
        encoder, policy = self._encoder, self._policy
        buffers = encoder.buffers
        moved: list[int] = []
        inline: list[int] = []
        room = PACKET_BYTES - overhead_bytes(head, len(buffers) + 1) - len(encoder.pickle) - ALIGN
        for number, buffer in enumerate(buffers):
            if buffer.lease in passed:
                continue
            if buffer.nbytes >= self._threshold:
                moved.append(number)
            else:
                inline.append(number)
                room -= buffer.nbytes + ALIGN
        weight = sum([buffers[number].nbytes for number in inline])
        if weight >= self._threshold:  # none of them would go alone, but together they are cheaper in one block
            room += weight + ALIGN * len(inline)
            moved, inline = sorted(moved + inline), []
        if room < 0 and inline:
            inline.sort(key=lambda number: buffers[number].nbytes)
            while inline and room < 0:
                number = inline.pop()
                room += buffers[number].nbytes + ALIGN
                moved.append(number)
            moved.sort()
        stream = room < 0 or policy.force_shared
        return _Share(moved, stream, stream and room + len(encoder.pickle) < 0)

    def _assemble(self, passed: Passed, share: _Share, head: Head) -> bytearray:
        encoder, counts = self._encoder, self._counts
        buffers, data = encoder.buffers, encoder.pickle
        places, arena, block, end = self._fill(share) if share.moved or share.stream else ({}, 0, 0, 0)
        wheres: list[Descriptor] = []
        inline: list[bytes] = []
        inline_bytes = passed_bytes = 0
        for number, buffer in enumerate(buffers):
            flags, nbytes = OUT_OF_BAND if buffer.out_of_band else 0, buffer.nbytes
            if number in places:
                wheres.append((arena, flags, 0, block, places[number], nbytes))
                continue
            reference = passed.get(buffer.lease)
            if reference is not None:
                owner, at, shared = reference
                wheres.append((owner, flags | SHARED if shared else flags, 0, at, buffer.start, nbytes))
                passed_bytes += nbytes
                continue
            wheres.append((INLINE, flags, 0, 0, inline_bytes, nbytes))
            padding = -nbytes % ALIGN
            inline.append(encoder.raw(buffer).tobytes() + bytes(padding))
            inline_bytes += nbytes + padding
        flags = 0
        if share.stream:
            flags, stream_at = Flag.STREAM, end - len(data)
            wheres.append((arena, 0, 0, block, stream_at, len(data)))
        in_blocks = len(wheres) - len(inline)
        if in_blocks:
            self.way = self._copied if end else Way.ZERO_COPY
            self.block_bytes = sum([where[5] for where in wheres if where[0] != INLINE])
        if share.table:
            flags |= Flag.TABLE
            wheres = [self._table(wheres)]
        packet = pack(
            Kind.ITEM, head, flags=flags, descriptors=wheres, pickle=b"" if share.stream else data, inline=inline
        )
        if not in_blocks:
            counts.pipe += 1
        elif inline:
            counts.mixed += 1
        else:
            counts.shared_memory += 1
        counts.inline_bytes += inline_bytes if share.stream else inline_bytes + len(data)
        counts.copied_bytes += end
        counts.zero_copy_bytes += passed_bytes
        return packet

    def _fill(self, share: _Share) -> tuple[dict[int, int], int, int, int]:
        """A block with the buffers of `share`, by number their places, and the pickle if it goes there, at its end."""
        encoder, buffers = self._encoder, self._encoder.buffers
        places, end = {}, 0
        for number in share.moved:
            places[number] = end
            end += -(-buffers[number].nbytes // _BLOCK_ALIGN) * _BLOCK_ALIGN
        stream_at = end
        if share.stream:
            end += len(encoder.pickle)
        arena, block, room = self._block(end)
        for number, at in places.items():
            encoder.copy(buffers[number], room[at : at + buffers[number].nbytes])
        if share.stream:
            room[stream_at:] = np.frombuffer(encoder.pickle, np.uint8)
        return places, arena, block, end

    def _table(self, wheres: list[Descriptor]) -> Descriptor:
        """The descriptors, in a block of their own."""
        table = pack_descriptors(wheres)
        arena, block, room = self._block(len(table))
        room[:] = np.frombuffer(table, np.uint8)
        return arena, 0, 0, block, 0, len(table)

    def _block(self, nbytes: int) -> tuple[int, int, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
        """(arena, block, its bytes) of a new block that goes with the packet."""
        own = self._memory.arena
        if own is None:
            raise TransportError(f"this process has no shared memory of its own for {nbytes} bytes")
        block = self._memory.take(nbytes)
        self._copied = Way.COLD if own.allocator.fresh else Way.COPIED
        self.carried.append((own.number, block))
        at = block - own.start
        return own.number, block, own.bytes[at : at + nbytes]
