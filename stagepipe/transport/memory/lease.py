"""Leases keep a block in use while any array or tensor views it. A process has one pool, used by its main thread.

A `Lease` is an ndarray subclass over the mapping itself. NumPy collapses chains of plain views, but not past a
subclass, so the lease dies with the last of its views (`weakref.finalize` on a slice fires too early). `__del__` may
run at any moment, in any thread, and only appends to a deque. The next send, receive or idle tick sends the releases to
the owners of the blocks: 16-byte records through a byte pipe, each write small enough to be atomic.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stagepipe.core import ArenaFullError, TransportError
from stagepipe.transport.memory.arena import Arena, ArenaMapping, era_span_bytes, size_class_bytes
from stagepipe.transport.memory.release_pipes import ReleasePipes
from stagepipe.transport.transports import TICKET_BASE, Transport

_MAX_DUPLICATE_LEASES = 256
_MIN_RELEASES_TO_FLUSH = 4
"""Releases worth a system call. Few, because a block released soon is still in the owner's cache."""

BlockId = tuple[int, int]
"""(arena, block): the block of a lease, by arena number and offset."""


class LeaseExtent(NamedTuple):
    """Which bytes a lease keeps in use: those from offset `block` on of an arena."""

    arena: int
    block: int
    nbytes: int


class Lease(np.ndarray[Any, Any]):
    """A uint8 view of a block's used bytes. While it lives, the block is not reused. Its slices have no `block_id`."""

    block_id: BlockId | None = None
    release_queue: deque[BlockId] | None = None
    is_shared: bool = False
    address: int = 0

    def __del__(self) -> None:
        """Queue the release of the block. Runs at any moment, in any thread, so it only appends."""
        if self.block_id is not None and self.release_queue is not None:
            self.release_queue.append(self.block_id)


class _CarriedBuffer(NamedTuple):
    """A buffer of a transport, as `ArenaMapping` describes an era of an arena."""

    arena_number: int
    start_offset: int
    end_offset: int
    address: int
    buffer: memoryview


class SharedMemoryPool:
    """All shared memory of a process: its own arena, if it has one, and the other arenas, mapped on first use."""

    def __init__(
        self,
        arena: Arena | None,
        arena_fds: dict[int, int],
        release_fds: dict[int, int],
        *,
        writable: bool = False,
        limit_bytes: int | None = None,
    ) -> None:
        """`arena_fds` and `release_fds` are keyed by arena number: memfds, and ends of the pipes for release records.

        `release_fds` has the read end for this process's own arena, the write end for all others. `writable` maps the
        other arenas for writing, as the training loop needs. `limit_bytes` is the limit given to `make_arena_fd`;
        without it the arenas have one era only.
        """
        self.arena = arena
        self.release_queue: deque[BlockId] = deque()
        self._arena_fds = arena_fds
        self._release_pipes = ReleasePipes(release_fds)
        self._is_writable = writable
        self._era_span_bytes = None if limit_bytes is None else era_span_bytes(limit_bytes)
        self._era_start = 0 if arena is None else arena.era_start
        self._mappings: dict[int, ArenaMapping] = {} if arena is None else {arena.number: arena.mapping}
        self._live_leases: dict[BlockId, weakref.ref[Lease]] = {}
        self._duplicate_leases: list[tuple[BlockId, weakref.ref[Lease]]] = []
        """Leases on blocks for which a newer lease was made since."""
        self.transports: dict[int, Transport] = {}
        """The transports of this run besides its arenas, by arena number; see `attach_transports`."""
        self.lease_count = 0
        """References that this process holds, or has released without telling the owner yet: a reason to tick."""
        self.on_live_bytes: Callable[[int], None] = _ignore
        """Called with the bytes in use in the own arena whenever they change."""
        self.on_largest_block_bytes: Callable[[int], None] = _ignore
        """Called with the size in bytes of the largest block allocated so far, whenever it grows."""
        self._largest_block_bytes = 0

    def attach_transports(self, transports: dict[int, Transport]) -> None:
        """Take buffers over from these transports too, by arena number, and release them there."""
        self.transports = self._release_pipes.transports = transports

    def find_transport(self, name: str) -> tuple[int, Transport] | None:
        """The transport of a name and its arena number; None for a built-in one."""
        return next((pair for pair in self.transports.items() if pair[1].name == name), None)

    # ------------------------------------------------------------------ the own arena

    def allocate(self, nbytes: int, *, for_several_items: bool = False) -> int:
        """Allocate a block of the own arena, without a lease. Raises ArenaFullError if the limit would be exceeded.

        `for_several_items`: its size says nothing about the memory that an item needs.
        """
        allocator = self._require_arena().allocator
        size = size_class_bytes(nbytes)
        block = allocator.reuse_free_block(size)
        if block is None:
            self.collect_releases()
            try:
                block = allocator.allocate(size)
            except ArenaFullError:
                self.flush_releases()
                block = allocator.allocate(size)
        self.on_live_bytes(allocator.live_bytes)
        if size > self._largest_block_bytes and not for_several_items:
            self._largest_block_bytes = size
            self.on_largest_block_bytes(size)
        return block

    def loan(self, nbytes: int) -> Lease:
        """A writable lease on a new block of the own arena. If it dies without being sent, the block becomes free."""
        arena = self._require_arena()
        self.flush_releases_if_many()
        return self._make_lease(arena.mapping, self.allocate(nbytes), nbytes)

    def collect_releases(self) -> None:
        """Apply the release records that other processes sent to the own arena."""
        if self.arena is None:
            return
        self._release_pipes.read_records(self.arena.number, self.arena.allocator.add_references)
        self.on_live_bytes(self.arena.allocator.live_bytes)

    def _require_arena(self) -> Arena:
        if self.arena is None:
            raise TransportError("this process has no shared memory of its own to send from")
        return self.arena

    # ------------------------------------------------------------------ blocks of any arena

    def lease_block(self, arena: int, block: int, nbytes: int, *, is_shared: bool) -> Lease:
        """A lease for a reference that came with a packet: uint8 of shape (nbytes,).

        Raises TransportError if the range is outside the arena.
        """
        mapping: ArenaMapping | _CarriedBuffer | None = self._mappings.get(arena)
        if mapping is None or not mapping.start_offset <= block <= mapping.end_offset - nbytes:
            mapping = (
                self._take_over(arena, block, nbytes) if arena in self.transports else self._map_era(arena, block, nbytes)
            )
        lease = self._make_lease(mapping, block, nbytes)
        lease.is_shared = is_shared
        return lease

    def read_block(self, arena: int, block: int, block_offset: int, nbytes: int) -> bytes:
        """A copy of bytes of a block that a packet refers to. Raises TransportError if they are outside the arena."""
        mapping = self._mappings.get(arena)
        if mapping is None or not mapping.start_offset <= block <= mapping.end_offset - block_offset - nbytes:
            mapping = self._map_era(arena, block, block_offset + nbytes)
        start = block - mapping.start_offset + block_offset
        return bytes(mapping.buffer[start : start + nbytes])

    def _map_era(self, arena: int, block: int, nbytes: int) -> ArenaMapping:
        """Map the era that contains these bytes of an arena. Raises TransportError if there is none."""
        fd = self._arena_fds.get(arena)
        if fd is None:
            raise TransportError(f"a descriptor names arena {arena}; this process knows {sorted(self._arena_fds)}")
        size = os.fstat(fd).st_size
        span = self._era_span_bytes or size
        start = block // span * span
        if block + nbytes > min(start + span, size):
            raise TransportError(f"a descriptor points {block + nbytes - start - span} bytes past arena {arena}")
        mapping = ArenaMapping(arena, fd, start, span, writable=self._is_writable)
        if self.arena is None or arena != self.arena.number:  # the own arena stays mapped to its current era
            self._mappings[arena] = mapping
        return mapping

    def _take_over(self, arena: int, block: int, nbytes: int) -> _CarriedBuffer:
        array = self.transports[arena].take_over(block - TICKET_BASE, nbytes)
        return _CarriedBuffer(arena, block, block + nbytes, array.__array_interface__["data"][0], memoryview(array))

    def _make_lease(self, mapping: ArenaMapping | _CarriedBuffer, block: int, nbytes: int) -> Lease:
        lease: Lease = np.ndarray.__new__(Lease, (nbytes,), np.uint8, mapping.buffer, block - mapping.start_offset)
        block_id = (mapping.arena_number, block)
        lease.block_id = block_id
        lease.release_queue = self.release_queue
        lease.address = mapping.address + block - mapping.start_offset
        previous_lease = self._live_leases.get(block_id)
        if previous_lease is not None and previous_lease() is not None:
            self._track_duplicate(block_id, previous_lease)
        self._live_leases[block_id] = weakref.ref(lease)
        self.lease_count += 1
        return lease

    def _track_duplicate(self, block_id: BlockId, lease: weakref.ref[Lease]) -> None:
        if len(self._duplicate_leases) >= _MAX_DUPLICATE_LEASES:
            self._duplicate_leases = [pair for pair in self._duplicate_leases if pair[1]() is not None]
        self._duplicate_leases.append((block_id, lease))

    # ------------------------------------------------------------------ eras

    def begin_era(self, era: int) -> None:
        """Allocate from a new era, after a process has died. Older blocks stay readable but are not forwarded."""
        if self._era_span_bytes is None:
            raise TransportError("this pool was created without `limit_bytes`, so it has one era only")
        self._era_start = era * self._era_span_bytes
        self._mappings.clear()
        self.lease_count -= self._release_pipes.discard_releases()
        if self.arena is not None:
            self.arena.begin_era(era)
            self._mappings[self.arena.number] = self.arena.mapping
            self.on_live_bytes(0)

    def is_stale(self, descriptors: Sequence[tuple[int, ...]]) -> bool:
        """Whether the first descriptor of a packet points into an older era."""
        return bool(descriptors) and descriptors[0][3] < self._era_start

    def stale_leases(self) -> list[LeaseExtent]:
        """The live leases on blocks of older eras, which must not be discarded yet."""
        era_start = self._era_start
        stale_leases = []
        for (arena, block), reference in [*self._live_leases.items(), *self._duplicate_leases]:
            lease = reference() if block < era_start else None
            if lease is not None:
                stale_leases.append(LeaseExtent(arena, block, lease.size))
        return stale_leases

    def held_bytes(self) -> int:
        """The bytes of all live leases in this process. Takes time in proportion to their number."""
        leases = [reference() for reference in list(self._live_leases.values())]
        return sum(lease.size for lease in leases if lease is not None)

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """The lease that contains these bytes, or None. For tensors, which do not refer to the array they view."""
        for mapping in self._mappings.values():
            if address in mapping:
                return self._find_lease_in_arena(
                    mapping.arena_number, address - mapping.address + mapping.start_offset, nbytes
                )
        return None

    def _find_lease_in_arena(self, arena_number: int, offset: int, nbytes: int) -> Lease | None:
        for (arena, block), reference in self._live_leases.items():
            if arena == arena_number and block <= offset:
                lease = reference()
                if lease is not None and offset + nbytes <= block + lease.size:
                    return lease
        return None

    def forward_lease(self, lease_box: list[Lease], block_id: BlockId) -> bool | None:
        """Transfer a reference to the block of the lease in `lease_box` to another process.

        Returns whether the block is shared, that is, whether yet another process may hold a reference; None if the
        bytes must be copied instead. If only the box holds the lease, its reference is handed over. If the stage still
        holds it, the owner adds a second reference; a loan that the stage still holds is copied, because the stage may
        write to it again. A lease that is still held is in the box afterwards.

        To find out, the box drops the lease: if nobody else held it, `__del__` has queued its release. Reference counts
        would tell as much, but they differ between Python versions and under a debugger.
        """
        if block_id[1] < self._era_start:
            return None
        lease = lease_box.pop()
        is_shared = lease.is_shared
        reference = weakref.ref(lease)
        del lease
        held_lease = reference()
        if held_lease is None:
            self.release_queue.remove(block_id)
            self._forget_dead_lease(block_id)
            self.lease_count -= 1
            return is_shared
        lease_box.append(held_lease)
        if self.arena is not None and block_id[0] == self.arena.number:
            return None
        # The owner must add the reference before any other process can release the block, so this record is sent now
        # or not at all. Queued releases may arrive later: until then the owner only counts too many references.
        if not self._release_pipes.add_reference(*block_id):
            return None
        held_lease.is_shared = True
        return True

    # ------------------------------------------------------------------ releases

    def release_block(self, arena: int, block: int) -> None:
        """Release a block whose packet is dropped or was not sent. Raises TransportError for an unknown arena."""
        self._release_pipes.require(arena)
        if block < self._era_start:
            return
        self.lease_count += 1
        self.release_queue.append((arena, block))

    def flush_releases_if_many(self) -> None:
        """Send the queued releases if there are enough of them for a system call."""
        if len(self.release_queue) >= _MIN_RELEASES_TO_FLUSH:
            self.flush_releases()

    def flush_releases(self) -> None:
        """Send all queued releases to the owners of the blocks. Never waits: what a full pipe rejects is sent later."""
        release_queue = self.release_queue
        own_arena = self.arena
        own_released = False
        while release_queue:
            block_id = release_queue.popleft()
            self._forget_dead_lease(block_id)
            arena, block = block_id
            if own_arena is not None and arena == own_arena.number:
                own_arena.allocator.add_references(block, -1)
                self.lease_count -= 1
                own_released = True
            else:
                self._release_pipes.add_release(arena, block)
        if own_arena is not None and own_released:
            self.on_live_bytes(own_arena.allocator.live_bytes)
        self.lease_count -= self._release_pipes.send_releases()

    def _forget_dead_lease(self, block_id: BlockId) -> None:
        """Forget the lease on a block unless it is alive: a second packet may have brought another lease on it."""
        reference = self._live_leases.get(block_id)
        if reference is not None and reference() is None:
            del self._live_leases[block_id]


def _ignore(_: int) -> None:
    """The default callback."""
