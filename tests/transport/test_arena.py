"""Blocks never overlap, waste little, come back warm, and pages that stay unused go back to the kernel."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stagepipe.core import ArenaFullError
from stagepipe.transport.arena import PUNCHED_FROM, SMALLEST, Allocator, Arena, class_size, make_arena

sizes = st.integers(1, 1 << 34)


@given(sizes)
def test_a_class_holds_its_bytes_with_at_most_an_eighth_of_waste(nbytes):
    size = class_size(nbytes)
    assert size >= nbytes
    assert size <= SMALLEST or size * 8 <= nbytes * 9 + 8
    assert class_size(size) == size


@given(sizes, sizes)
def test_classes_grow_with_the_bytes(one, other):
    assert (class_size(one) <= class_size(other)) or one > other


def test_there_are_eight_classes_a_doubling():
    assert len({class_size(n) for n in range(1025, 2049)}) == 8


@given(st.integers(SMALLEST, 1 << 30))
def test_blocks_begin_where_a_cache_line_does(nbytes):
    assert class_size(nbytes) % 64 == 0


class Allocations(RuleBasedStateMachine):
    """Any order of taking, retaining, releasing and sweeping, against a plain record of what is taken."""

    def __init__(self):
        super().__init__()
        self.limit = 1 << 20
        self.allocator = Allocator(self.limit, 2 << 20)
        self.taken: dict[int, list[int]] = {}  # block: its size, its references
        self.freed: dict[int, list[int]] = {}

    @rule(nbytes=st.integers(1, 300_000))
    def take(self, nbytes):
        size = class_size(nbytes)
        live = sum(size for size, _ in self.taken.values())
        try:
            block = self.allocator.take(size)
        except ArenaFullError:
            room = self.allocator.end + size <= self.allocator.capacity or self.freed.get(size)
            assert live + size > self.limit or not room
            return
        assert live + self.allocator.size_of[block] <= self.limit
        last = self.freed.get(size)
        if last:
            assert block == last.pop(), "last in, first out"
        else:
            for blocks in self.freed.values():
                if block in blocks:
                    blocks.remove(block)
        self.taken[block] = [self.allocator.size_of[block], 1]

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), change=st.sampled_from([1, -1, -1, 2]))
    def count(self, data, change):
        block = data.draw(st.sampled_from(sorted(self.taken)))
        self.allocator.add(block, change)
        self.taken[block][1] += change
        if self.taken[block][1] <= 0:
            size, _ = self.taken.pop(block)
            self.freed.setdefault(size, []).append(block)

    @rule(block=st.integers(0, 1 << 21))
    def release_what_is_not_taken(self, block):
        if block not in self.taken:
            self.allocator.add(block, -1)

    @rule()
    def sweep(self):
        for block, size in self.allocator.idle():
            assert block not in self.taken
            assert size == self.allocator.size_of[block]

    @invariant()
    def live_blocks_do_not_overlap(self):
        ends = 0
        for block in sorted(self.taken):
            assert block >= ends
            ends = block + self.taken[block][0]
        assert ends <= self.allocator.end <= self.allocator.capacity

    @invariant()
    def live_is_what_is_taken(self):
        assert self.allocator.live == sum(size for size, _ in self.taken.values()) <= self.limit
        assert self.allocator.live <= self.allocator.peak <= self.limit


TestAllocations = Allocations.TestCase


def test_a_cut_up_arena_lends_larger_blocks_and_forgets_that_they_were_punched():
    allocator = Allocator(limit=1 << 20, capacity=1 << 20)
    large = [allocator.take(PUNCHED_FROM * 4) for _ in range(4)]
    for block in large:
        allocator.add(block, -1)
    allocator.idle()
    assert len(allocator.idle()) == 4
    assert allocator.take(SMALLEST) == large[-1]
    allocator.add(large[-1], -1)
    allocator.idle()
    assert allocator.idle() == [(large[-1], PUNCHED_FROM * 4)], "it was touched again, so its pages go back again"
    with pytest.raises(ArenaFullError):
        allocator.take((1 << 20) + (1 << 17))


def test_what_was_used_since_the_last_sweep_is_not_idle():
    allocator = Allocator(1 << 24, 1 << 26)
    blocks = [allocator.take(PUNCHED_FROM) for _ in range(10)]
    for block in blocks:
        allocator.add(block, -1)
    assert allocator.idle() == []  # all were in use since the beginning
    for _ in range(100):
        for block in [allocator.take(PUNCHED_FROM) for _ in range(3)]:
            allocator.add(block, -1)
    assert len(allocator.idle()) == 7
    assert allocator.idle() != []  # the three are idle now
    assert allocator.idle() == []  # and nothing is named twice


@pytest.fixture
def arena():
    fd = make_arena(64 << 20)
    yield Arena(3, fd, 64 << 20)
    os.close(fd)


def resident_bytes(arena):
    return os.fstat(arena.fd).st_blocks * 512


def test_an_arena_takes_no_memory_before_it_is_used_and_has_no_name(arena):
    assert resident_bytes(arena) == 0
    assert os.fstat(arena.fd).st_nlink == 0


def test_idle_pages_go_back_to_the_kernel_and_live_data_stays(arena):
    size = class_size(1 << 20)
    blocks = [arena.allocator.take(size) for _ in range(32)]
    for number, block in enumerate(blocks):
        arena.bytes[block : block + size] = number
    full = resident_bytes(arena)
    for block in blocks[1::2]:
        arena.allocator.add(block, -1)
    arena.punch_idle()
    assert resident_bytes(arena) == full, "they were in use a moment ago"
    arena.punch_idle()
    assert resident_bytes(arena) <= full // 2 + (64 << 10)
    assert all(
        (arena.bytes[block : block + size] == number).all() for number, block in enumerate(blocks) if not number % 2
    )


def test_a_punched_block_can_be_used_again(arena):
    size = class_size(1 << 20)
    block = arena.allocator.take(size)
    arena.bytes[block : block + size] = 1
    arena.allocator.add(block, -1)
    arena.punch_idle()
    arena.punch_idle()
    assert resident_bytes(arena) == 0
    assert arena.allocator.take(size) == block
    arena.bytes[block : block + size] = 2
    assert (np.frombuffer(arena.mapping.buffer, np.uint8, size, block) == 2).all()


def test_blocks_that_may_be_punched_share_no_page_with_their_neighbours(arena):
    arena.allocator.take(SMALLEST)
    size = class_size(100_000)
    blocks = [arena.allocator.take(size) for _ in range(9)]
    assert not any(block % 4096 or size % 4096 for block in blocks)
    for block in blocks:
        arena.bytes[block : block + size] = 7
    for block in blocks[1::2]:
        arena.allocator.add(block, -1)
    arena.punch_idle()
    arena.punch_idle()
    assert all((arena.bytes[block : block + size] == 7).all() for block in blocks[::2])
    assert (arena.bytes[blocks[1] + 4096 : blocks[1] + 8192] == 0).all()
