"""Eras of shared memory: the memory of a dead worker is given back, and leased blocks are not touched."""

import os

import numpy as np
import pytest

from stagepipe import Pipeline
from stagepipe.runtime.flow import StaleLeaseReporter
from stagepipe.runtime.supervisor.workers import punch_unleased
from stagepipe.transport import Arena, SharedMemoryPool, era_span_bytes, extend_arena_fd, make_arena_fd, make_byte_pipe
from tests.support.kills import kill, until, until_ready
from tests.support.pipelines import pipeline, stage

LIMIT_BYTES = 1 << 20
ITEM_BYTES = 300_000


@pytest.fixture
def fds():
    """The memfds of arenas 0 and 1, and the release pipe of arena 0."""
    opened = [make_arena_fd(LIMIT_BYTES), make_arena_fd(LIMIT_BYTES), *make_byte_pipe()]
    yield opened
    for fd in opened:
        os.close(fd)


def resident_bytes(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def test_only_blocks_without_a_lease_are_punched_out(fds):
    arenas = {0: fds[0], 1: fds[1]}
    arena = Arena(0, fds[0], LIMIT_BYTES)
    memory = SharedMemoryPool(arena, arenas, {0: fds[2]}, limit_bytes=LIMIT_BYTES)
    kept, lost = memory.loan(ITEM_BYTES), memory.loan(ITEM_BYTES)
    kept[:], lost[:] = 7, 8
    memory.release_queue.clear()
    extend_arena_fd(fds[0], LIMIT_BYTES, 1)
    del lost  # as if a dead process had leased it
    memory.begin_era(1)
    assert memory.loan(ITEM_BYTES).block_id[1] >= era_span_bytes(LIMIT_BYTES), "blocks come from a fresh range"
    stale_leases = memory.stale_leases()
    assert [nbytes for _, _, nbytes in stale_leases] == [ITEM_BYTES]
    assert resident_bytes(fds[0]) > 2 * ITEM_BYTES
    punch_unleased(arenas, era_span_bytes(LIMIT_BYTES), stale_leases)
    assert (kept == 7).all()
    assert resident_bytes(fds[0]) < 2 * ITEM_BYTES + 8192
    del kept
    memory.flush_releases()
    assert memory.stale_leases() == []


def test_a_block_of_an_older_era_is_copied_and_not_forwarded(fds):
    memory = SharedMemoryPool(Arena(0, fds[0], LIMIT_BYTES), {0: fds[0]}, {0: fds[2]}, limit_bytes=LIMIT_BYTES)
    box = [memory.loan(ITEM_BYTES)]
    block_id = box[0].block_id
    extend_arena_fd(fds[0], LIMIT_BYTES, 1)
    memory.begin_era(1)
    assert memory.forward_lease(box, block_id) is None
    assert box, "the item is still in the box, to be copied"


def test_a_second_lease_on_the_same_block_is_reported_too(fds):
    memory = SharedMemoryPool(None, {0: fds[0]}, {0: fds[3]}, limit_bytes=LIMIT_BYTES)
    first, second = memory.lease_block(0, 0, 512, is_shared=True), memory.lease_block(0, 0, 512, is_shared=True)
    del second
    memory.flush_releases()
    memory.begin_era(1)
    assert memory.stale_leases() == [(0, 0, 512)]
    del first
    assert memory.stale_leases() == []


def test_every_era_gets_a_report_even_with_as_many_leases_as_before(fds):
    memory, reports = SharedMemoryPool(None, {0: fds[0]}, {0: fds[3]}, limit_bytes=LIMIT_BYTES), []
    reporter = StaleLeaseReporter(memory, 0, lambda era, leases: reports.append((era, len(leases))))
    lease = memory.lease_block(0, 0, 512, is_shared=False)
    for era in (1, 2):
        assert reporter.enter_era(era)
        reporter.report()
        reporter.report_if_any()
    assert reports == [(1, 1), (2, 1)]
    del lease
    reporter.report_if_any()
    reporter.report_if_any()
    assert reports == [(1, 1), (2, 1), (2, 0)]


def test_items_that_the_caller_keeps_survive_ten_deaths_and_other_memory_is_given_back():
    config = pipeline(stage("megabyte", workers=2), stage("same"), source=1_000_000, max_restarts=100)
    kept = []
    with Pipeline({**config, "memory": "128MiB"}) as running:
        supervisor = running._run._supervisor
        for number, item in enumerate(running):
            image = item["image"]
            assert (image == image[0]).all()
            if number % 40 == 0:
                kept.append((int(image[0]), image))
                kill(running, number // 40 % 4)
            if len(kept) == 10:
                break
        until_ready(running)
        assert len(list(zip(range(50), running, strict=False))) == 50
        kept_bytes = sum(image.nbytes for _, image in kept)
        until(lambda: supervisor.board.stale_bytes <= kept_bytes)
        assert all((image == value).all() for value, image in kept)
        assert sum(resident_bytes(fd) for fd in supervisor.resources.arena_memfds.values()) < 100 << 20
        assert isinstance(kept[0][1], np.ndarray)
