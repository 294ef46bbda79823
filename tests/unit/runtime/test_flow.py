"""Flow control: admission by window and memory, and when a process copies what it receives."""

from __future__ import annotations

import os
import select
from dataclasses import dataclass

import pytest

from stagepipe.runtime.flow import EXPECTED_LEASES, AdmissionController, FedSegment, HeldMemoryLimit, ProgressPublisher
from stagepipe.timing import Board, BoardLayout, ProcessCounter, make_board_fd
from stagepipe.transport import WakeEvent

GENERATION = 3
WINDOW = 16


class Segment:
    """A feeder and an order point that meet on a board. `early` counts what the order point holds for its turn."""

    def __init__(self, first_item: int = 0, workers: int = 1) -> None:
        layout = BoardLayout(1, (1,) * (1 + workers) + (0,))
        fd = make_board_fd(layout)
        self.board = board = Board(fd, layout)
        os.close(fd)
        self.events = (WakeEvent(), WakeEvent())
        self.early = 0
        segment = FedSegment(0, ((0,), tuple(range(1, 1 + workers))), 1 << 30)
        self.admission = AdmissionController(board, segment, self.events, lambda: None)
        self.progress = ProgressPublisher(board, 0, self.events[0])
        self.start(GENERATION, first_item)

    def start(self, generation: int, first_item: int, small_item_window: int = WINDOW) -> None:
        self.admission.start_generation(generation, first_item, WINDOW, small_item_window)
        self.progress.start_generation(generation, first_item, WINDOW, lambda: self.early)

    def arrive(self, consumed: int, early: int) -> None:
        self.early = early
        self.progress.publish(consumed)
        self.progress.flush()

    def count_admitted(self, start: int) -> int:
        item = start
        while self.admission.can_admit(item):
            item += 1
        return item - start


@pytest.fixture
def segment():
    segment = Segment(first_item=7)
    yield segment
    for event in segment.events:
        event.close()


def test_the_first_items_come_four_at_a_time_until_some_have_arrived(segment):
    assert segment.count_admitted(7) == 4
    segment.arrive(consumed=8, early=0)
    assert segment.count_admitted(11) == 3


def test_items_behind_a_slow_first_one_are_admitted_up_to_the_window(segment):
    assert segment.count_admitted(7) == 4
    segment.arrive(consumed=7, early=3)
    assert segment.count_admitted(11) == 6
    segment.arrive(consumed=7, early=9)
    assert segment.count_admitted(17) == WINDOW - 10


def test_items_of_an_earlier_generation_do_not_count(segment):
    segment.arrive(consumed=7, early=3)
    segment.early = 0
    segment.start(GENERATION + 1, 7)
    assert segment.count_admitted(7) == 4


def test_a_chunk_is_admitted_as_a_whole(segment):
    for consumed in range(8, 40):
        segment.arrive(consumed=consumed, early=0)
        segment.admission.can_admit(consumed + 40)
    assert segment.admission.max_chunk_items == WINDOW // 4
    assert segment.admission.wait_until_chunk_admitted(39, 4, lambda: False) == 4
    assert segment.admission.wait_until_chunk_admitted(39 + WINDOW - 3, 4, lambda: True) == 0


def test_memory_of_the_segments_behind_it_does_not_make_chunks_small(segment):
    segment.admission.known_item_bytes = 100
    segment.board.region(1)[ProcessCounter.LIVE_BYTES] = 1 << 29
    for consumed in range(8, 40):
        segment.arrive(consumed=consumed, early=0)
        segment.admission.can_admit(consumed + 1)
    assert segment.admission.max_chunk_items == WINDOW // 4


def test_an_empty_segment_admits_one_where_there_is_no_room_for_a_chunk(segment):
    assert segment.admission.wait_until_chunk_admitted(7, 40, lambda: False) == 1


SMALL_ITEM_WINDOW = 64
FIRST_OF_MANY = 1000


@pytest.fixture
def full_segment(segment):
    """A segment with as many small items as its window admits, behind the slow start."""
    segment.start(GENERATION, FIRST_OF_MANY, SMALL_ITEM_WINDOW)
    for consumed in range(FIRST_OF_MANY, FIRST_OF_MANY + SMALL_ITEM_WINDOW):
        segment.arrive(consumed=consumed, early=0)
        segment.admission.can_admit(consumed + SMALL_ITEM_WINDOW)
    segment.consumed = consumed
    segment.next_item = consumed + segment.count_admitted(consumed)
    assert segment.next_item == consumed + SMALL_ITEM_WINDOW
    return segment


def record_waits(segment, monkeypatch, arrive):
    """The timeouts of the feeder's waits. In each of them, `arrive` is called until the feeder is woken, or once."""
    timeouts_s = []

    def wait(timeout_s):
        timeouts_s.append(timeout_s)
        while arrive() and not select.select([segment.events[0].fd], [], [], 0)[0]:
            pass

    monkeypatch.setattr(segment.admission._waiter, "wait", wait)
    return timeouts_s


def test_a_feeder_of_a_wide_full_window_sleeps_until_a_quarter_is_consumed(full_segment, monkeypatch):
    counts = iter(range(full_segment.consumed + 1, full_segment.consumed + SMALL_ITEM_WINDOW))
    timeouts_s = record_waits(
        full_segment, monkeypatch, lambda: full_segment.arrive(consumed=next(counts), early=0) or True
    )
    assert full_segment.admission.wait_until_admitted(full_segment.next_item, lambda: False)
    assert next(counts) - full_segment.consumed == SMALL_ITEM_WINDOW // 4 + 1
    assert timeouts_s == [0.25]


@pytest.mark.parametrize("workers,timeout_s", [(6, 0.25), (7, 0.005)])
def test_a_feeder_of_a_full_window_sleeps_where_its_workers_have_two_items_each(workers, timeout_s, monkeypatch):
    segment = Segment(first_item=7, workers=workers)
    for consumed in range(8, 40):
        segment.arrive(consumed=consumed, early=0)
        segment.admission.can_admit(consumed + WINDOW)
    timeouts_s = record_waits(segment, monkeypatch, lambda: segment.arrive(consumed=39 + WINDOW // 4, early=0))
    assert segment.admission.wait_until_admitted(39 + WINDOW, lambda: False)
    assert timeouts_s == [timeout_s]


def test_a_slow_start_looks_often_for_early_items_which_wake_nobody(segment, monkeypatch):
    segment.start(GENERATION, 7, SMALL_ITEM_WINDOW)
    next_item = 7 + segment.count_admitted(7)
    timeouts_s = record_waits(segment, monkeypatch, lambda: segment.arrive(consumed=7, early=3))
    assert segment.admission.wait_until_admitted(next_item, lambda: False)
    assert timeouts_s == [0.005]


@dataclass
class Pool:
    """Stands in for the SharedMemoryPool, whose leases need arenas."""

    lease_count: int = 0
    bytes_per_lease: int = 10
    sums: int = 0

    def held_bytes(self) -> int:
        self.sums += 1
        return self.lease_count * self.bytes_per_lease


@pytest.fixture
def pool() -> Pool:
    return Pool()


def make_limit(pool: Pool, published: list[int]) -> HeldMemoryLimit:
    return HeldMemoryLimit(pool, 100, published.append)  # type: ignore[arg-type]


def test_items_are_copied_while_more_than_the_limit_is_held(pool):
    published: list[int] = []
    limit = make_limit(pool, published)
    exceeded = []
    for pool.lease_count in (8, 10, 11, 10):
        exceeded.append(limit.check())
    assert exceeded == [False, False, True, False]
    assert published == [80, 100, 110, 100]


def test_the_leases_of_any_caller_are_not_summed_up(pool):
    published: list[int] = []
    limit = make_limit(pool, published)
    pool.lease_count, pool.bytes_per_lease = EXPECTED_LEASES, 1000
    assert not limit.check()
    assert (pool.sums, published) == (0, [0])


def test_many_leases_are_summed_up_now_and_then(pool):
    limit = make_limit(pool, [])
    pool.lease_count = 1000
    assert [limit.check() for _ in range(8)] == [False] * 3 + [True] * 5
    assert pool.sums == 2
    assert limit.measure()
    assert pool.sums == 3
