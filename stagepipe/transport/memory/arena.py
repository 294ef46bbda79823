"""The arena of a process: a sparse memfd, divided into blocks. Its owner allocates; other processes only map it.

Blocks have geometric size classes, eight per doubling. For 102 MiB of live blocks of varying sizes they took 410 MiB,
where sizes in steps of 4 KiB took 3,060 MiB. The block freed last is reused first, so its pages are still resident and
cached: writing to fresh shared memory runs at about 1 GiB/s, writing to it again at 20 GiB/s or more.

After the death of a worker a new *era* begins. The leases of the dead worker are unknown, so new blocks come from a
fresh range of the same memfd. No offset is used in two eras, so an offset identifies its era.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import ArenaFullError

MIN_BLOCK_BYTES = 512
MIN_PUNCH_BYTES = 64 << 10
"""Smaller blocks are not returned to the kernel, because they share pages with others."""
_FALLOC_PUNCH_FLAGS = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h
_ADDRESS_SPACE_FACTOR = 4
"""The address range of an era, as a multiple of its limit. Free blocks of one size class do not serve another class."""


def era_span_bytes(limit_bytes: int) -> int:
    """The size of an era's range in a memfd, in bytes: whole pages, for at most `limit_bytes` of live blocks."""
    return -(-limit_bytes * _ADDRESS_SPACE_FACTOR // mmap.PAGESIZE) * mmap.PAGESIZE


def size_class_bytes(nbytes: int) -> int:
    """The size in bytes of a block for `nbytes`: at least 512, and at most an eighth more than `nbytes` above that.

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
        """The last freed block of a size class, with one reference; None if none is free or the limit is reached."""
        free = self.free_blocks.get(size_bytes)
        if not free or self.live_bytes + size_bytes > self.limit_bytes:
            return None
        return self._mark_live(self._pop_free_block(size_bytes, free))

    def allocate(self, size_bytes: int) -> int:
        """A block of a size class, with one reference. Raises ArenaFullError if the limit would be exceeded."""
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
                return self._mark_live(block)
            # The address range is used up: take the smallest larger block that the limit allows.
            for larger in sorted(other for other, free in self.free_blocks.items() if free and other > size_bytes):
                if self.live_bytes + larger <= self.limit_bytes:
                    return self._mark_live(self._pop_free_block(larger, self.free_blocks[larger]))
        raise ArenaFullError(
            f"cannot allocate {size_bytes} bytes: {self.live_bytes} of the {self.limit_bytes} bytes of shared memory "
            "are in use"
        )

    def _pop_free_block(self, size_bytes: int, free_blocks: list[int]) -> int:
        block = free_blocks.pop()
        free_count = len(free_blocks)
        if free_count < self.min_free_counts[size_bytes]:  # noqa: PLR1730 - three times as fast as `min`, two look-ups
            self.min_free_counts[size_bytes] = free_count
        self.is_last_block_cold = block in self.punched_blocks
        if self.is_last_block_cold:
            self.punched_blocks.discard(block)
        return block

    def _mark_live(self, block: int) -> int:
        self.reference_counts[block] = 1
        self.live_bytes = live = self.live_bytes + self.block_sizes[block]
        if live > self.peak_bytes:  # noqa: PLR1730 - `max` costs three times as much
            self.peak_bytes = live
        return block

    def add_references(self, block: int, delta: int) -> None:
        """Add `delta` references to `block`, or remove them; at zero it becomes free. Ignores a block not in use."""
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
        """(offset, size) of the large free blocks that were not allocated since the last call; reports each once."""
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
        # torch check the flag alone; the page protection still holds. Arrays are marked read-only after decoding.
        memory = (ctypes.c_ubyte * size_bytes).from_address(self.address)
        # Every view holds `memory`, and through it the mapping: arrays stay readable after the pipeline is closed.
        memory.__dict__["mapped"] = mapped
        self.buffer = memoryview(memory)

    def __contains__(self, address: int) -> bool:
        """Whether the memory address `address` is in this mapping."""
        return self.address <= address < self.address + self.size_bytes


class Arena:
    """An arena in the process that owns it: the allocator, and a writable mapping of the current era."""

    def __init__(self, number: int, fd: int, limit_bytes: int, era: int = 0) -> None:
        """`fd` is a memfd of `make_arena_fd`; at most `limit_bytes` bytes of its blocks are in use at a time."""
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

    Errors of the kernel are ignored: the pages stay, and only memory use depends on them.
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
