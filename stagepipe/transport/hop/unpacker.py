"""Reads the buffers of a packet, as views that hold leases on their blocks. Checks every descriptor before its use.

Runs in every process that receives items.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stagepipe.core import TransportError
from stagepipe.transport.memory import BlockId, Lease, SharedMemoryPool
from stagepipe.transport.wire import (
    INLINE_ARENA,
    SHARED_BLOCK,
    TABLE_HEADER_BYTES,
    BufferDescriptor,
    Entry,
    PacketFlag,
    descriptor_table_bytes,
    unpack_descriptors,
)

UnpackedBuffers = tuple[list[Any], list[int], Any, bool]
"""The buffers, the flags of their descriptors, the pickle, and whether any buffer was copied out of its block."""


def unpack_buffers(entry: Entry, memory: SharedMemoryPool, *, copy_all: bool, copy_shared: bool) -> UnpackedBuffers:
    """The buffers of an item. `copy_all` copies those in blocks; `copy_shared` only those that others may lease.

    Raises TransportError if a descriptor points outside its packet or arena.
    """
    descriptors = entry.descriptors
    if entry.flags & PacketFlag.DESCRIPTOR_TABLE:
        arena, _, _, block, _, _ = descriptors[0]
        descriptors = _read_descriptor_table(entry, memory)
        memory.release_block(arena, block)
    elif len(descriptors) == 1 and not entry.flags and descriptors[0][0] != INLINE_ARENA and not copy_all:
        return _unpack_single_buffer(entry, memory, copy_shared=copy_shared)
    leases = _lease_blocks(descriptors, memory)
    view = memoryview(entry.data)
    pickle_view: Any = view[slice(*entry.pickle_span)]
    pickle_index = len(descriptors) - 1 if entry.flags & PacketFlag.PICKLE_IN_BLOCK else -1
    buffers: list[Any] = []
    flags: list[int] = []
    copied = False
    for buffer_index, (arena, flag, _, block, start, length) in enumerate(descriptors):
        if arena == INLINE_ARENA:
            if start + length > len(entry.data):
                raise TransportError(f"a descriptor points {start + length - len(entry.data)} bytes past its packet")
            buffer: Any = view[start : start + length]
        else:
            lease = leases[arena, block]
            buffer = lease if length == lease.size else lease[start : start + length]
            if buffer_index == pickle_index:
                pickle_view = buffer
                break
            if copy_all or (copy_shared and lease.is_shared):
                buffer = np.array(buffer, subok=False)
                copied = True
        buffers.append(buffer)
        flags.append(flag)
    return buffers, flags, pickle_view, copied


def _unpack_single_buffer(entry: Entry, memory: SharedMemoryPool, *, copy_shared: bool) -> UnpackedBuffers:
    """`unpack_buffers` for an item with a single array in a block, the case that must be fast."""
    arena, flag, _, block, start, length = entry.descriptors[0]
    is_shared = bool(flag & SHARED_BLOCK)
    lease = memory.lease_block(arena, block, start + length, is_shared=is_shared)
    buffer: Any = lease[start:] if start else lease
    copied = copy_shared and is_shared
    if copied:
        buffer = np.array(buffer, subok=False)
    return [buffer], [flag], memoryview(entry.data)[slice(*entry.pickle_span)], copied


def _lease_blocks(descriptors: tuple[BufferDescriptor, ...], memory: SharedMemoryPool) -> dict[BlockId, Lease]:
    """One lease per block, over all of it that the descriptors use."""
    if len(descriptors) == 1 and descriptors[0][0] != INLINE_ARENA:
        arena, flag, _, block, start, length = descriptors[0]
        return {(arena, block): memory.lease_block(arena, block, start + length, is_shared=bool(flag & SHARED_BLOCK))}
    extents: dict[BlockId, int] = {}
    shared_blocks = set()
    for arena, flag, _, block, start, length in descriptors:
        if arena != INLINE_ARENA:
            block_id = (arena, block)
            extents[block_id] = max(extents.get(block_id, 0), start + length)
            if flag & SHARED_BLOCK:
                shared_blocks.add(block_id)
    return {
        block_id: memory.lease_block(*block_id, extent, is_shared=block_id in shared_blocks)
        for block_id, extent in extents.items()
    }


def referenced_blocks(entry: Entry, memory: SharedMemoryPool) -> set[BlockId]:
    """The blocks that an entry holds a reference to.

    A descriptor table of an older era is not read: it may be gone, and its blocks need no release.
    """
    descriptors = entry.descriptors
    if entry.flags & PacketFlag.DESCRIPTOR_TABLE and not memory.is_stale(descriptors):
        descriptors += _read_descriptor_table(entry, memory)
    return {(arena, block) for arena, _, _, block, _, _ in descriptors if arena != INLINE_ARENA}


def _read_descriptor_table(entry: Entry, memory: SharedMemoryPool) -> tuple[BufferDescriptor, ...]:
    if len(entry.descriptors) != 1 or entry.descriptors[0][0] == INLINE_ARENA:
        raise TransportError(
            f"a descriptor table lies in one block, but this entry has {len(entry.descriptors)} buffers"
        )
    arena, _, _, block, start, length = entry.descriptors[0]
    header = memory.read_block(arena, block, start, min(length, TABLE_HEADER_BYTES))
    if descriptor_table_bytes(header) != length:  # checked before memory is allocated for all of it
        raise TransportError(f"{length} bytes at offset {block + start} of arena {arena} are not a descriptor table")
    return unpack_descriptors(memory.read_block(arena, block, start, length))
