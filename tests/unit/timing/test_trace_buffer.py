import os

import pytest

from stagepipe.timing import TraceBuffer, TraceKind, make_trace_fd, pack_durations, read_trace, unpack_durations

CAPACITY = 8


@pytest.fixture
def fd():
    fd = make_trace_fd(CAPACITY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("key", [(0,), (2**62,), (17, 3), (1, 2**32 - 1, 5), (1, 2, 3, 4), (1, 2, 3, 4, 5)])
def test_a_record_comes_back_as_it_was(fd, key):
    buffer = TraceBuffer(fd, CAPACITY)
    buffer.enter_generation(2**31)
    buffer.add(TraceKind.STAGE, 2**60, 2**60 + 5, key, 300, 7, 2**63, 9, is_failed=True)
    (record,) = read_trace(fd, CAPACITY).iter_records()
    assert record == (TraceKind.STAGE, 2**60, 2**60 + 5, key, 300, True, 2**31, os.getpid(), 7, 2**63, 9)


def test_a_record_without_an_item_has_the_key_minus_one(fd):
    TraceBuffer(fd, CAPACITY).add(TraceKind.START, 1, 2)
    assert [record.key for record in read_trace(fd, CAPACITY).iter_records()] == [(-1,)]


def test_a_full_ring_keeps_the_newest_and_counts_the_others(fd):
    buffer = TraceBuffer(fd, CAPACITY)
    for number in range(20):
        buffer.add(TraceKind.ITEM, number, number + 1, (number,))
    ring = read_trace(fd, CAPACITY)
    assert [record.key[0] for record in ring.iter_records()] == list(range(13, 20))
    assert ring.dropped == 13


def test_a_successor_continues_the_ring(fd):
    TraceBuffer(fd, CAPACITY).add(TraceKind.ITEM, 1, 2, (1,))
    TraceBuffer(fd, CAPACITY).add(TraceKind.ITEM, 3, 4, (2,))
    assert [record.key for record in read_trace(fd, CAPACITY).iter_records()] == [(1,), (2,)]


def test_items_of_a_killed_writer_arrive(fd):
    pid = os.fork()
    if not pid:
        buffer = TraceBuffer(fd, CAPACITY)
        buffer.add(TraceKind.ITEM, 1, 2, (5,))
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert [(record.key, record.pid) for record in read_trace(fd, CAPACITY).iter_records()] == [((5,), pid)]


def test_long_durations_are_cut():
    assert unpack_durations(pack_durations(2**40, 3)) == (2**32 - 1, 3)
