"""The shared memory of a process: blocks in memfds, and the leases that keep a block from being reused.

arena          the memory of one process, its allocator, and its mapping in other processes
lease          references to blocks, and the pool of all arenas that a process can see
release_pipes  the records by which a process tells the owner of a block that references have gone
"""

from stagepipe.transport.memory.arena import (
    MIN_PUNCH_BYTES,
    Arena,
    era_span_bytes,
    extend_arena_fd,
    make_arena_fd,
    punch_hole,
    size_class_bytes,
)
from stagepipe.transport.memory.lease import BlockId, Lease, LeaseExtent, SharedMemoryPool

__all__ = [
    "MIN_PUNCH_BYTES",
    "Arena",
    "BlockId",
    "Lease",
    "LeaseExtent",
    "SharedMemoryPool",
    "era_span_bytes",
    "extend_arena_fd",
    "make_arena_fd",
    "punch_hole",
    "size_class_bytes",
]
