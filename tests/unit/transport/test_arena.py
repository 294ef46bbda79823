"""Blocks never overlap and waste little; the last freed is reused first; idle pages return to the kernel."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stagepipe.core import ArenaFullError
from stagepipe.transport import MIN_PUNCH_BYTES, Arena, make_arena_fd, size_class_bytes
from stagepipe.transport.memory import MIN_BLOCK_BYTES, BlockAllocator

sizes = st.integers(1, 1 << 34)


@given(sizes)
def test_a_size_class_wastes_at_most_an_eighth(nbytes):
    size = size_class_bytes(nbytes)
    assert size >= nbytes
    assert size <= MIN_BLOCK_BYTES or size * 8 <= nbytes * 9 + 8
    assert size_class_bytes(size) == size


@given(sizes, sizes)
def test_size_classes_grow_with_the_bytes(one, other):
    assert (size_class_bytes(one) <= size_class_bytes(other)) or one > other


def test_there_are_eight_size_classes_per_doubling():
    assert len({size_class_bytes(n) for n in range(1025, 2049)}) == 8


@given(st.integers(MIN_BLOCK_BYTES, 1 << 30))
def test_size_classes_are_multiples_of_a_cache_line(nbytes):
    assert size_class_bytes(nbytes) % 64 == 0


class Allocations(RuleBasedStateMachine):
    """Any order of allocating, referencing, releasing and sweeping, compared with a plain record of live blocks."""

    def __init__(self):
        super().__init__()
        self.limit_bytes = 1 << 20
        self.allocator = BlockAllocator(limit_bytes=self.limit_bytes, end_offset=2 << 20)
        self.live: dict[int, list[int]] = {}  # block: [size, references]
        self.freed: dict[int, list[int]] = {}

    @rule(nbytes=st.integers(1, 300_000))
    def allocate(self, nbytes):
        size = size_class_bytes(nbytes)
        live_bytes = sum(size for size, _ in self.live.values())
        try:
            block = self.allocator.allocate(size)
        except ArenaFullError:
            has_space = self.allocator.next_offset + size <= self.allocator.end_offset or self.freed.get(size)
            assert live_bytes + size > self.limit_bytes or not has_space
            return
        assert live_bytes + self.allocator.block_sizes[block] <= self.limit_bytes
        same_size = self.freed.get(size)
        if same_size:
            assert block == same_size.pop(), "last in, first out"
        else:
            for blocks in self.freed.values():
                if block in blocks:
                    blocks.remove(block)
        self.live[block] = [self.allocator.block_sizes[block], 1]

    @precondition(lambda self: self.live)
    @rule(data=st.data(), delta=st.sampled_from([1, -1, -1, 2]))
    def add_references(self, data, delta):
        block = data.draw(st.sampled_from(sorted(self.live)))
        self.allocator.add_references(block, delta)
        self.live[block][1] += delta
        if self.live[block][1] <= 0:
            size, _ = self.live.pop(block)
            self.freed.setdefault(size, []).append(block)

    @rule(block=st.integers(0, 1 << 21))
    def release_unused_block(self, block):
        if block not in self.live:
            self.allocator.add_references(block, -1)

    @rule()
    def sweep(self):
        for block, size in self.allocator.collect_idle():
            assert block not in self.live
            assert size == self.allocator.block_sizes[block]

    @invariant()
    def live_blocks_do_not_overlap(self):
        end = 0
        for block in sorted(self.live):
            assert block >= end
            end = block + self.live[block][0]
        assert end <= self.allocator.next_offset <= self.allocator.end_offset

    @invariant()
    def live_bytes_match_the_record(self):
        assert self.allocator.live_bytes == sum(size for size, _ in self.live.values()) <= self.limit_bytes
        assert self.allocator.live_bytes <= self.allocator.peak_bytes <= self.limit_bytes


TestAllocations = Allocations.TestCase


def test_a_fragmented_arena_reuses_larger_blocks_and_can_punch_them_again():
    allocator = BlockAllocator(limit_bytes=1 << 20, end_offset=1 << 20)
    large = [allocator.allocate(MIN_PUNCH_BYTES * 4) for _ in range(4)]
    for block in large:
        allocator.add_references(block, -1)
    allocator.collect_idle()
    assert len(allocator.collect_idle()) == 4
    assert allocator.allocate(MIN_BLOCK_BYTES) == large[-1]
    allocator.add_references(large[-1], -1)
    allocator.collect_idle()
    assert allocator.collect_idle() == [(large[-1], MIN_PUNCH_BYTES * 4)], (
        "it was written to again, so its pages return again"
    )
    with pytest.raises(ArenaFullError):
        allocator.allocate((1 << 20) + (1 << 17))


def test_blocks_used_since_the_last_sweep_are_not_idle():
    allocator = BlockAllocator(limit_bytes=1 << 24, end_offset=1 << 26)
    blocks = [allocator.allocate(MIN_PUNCH_BYTES) for _ in range(10)]
    for block in blocks:
        allocator.add_references(block, -1)
    assert allocator.collect_idle() == []  # all have been in use since the start
    for _ in range(100):
        for block in [allocator.allocate(MIN_PUNCH_BYTES) for _ in range(3)]:
            allocator.add_references(block, -1)
    assert len(allocator.collect_idle()) == 7
    assert allocator.collect_idle() != []  # now the other three are idle too
    assert allocator.collect_idle() == []  # no block is reported twice


@pytest.fixture
def arena():
    fd = make_arena_fd(64 << 20)
    yield Arena(3, fd, 64 << 20)
    os.close(fd)


def resident_bytes(arena):
    return os.fstat(arena.fd).st_blocks * 512


def test_an_unused_arena_takes_no_memory_and_has_no_path(arena):
    assert resident_bytes(arena) == 0
    assert os.fstat(arena.fd).st_nlink == 0


def test_idle_pages_return_to_the_kernel_and_live_data_stays(arena):
    size = size_class_bytes(1 << 20)
    blocks = [arena.allocator.allocate(size) for _ in range(32)]
    for number, block in enumerate(blocks):
        arena.data[block : block + size] = number
    all_resident_bytes = resident_bytes(arena)
    for block in blocks[1::2]:
        arena.allocator.add_references(block, -1)
    arena.punch_idle_blocks()
    assert resident_bytes(arena) == all_resident_bytes, "they were in use since the last sweep"
    arena.punch_idle_blocks()
    assert resident_bytes(arena) <= all_resident_bytes // 2 + (64 << 10)
    assert all(
        (arena.data[block : block + size] == number).all() for number, block in enumerate(blocks) if not number % 2
    )


def test_a_punched_block_can_be_used_again(arena):
    size = size_class_bytes(1 << 20)
    block = arena.allocator.allocate(size)
    arena.data[block : block + size] = 1
    arena.allocator.add_references(block, -1)
    arena.punch_idle_blocks()
    arena.punch_idle_blocks()
    assert resident_bytes(arena) == 0
    assert arena.allocator.allocate(size) == block
    arena.data[block : block + size] = 2
    assert (np.frombuffer(arena.mapping.buffer, np.uint8, size, block) == 2).all()


def test_blocks_that_may_be_punched_share_no_page_with_their_neighbours(arena):
    arena.allocator.allocate(MIN_BLOCK_BYTES)
    size = size_class_bytes(100_000)
    blocks = [arena.allocator.allocate(size) for _ in range(9)]
    assert not any(block % 4096 or size % 4096 for block in blocks)
    for block in blocks:
        arena.data[block : block + size] = 7
    for block in blocks[1::2]:
        arena.allocator.add_references(block, -1)
    arena.punch_idle_blocks()
    arena.punch_idle_blocks()
    assert all((arena.data[block : block + size] == 7).all() for block in blocks[::2])
    assert (arena.data[blocks[1] + 4096 : blocks[1] + 8192] == 0).all()
