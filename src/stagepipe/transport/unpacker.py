"""A packet's buffers: views that hold a lease where they lie in a block. Descriptors are checked before their use."""

from __future__ import annotations

from typing import Any

import numpy as np

from stagepipe.core import TransportError
from stagepipe.transport.lease import Lease, Memory, Token
from stagepipe.transport.packet import (
    INLINE,
    SHARED,
    TABLE_HEAD_BYTES,
    Descriptor,
    Flag,
    Packet,
    table_bytes,
    unpack_descriptors,
)

Views = tuple[list[Any], list[int], Any, bool]
"""Buffers, the flags of their descriptors, the pickle, and whether any buffer was copied out of its block."""


def views_of(packet: Packet, memory: Memory, *, private: bool, own_shared: bool) -> Views:
    """The buffers of an item. `private` copies them all; `own_shared` copies those that somebody else may lease.

    TransportError if a descriptor points at nothing.
    """
    descriptors = packet.descriptors
    if packet.flags & Flag.TABLE:
        arena, _, _, block, _, _ = descriptors[0]
        descriptors = _table(packet, memory)
        memory.refuse(arena, block)
    elif len(descriptors) == 1 and not packet.flags and descriptors[0][0] != INLINE and not private:
        return _only(packet, memory, own_shared=own_shared)
    leases = _leases(descriptors, memory)
    view = memoryview(packet.data)
    stream: Any = view[slice(*packet.pickle)]
    last = len(descriptors) - 1 if packet.flags & Flag.STREAM else -1
    buffers: list[Any] = []
    flags: list[int] = []
    copied = False
    for number, (arena, flag, _, block, start, length) in enumerate(descriptors):
        if arena == INLINE:
            if start + length > len(packet.data):
                raise TransportError(f"a descriptor points {start + length - len(packet.data)} bytes past its packet")
            buffer: Any = view[start : start + length]
        else:
            lease = leases[arena, block]
            buffer = lease if length == lease.size else lease[start : start + length]
            if number == last:
                stream = buffer
                break
            if private or (own_shared and lease.shared):
                buffer, copied = np.array(buffer, subok=False), True
        buffers.append(buffer)
        flags.append(flag)
    return buffers, flags, stream, copied


def _only(packet: Packet, memory: Memory, *, own_shared: bool) -> Views:
    """The same for the item with one large array in it, the case to be fast at."""
    arena, flag, _, block, start, length = packet.descriptors[0]
    shared = bool(flag & SHARED)
    lease = memory.lease(arena, block, start + length, shared=shared)
    buffer: Any = lease[start:] if start else lease
    copied = own_shared and shared
    if copied:
        buffer = np.array(buffer, subok=False)
    return [buffer], [flag], memoryview(packet.data)[slice(*packet.pickle)], copied


def _leases(descriptors: tuple[Descriptor, ...], memory: Memory) -> dict[Token, Lease]:
    """One lease a block, over all that the descriptors use of it."""
    if len(descriptors) == 1 and descriptors[0][0] != INLINE:
        arena, flag, _, block, start, length = descriptors[0]
        return {(arena, block): memory.lease(arena, block, start + length, shared=bool(flag & SHARED))}
    extents: dict[Token, int] = {}
    shared = set()
    for arena, flag, _, block, start, length in descriptors:
        if arena != INLINE:
            place = (arena, block)
            extents[place] = max(extents.get(place, 0), start + length)
            if flag & SHARED:
                shared.add(place)
    return {place: memory.lease(*place, extent, shared=place in shared) for place, extent in extents.items()}


def blocks_of(packet: Packet, memory: Memory) -> set[Token]:
    """The blocks of which a packet carries a reference each.

    A table of an older era may be gone, and names nothing that is wanted back.
    """
    descriptors = packet.descriptors
    if packet.flags & Flag.TABLE and not memory.is_past(descriptors):
        descriptors += _table(packet, memory)
    return {(arena, block) for arena, _, _, block, _, _ in descriptors if arena != INLINE}


def _table(packet: Packet, memory: Memory) -> tuple[Descriptor, ...]:
    if len(packet.descriptors) != 1 or packet.descriptors[0][0] == INLINE:
        raise TransportError(f"a table of descriptors is one block; this packet has {len(packet.descriptors)} buffers")
    arena, _, _, block, start, length = packet.descriptors[0]
    head = memory.read(arena, block, start, min(length, TABLE_HEAD_BYTES))
    if table_bytes(head) != length:  # looked at before memory is taken for all of it
        raise TransportError(f"{length} bytes at {block + start} of arena {arena} are no table of descriptors")
    return unpack_descriptors(memory.read(arena, block, start, length))
