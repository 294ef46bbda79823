"""The shared memory of a process: blocks in memfds, and the leases that keep a block in use while an array views it.

An arena is the memory of one process: a sparse memfd, divided into blocks. Its owner allocates; other processes only
map it. Blocks have geometric size classes, eight per doubling. For 102 MiB of live blocks of varying sizes they took
410 MiB; sizes in steps of 4 KiB took 3,060 MiB. The owner first reuses the block freed last, because its pages are
resident and cached: writing to fresh shared memory runs at about 1 GiB/s, writing to it again at 20 GiB/s or more.

A `Lease` is an ndarray subclass over the mapping. NumPy collapses chains of plain views but stops at a subclass, so the
lease dies with the last of its views (`weakref.finalize` on a slice fires too early). A process has one pool of leases,
used by its main thread.

Invariants:
- A block is reused only when its reference count is zero, and only its owner counts. A reference belongs to one lease,
  one packet, or one release record in transit. The process that drops it sends exactly one record: with no record the
  block leaks; with two, the owner reuses the block while another process reads it.
- The owner records a second reference (`add_reference`) before the packet that carries it is written. Otherwise the
  first holder's release could arrive first and free the block. Releases may arrive late: the owner then counts too
  many.
- A lease may die at any moment, in any thread, so its weak reference only appends itself to a deque and runs no Python
  code. The next send, receive or idle tick sends the releases: 16-byte records through a byte pipe, in atomic writes.
- Only the last reference in this process passes its block on without a record. So the code first drops the lease from
  its box and then checks whether the lease still lives; a check before the drop proves nothing.
- After the death of a worker a new era begins. Its leases are unknown, so new blocks come from a fresh range of the
  same memfd. No two eras share an offset, so an offset identifies its era, and releases of older eras are ignored.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import ArenaFullError, TransportError
from stagepipe.transport.transports import TICKET_BASE, Transport

MIN_BLOCK_BYTES = 512
MIN_PUNCH_BYTES = 64 << 10
"""Smaller blocks are not returned to the kernel, because they share pages with others."""
_MIN_WARM_BYTES = 256 << 10
"""For blocks of at least this size, `allocate` reads the latest releases first: it then reuses a block that just came
back, not an older free one. Filling 1.2 MB takes 65 µs instead of 140; reading the releases takes 2 to 5 µs."""
_FALLOC_PUNCH_FLAGS = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h
_ADDRESS_SPACE_FACTOR = 4
"""The address range of an era, as a multiple of its limit. Free blocks of one size class cannot serve another class."""


def era_span_bytes(limit_bytes: int) -> int:
    """Return the size of an era's range in a memfd, in bytes: whole pages, for at most `limit_bytes` of live blocks."""
    return -(-limit_bytes * _ADDRESS_SPACE_FACTOR // mmap.PAGESIZE) * mmap.PAGESIZE


@lru_cache(maxsize=1024)
def size_class_bytes(nbytes: int) -> int:
    """Return the block size for `nbytes`, in bytes: at least 512; above that, at most an eighth more than `nbytes`.

    >>> size_class_bytes(1), size_class_bytes(1024), size_class_bytes(1025), size_class_bytes(1_200_000)
    (512, 1024, 1152, 1310720)
    """
    if nbytes <= MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    base = 1 << ((nbytes - 1).bit_length() - 1)
    step = base >> 3
    return base + -(-(nbytes - base) // step) * step


@dataclass(kw_only=True)
class BlockAllocator:
    """Records which bytes of an arena are in use. Offsets and sizes are in bytes. Pure: touches no shared memory."""

    limit_bytes: int
    end_offset: int
    next_offset: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0
    block_sizes: dict[int, int] = field(default_factory=dict)
    reference_counts: dict[int, int] = field(default_factory=dict)
    free_blocks: dict[int, list[int]] = field(default_factory=dict)
    min_free_counts: dict[int, int] = field(default_factory=dict)
    punched_blocks: set[int] = field(default_factory=set)
    is_last_block_cold: bool = False
    """Whether the pages of the last allocated block are untouched: writing to them takes ten times as long."""

    def reuse_free_block(self, size_bytes: int) -> int | None:
        """Return the last freed block of a size class, with one reference; None if none is free or at the limit."""
        free = self.free_blocks.get(size_bytes)
        if not free or self.live_bytes + size_bytes > self.limit_bytes:
            return None
        block = free.pop()
        if len(free) < self.min_free_counts[size_bytes]:  # noqa: PLR1730 - three times as fast as `min`
            self.min_free_counts[size_bytes] = len(free)
        self.is_last_block_cold = block in self.punched_blocks
        if self.is_last_block_cold:
            self.punched_blocks.discard(block)
        return self._mark_live(block, size_bytes)

    def allocate(self, size_bytes: int) -> int:
        """Return a block of a size class, with one reference. Raises ArenaFullError if the limit would be exceeded."""
        block = self.reuse_free_block(size_bytes)
        if block is not None:
            return block
        if self.live_bytes + size_bytes <= self.limit_bytes:
            # A block that may be punched must not share a page with another one.
            block = (
                -(-self.next_offset // mmap.PAGESIZE) * mmap.PAGESIZE
                if size_bytes >= MIN_PUNCH_BYTES
                else self.next_offset
            )
            if block + size_bytes <= self.end_offset:
                self.next_offset = block + size_bytes
                self.is_last_block_cold = True
                self.block_sizes[block] = size_bytes
                return self._mark_live(block, size_bytes)
            # The address range is used up: take the smallest larger free block that the limit allows.
            for larger in sorted(other for other, free in self.free_blocks.items() if free and other > size_bytes):
                block = self.reuse_free_block(larger)
                if block is not None:
                    return block
        raise ArenaFullError(
            f"cannot allocate {size_bytes} bytes: {self.live_bytes} of the {self.limit_bytes} bytes of shared memory "
            "are in use"
        )

    def _mark_live(self, block: int, size_bytes: int) -> int:
        self.reference_counts[block] = 1
        self.live_bytes = live = self.live_bytes + size_bytes
        if live > self.peak_bytes:  # noqa: PLR1730 - `max` costs three times as much
            self.peak_bytes = live
        return block

    def add_references(self, block: int, delta: int) -> None:
        """Add `delta` references to `block`, or remove them. At zero the block becomes free. Ignores free blocks."""
        count = self.reference_counts.get(block)
        if count is None:
            return
        count += delta
        if count > 0:
            self.reference_counts[block] = count
            return
        del self.reference_counts[block]
        size = self.block_sizes[block]
        self.live_bytes -= size
        free = self.free_blocks.get(size)
        if free is None:
            self.free_blocks[size] = [block]
            self.min_free_counts[size] = 0
        else:
            free.append(block)

    def collect_idle(self) -> list[tuple[int, int]]:
        """Return (offset, size) of large free blocks that were not allocated since the last call; reports each once."""
        idle_blocks = []
        for size, free in self.free_blocks.items():
            if size >= MIN_PUNCH_BYTES:
                idle_blocks += [
                    (block, size) for block in free[: self.min_free_counts[size]] if block not in self.punched_blocks
                ]
            self.min_free_counts[size] = len(free)
        self.punched_blocks.update(block for block, _ in idle_blocks)
        return idle_blocks


class ArenaMapping:
    """One era of an arena, mapped into this process: offsets `start_offset` to `end_offset` of its memfd.

    With `writable=False` the pages are read-only: writing to them is a segmentation fault.
    """

    def __init__(self, arena_number: int, fd: int, start_offset: int, size_bytes: int, *, writable: bool) -> None:
        """Map `size_bytes` bytes of the memfd `fd`, from `start_offset` on."""
        self.arena_number = arena_number
        self.start_offset = start_offset
        self.size_bytes = size_bytes
        self.end_offset = start_offset + size_bytes
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapped = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, protection, offset=start_offset)
        self.address = int(np.frombuffer(mapped, np.uint8, 1).__array_interface__["data"][0])
        # This buffer is flagged writable even over read-only pages, so that torch wraps it without a copy. NumPy and
        # torch check only the flag; the page protection still holds. Decoding marks arrays read-only.
        memory = (ctypes.c_ubyte * size_bytes).from_address(self.address)
        # Every view holds `memory`, and `memory` holds the mapping: arrays stay readable after the pipeline is closed.
        memory.__dict__["mapped"] = mapped
        self.buffer = memoryview(memory)

    def __contains__(self, address: int) -> bool:
        """Whether the memory address `address` is in this mapping."""
        return self.address <= address < self.address + self.size_bytes


class Arena:
    """An arena in the process that owns it: the allocator, and a writable mapping of the current era."""

    def __init__(self, number: int, fd: int, limit_bytes: int, era: int = 0) -> None:
        """`fd` is a memfd from `make_arena_fd`; at most `limit_bytes` bytes of its blocks are in use at a time."""
        self.number = number
        self.fd = fd
        self._limit_bytes = limit_bytes
        self.begin_era(era)

    def begin_era(self, era: int) -> None:
        """Allocate from the range of `era` from now on. Views of older blocks stay valid."""
        span = era_span_bytes(self._limit_bytes)
        self.era_start = era * span
        self.mapping = ArenaMapping(self.number, self.fd, self.era_start, span, writable=True)
        self.allocator = BlockAllocator(
            limit_bytes=self._limit_bytes, end_offset=self.mapping.end_offset, next_offset=self.era_start
        )
        self.data: NDArray[np.uint8] = np.frombuffer(self.mapping.buffer, np.uint8)

    def punch_idle_blocks(self) -> None:
        """Return the pages of idle blocks to the kernel. Their addresses stay valid."""
        for block, size in self.allocator.collect_idle():
            punch_hole(self.fd, block, size)


_LIBC = ctypes.CDLL(None, use_errno=True)


def punch_hole(fd: int, offset: int, nbytes: int) -> None:
    """Return the whole pages within a range of a memfd to the kernel.

    Kernel errors are ignored: the pages then stay allocated, and only memory use is higher.
    """
    page_bytes = mmap.PAGESIZE
    start = -(-offset // page_bytes) * page_bytes
    end = (offset + nbytes) // page_bytes * page_bytes
    if end > start:
        _LIBC.fallocate(fd, _FALLOC_PUNCH_FLAGS, ctypes.c_long(start), ctypes.c_long(end - start))


def make_arena_fd(limit_bytes: int, era: int = 0) -> int:
    """Create a memfd for an arena with at most `limit_bytes` bytes in use. It has no path and takes no memory yet."""
    fd = os.memfd_create("stagepipe-arena", os.MFD_CLOEXEC)
    extend_arena_fd(fd, limit_bytes, era)
    return fd


def extend_arena_fd(fd: int, limit_bytes: int, era: int) -> None:
    """Extend the memfd to the end of `era`'s range, before any process enters that era."""
    os.ftruncate(fd, era_span_bytes(limit_bytes) * (era + 1))


_RELEASE_STRUCT = struct.Struct("<QiI")
_MAX_RELEASES_PER_WRITE = 4096 // _RELEASE_STRUCT.size  # one atomic write: PIPE_BUF, see pipe(7)
# The checksum is a sum modulo a prime. Every flipped bit changes it, and `zlib.crc32` takes three times as long.
_BLOCK_FACTOR = 0x9E3779B1
_DELTA_FACTOR = 0x85EBCA6B
_CHECKSUM_SEED = 0x5EA5E  # arbitrary, so that a record of zeros fails
_CHECKSUM_PRIME = (1 << 32) - 5  # the largest prime below 2**32
_READ_BYTES = 64 << 10  # the default capacity of a pipe, pipe(7)


class ReleasePipes:
    """The release pipes of all arenas, by arena number: the read end of its own, the write ends of the others.

    Releases are collected by block. A full pipe never blocks the process: rejected releases are sent later.
    """

    def __init__(self, fds: dict[int, int]) -> None:
        """`fds` are the non-blocking ends, by arena number."""
        self._fds = fds
        self._unsent_counts: dict[int, dict[int, int]] = {}
        self.transports: dict[int, Transport] = {}
        """Transports by arena number. Their buffers are released without a pipe."""
        self._released_elsewhere = 0

    def require(self, arena: int) -> None:
        """Raise TransportError for an arena that this process does not know."""
        if arena not in self._fds and arena not in self.transports:
            raise TransportError(f"a descriptor names arena {arena}; this process knows {sorted(self._fds)}")

    def add_release(self, arena: int, block: int) -> None:
        """Collect a release for the next `send_releases`."""
        counts = self._unsent_counts.get(arena)
        if counts is None:
            if arena in self.transports:
                self.transports[arena].release(block - TICKET_BASE)
                self._released_elsewhere += 1
                return
            counts = self._unsent_counts[arena] = {}
        counts[block] = counts.get(block, 0) + 1

    def send_releases(self) -> int:
        """Send the collected releases to the owners of their blocks. Returns how many were sent."""
        released, self._released_elsewhere = self._released_elsewhere, 0
        return released + sum([self._send_to(arena, counts) for arena, counts in self._unsent_counts.items() if counts])

    def discard_releases(self) -> int:
        """Forget the releases that are not sent yet. Returns how many."""
        count = sum(sum(counts.values()) for counts in self._unsent_counts.values())
        self._unsent_counts.clear()
        return count

    def _send_to(self, arena: int, unsent_counts: dict[int, int]) -> int:
        """Send the releases for one arena. Releases that do not fit the pipe stay, added up, for the next call."""
        sent = 0
        while unsent_counts:
            batch = list(unsent_counts.items())[:_MAX_RELEASES_PER_WRITE]
            if not self._write(arena, b"".join([_pack_release(block, -count) for block, count in batch])):
                break
            for block, count in batch:
                del unsent_counts[block]
                sent += count
        return sent

    def add_reference(self, arena: int, block: int) -> bool:
        """Tell the owner of a block immediately that the block has one more reference; False if the pipe is full."""
        if arena in self.transports:
            return self.transports[arena].hand_on(block - TICKET_BASE)
        return self._write(arena, _pack_release(block, 1))

    def _write(self, arena: int, data: bytes) -> bool:
        try:
            os.write(self._fds[arena], data)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True  # the owner has ended, and its arena with it
        return True

    def read_records(self, arena: int, add_references: Callable[[int, int], None]) -> None:
        """Call `add_references` with each record for this process's arena: a block and a change of its reference count.

        Raises TransportError for a damaged record.
        """
        fd = self._fds[arena]
        while True:
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                return
            if len(data) % _RELEASE_STRUCT.size:
                raise TransportError(f"a release record for arena {arena} is truncated")
            for block, delta, checksum in _RELEASE_STRUCT.iter_unpack(data):
                if checksum != (block * _BLOCK_FACTOR + delta * _DELTA_FACTOR + _CHECKSUM_SEED) % _CHECKSUM_PRIME:
                    raise TransportError(
                        f"a release record for arena {arena} fails its checksum (block {block}, change {delta})"
                    )
                add_references(block, delta)
            if len(data) < _READ_BYTES:
                return


def _pack_release(block: int, delta: int) -> bytes:
    checksum = (block * _BLOCK_FACTOR + delta * _DELTA_FACTOR + _CHECKSUM_SEED) % _CHECKSUM_PRIME
    return _RELEASE_STRUCT.pack(block, delta, checksum)


_MAX_DUPLICATE_LEASES = 256
MIN_RELEASES_TO_FLUSH = 4
"""A number of releases worth a system call. Small, because a block released soon is still in the owner's cache."""

BlockId = tuple[int, int]
"""The block of a lease: arena number and offset."""


class LeaseExtent(NamedTuple):
    """The bytes that a lease keeps in use: `nbytes` from offset `block` of an arena."""

    arena: int
    block: int
    nbytes: int


class Lease(np.ndarray[Any, Any]):
    """A uint8 view of a block's used bytes. While it lives, the block is not reused. Slices have no `block_id`."""

    block_id: BlockId | None = None
    reference: LeaseReference
    is_shared: bool = False

    @cached_property
    def address(self) -> int:
        """The address of the first byte."""
        return int(self.__array_interface__["data"][0])


class LeaseReference(weakref.ref[Lease]):
    """The weak reference to a lease, which queues the release of the lease's block when the lease dies."""

    __slots__ = ("block_id",)
    block_id: BlockId


class _CarriedBuffer(NamedTuple):
    """A buffer of a transport, with the fields that `ArenaMapping` has for an era of an arena."""

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
        """`arena_fds` (memfds) and `release_fds` (ends of the pipes for release records) are keyed by arena number.

        `release_fds` has the read end for this process's own arena, and write ends for all others. `writable` maps the
        other arenas for writing, which the training loop needs. `limit_bytes` is the argument of `make_arena_fd`;
        without it, the arenas have only one era.
        """
        self.arena = arena
        self.release_queue: deque[BlockId | LeaseReference] = deque()
        """Blocks to release, and dead leases."""
        self._arena_fds = arena_fds
        self._release_pipes = ReleasePipes(release_fds)
        self._is_writable = writable
        self._era_span_bytes = None if limit_bytes is None else era_span_bytes(limit_bytes)
        self._era_start = 0 if arena is None else arena.era_start
        self._mappings: dict[int, ArenaMapping] = {} if arena is None else {arena.number: arena.mapping}
        self._live_leases: dict[BlockId, LeaseReference] = {}
        self._duplicate_leases: list[LeaseReference] = []
        """Older leases on blocks for which a newer lease exists."""
        self.transports: dict[int, Transport] = {}
        """The transports of this run, by arena number; see `attach_transports`."""
        self.lease_count = 0
        """References that this process holds, or released without telling the owner yet. Above 0, waits tick
        often."""
        self.on_live_bytes: Callable[[int], None] = _ignore
        """Called with the bytes in use in this process's arena whenever they change."""
        self.on_largest_block_bytes: Callable[[int], None] = _ignore
        """Called with the size in bytes of the largest block so far, whenever it grows."""
        self._largest_block_bytes = 0

    def attach_transports(self, transports: dict[int, Transport]) -> None:
        """Also take over buffers from these transports, keyed by arena number, and release them there."""
        self.transports = self._release_pipes.transports = transports

    def find_transport(self, name: str) -> tuple[int, Transport] | None:
        """Return the arena number and the transport with this name; None for a built-in one."""
        return next((pair for pair in self.transports.items() if pair[1].name == name), None)

    # ------------------------------------------------------------------ the process's own arena

    def allocate(self, nbytes: int, *, for_several_items: bool = False) -> int:
        """Allocate a block of this process's arena, without a lease. Raises ArenaFullError above the limit.

        `for_several_items`: the block does not count for `on_largest_block_bytes`, which measures single items.
        """
        if self.arena is None:
            raise TransportError("this process has no shared memory to send from")
        allocator = self.arena.allocator
        size = size_class_bytes(nbytes)
        if size >= _MIN_WARM_BYTES:
            self.collect_releases()
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
        """Return a writable lease on a new block of this process's arena. A loan that dies unsent frees its block."""
        if len(self.release_queue) >= MIN_RELEASES_TO_FLUSH:
            self.flush_releases()
        block = self.allocate(nbytes)
        return self._make_lease(self.arena.mapping, block, nbytes)  # type: ignore[union-attr]  # checked above

    def collect_releases(self) -> None:
        """Apply the release records that other processes sent to this process's arena."""
        if self.arena is None:
            return
        self._release_pipes.read_records(self.arena.number, self.arena.allocator.add_references)
        self.on_live_bytes(self.arena.allocator.live_bytes)

    # ------------------------------------------------------------------ blocks of any arena

    def lease_block(self, arena: int, block: int, nbytes: int, *, is_shared: bool) -> Lease:
        """Return a lease for a reference that came with a packet: uint8 of shape (nbytes,).

        Raises TransportError if the range is outside the arena.
        """
        mapping: ArenaMapping | _CarriedBuffer | None = self._mappings.get(arena)
        if mapping is None or not mapping.start_offset <= block <= mapping.end_offset - nbytes:
            mapping = (
                self._take_over(arena, block, nbytes)
                if arena in self.transports
                else self._map_era(arena, block, nbytes)
            )
        return self._make_lease(mapping, block, nbytes, is_shared=is_shared)

    def read_block(self, arena: int, block: int, block_offset: int, nbytes: int) -> bytes:
        """Copy bytes of a block that a packet refers to. Raises TransportError if they are outside the arena."""
        mapping = self._mappings.get(arena)
        if mapping is None or not mapping.start_offset <= block <= mapping.end_offset - block_offset - nbytes:
            mapping = self._map_era(arena, block, block_offset + nbytes)
        start = block - mapping.start_offset + block_offset
        return bytes(mapping.buffer[start : start + nbytes])

    def _map_era(self, arena: int, block: int, nbytes: int) -> ArenaMapping:
        """Map the era that contains these bytes of an arena. Raises TransportError if no era does."""
        fd = self._arena_fds.get(arena)
        if fd is None:
            raise TransportError(f"a descriptor names arena {arena}; this process knows {sorted(self._arena_fds)}")
        size = os.fstat(fd).st_size
        span = self._era_span_bytes or size
        start = block // span * span
        if block + nbytes > min(start + span, size):
            raise TransportError(f"a descriptor points {block + nbytes - start - span} bytes past arena {arena}")
        mapping = ArenaMapping(arena, fd, start, span, writable=self._is_writable)
        if self.arena is None or arena != self.arena.number:  # this process's own arena stays mapped to its current era
            self._mappings[arena] = mapping
        return mapping

    def _take_over(self, arena: int, block: int, nbytes: int) -> _CarriedBuffer:
        array = self.transports[arena].take_over(block - TICKET_BASE, nbytes)
        address = array.__array_interface__["data"][0]
        # A view of `array` itself would have `array` as its base, not the lease.
        memory = (ctypes.c_ubyte * nbytes).from_address(address)
        memory.__dict__["array"] = array
        return _CarriedBuffer(arena, block, block + nbytes, address, memoryview(memory))

    def _make_lease(
        self, mapping: ArenaMapping | _CarriedBuffer, block: int, nbytes: int, *, is_shared: bool = False
    ) -> Lease:
        lease: Lease = np.ndarray.__new__(Lease, (nbytes,), np.uint8, mapping.buffer, block - mapping.start_offset)
        lease.reference = reference = LeaseReference(lease, self.release_queue.append)
        lease.block_id = reference.block_id = block_id = (mapping.arena_number, block)
        if is_shared:
            lease.is_shared = True
        live_leases = self._live_leases
        if block_id in live_leases and live_leases[block_id]() is not None:
            self._track_duplicate(live_leases[block_id])
        live_leases[block_id] = reference
        self.lease_count += 1
        return lease

    def _track_duplicate(self, reference: LeaseReference) -> None:
        if len(self._duplicate_leases) >= _MAX_DUPLICATE_LEASES:
            self._duplicate_leases = [lease for lease in self._duplicate_leases if lease() is not None]
        self._duplicate_leases.append(reference)

    # ------------------------------------------------------------------ eras

    def begin_era(self, era: int) -> None:
        """Allocate from a new era, after a process has died. Older blocks stay readable but cannot be forwarded."""
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
        """Return the live leases on blocks of older eras. Their memory must not be discarded yet."""
        era_start = self._era_start
        stale_leases = []
        for reference in [*self._live_leases.values(), *self._duplicate_leases]:
            arena, block = reference.block_id
            lease = reference() if block < era_start else None
            if lease is not None:
                stale_leases.append(LeaseExtent(arena, block, lease.size))
        return stale_leases

    def held_bytes(self) -> int:
        """Return the bytes of all live leases in this process. Takes time in proportion to their number."""
        leases = [reference() for reference in list(self._live_leases.values())]
        return sum(lease.size for lease in leases if lease is not None)

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """Return the lease that contains these bytes, or None. For tensors, which do not refer to the viewed array."""
        mapping = next((mapping for mapping in self._mappings.values() if address in mapping), None)
        if mapping is not None:
            offset = address - mapping.address + mapping.start_offset
            for (arena, block), reference in self._live_leases.items():
                lease = reference() if arena == mapping.arena_number and block <= offset else None
                if lease is not None and offset + nbytes <= block + lease.size:
                    return lease
        return None

    def forward_lease(self, lease_box: list[Lease], block_id: BlockId) -> bool | None:
        """Transfer a reference to the block of the lease in `lease_box` to another process.

        Returns whether the block is shared, that is, whether a third process may hold a reference; None if the caller
        must copy the bytes. If only the box holds the lease, its reference is handed over. If the stage still holds the
        lease, the owner adds a second reference. A loan that the stage still holds is copied, because the stage may
        write to it again. A lease that is still held is in the box afterwards.

        To find out, the box drops the lease: if nothing else held it, its release is queued. Reference counts would
        also show this, but they differ between Python versions and under a debugger.
        """
        if block_id[1] < self._era_start:
            return None
        lease = lease_box.pop()
        is_shared = lease.is_shared
        reference = lease.reference
        del lease
        held_lease = reference()
        if held_lease is None:
            self.release_queue.remove(reference)
            self._forget(reference)
            self.lease_count -= 1
            return is_shared
        lease_box.append(held_lease)
        if self.arena is not None and block_id[0] == self.arena.number:
            return None
        # The owner must add the reference before any other process can release the block, so this record is sent now or
        # not # at all. Queued releases may arrive later: until then the owner counts too many references.
        if not self._release_pipes.add_reference(*block_id):
            return None
        held_lease.is_shared = True
        return True

    # ------------------------------------------------------------------ releases

    def release_block(self, arena: int, block: int) -> None:
        """Release a block whose packet was dropped or not sent. Raises TransportError for an unknown arena."""
        self._release_pipes.require(arena)
        if block < self._era_start:
            return
        self.lease_count += 1
        self.release_queue.append((arena, block))

    def flush_releases(self) -> None:
        """Send all queued releases to the owners of the blocks. Never waits: a full pipe delays some of them."""
        if not self.lease_count:
            return
        release_queue = self.release_queue
        own_arena = self.arena
        own_released = False
        while release_queue:
            released = release_queue.popleft()
            if isinstance(released, LeaseReference):
                self._forget(released)
                arena, block = released.block_id
            else:
                arena, block = released
            if own_arena is not None and arena == own_arena.number:
                own_arena.allocator.add_references(block, -1)
                self.lease_count -= 1
                own_released = True
            else:
                self._release_pipes.add_release(arena, block)
        if own_arena is not None and own_released:
            self.on_live_bytes(own_arena.allocator.live_bytes)
        self.lease_count -= self._release_pipes.send_releases()

    def release_all(self) -> None:
        """Release all leases of this process, which is about to end. Other processes may then overwrite the blocks."""
        self.flush_releases()
        references = [*self._live_leases.values(), *self._duplicate_leases]
        # The leases keep the old queue: when they die, they must not release their blocks again.
        self.release_queue = deque(reference.block_id for reference in references if reference() is not None)
        self._live_leases.clear()
        self._duplicate_leases.clear()
        self.flush_releases()

    @property
    def is_unused(self) -> bool:
        """Whether no process uses a block of this process's arena, and all releases of this process are sent."""
        self.collect_releases()
        return not self.lease_count and (self.arena is None or not self.arena.allocator.live_bytes)

    def _forget(self, reference: LeaseReference) -> None:
        """Forget a dead lease. If a second packet brought another lease on its block, that one stays known."""
        if self._live_leases.get(reference.block_id) is reference:
            del self._live_leases[reference.block_id]


def _ignore(_: int) -> None:
    """The default callback."""
