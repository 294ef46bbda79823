"""A packet holds what its readers can share, 200 us of work of each; SCHED_BATCH only where items queue anyway."""

import os
import time

import pytest

from stagepipe import Pipeline
from stagepipe.core import Cursor
from stagepipe.runtime.protocol import Seek
from stagepipe.runtime.worker.upkeep import MessageLimit, SchedulingPolicy
from stagepipe.timing import Board, BoardLayout, StageCounter, make_board_fd
from tests.support.pipelines import pipeline, stage


@pytest.fixture
def board():
    layout = BoardLayout(1, (1, 2, 2, 2, 2), 1)
    return Board(make_board_fd(layout), layout)


def make_limit(board, readers, window=1000, own_item_ns=0):
    limit = MessageLimit(board, 0, 0, tuple(range(1, readers + 1)))
    work(board, 0, 100, own_item_ns)
    windows = [window]
    limit.start_generation(Seek(generation=1, epoch=0, cursor=Cursor(), windows=windows, small_item_windows=windows))
    return limit


def work(board, process, items, item_ns):
    """Let a process of two stages do some items."""
    for index, share in ((0, 0.25), (1, 0.75)) if process else ((0, 1),):
        region = board.region(process).stage_region(index)
        region[StageCounter.ITEMS] += items
        region[StageCounter.BUSY_NS] += int(items * item_ns * share)


@pytest.mark.parametrize("readers", [0, 1])
def test_a_single_reader_is_limited_by_the_window(board, readers):
    assert make_limit(board, readers, window=40).compute_max_items() == 20
    assert make_limit(board, readers, window=1).compute_max_items() == 1


@pytest.mark.parametrize("item_ns,items", [(0, 500), (20_000, 400), (95_000, 100), (3_995_000, 2), (10**9, 1)])
def test_a_message_takes_10_ms_of_the_own_work_at_most(board, item_ns, items):
    assert make_limit(board, 1, own_item_ns=item_ns).compute_max_items() == items


def test_nothing_is_held_before_the_own_work_was_measured(board):
    limit = MessageLimit(board, 0, 0, (1,))
    windows = [1000]
    limit.start_generation(Seek(generation=1, epoch=0, cursor=Cursor(), windows=windows, small_item_windows=windows))
    assert limit.compute_max_items() == 1


def test_several_readers_get_single_items_until_they_were_measured(board):
    limit = make_limit(board, 4)
    assert limit.compute_max_items() == 1
    work(board, 1, 100, item_ns=5_000)
    assert limit.compute_max_items() == 20


@pytest.mark.parametrize("item_ns,entries", [(0, 40), (15_000, 10), (95_000, 2), (1_000_000, 1)])
def test_several_readers_get_200_us_of_work_at_most(board, item_ns, entries):
    limit = make_limit(board, 2)
    work(board, 2, 50, item_ns)
    assert limit.compute_max_items() == entries


def test_several_readers_share_the_window(board):
    limit = make_limit(board, 4, window=40)
    work(board, 3, 50, item_ns=0)
    assert limit.compute_max_items() == 5


def test_only_the_latest_work_counts(board):
    limit = make_limit(board, 2)
    for item_ns, entries in ((1_000_000, 1), (5_000, 20), (195_000, 1)):
        work(board, 1, 60, item_ns)
        assert limit.compute_max_items() == entries
        assert limit.compute_max_items() == entries, "nothing new was measured"


pytestmark = pytest.mark.timeout(60)


def test_workers_are_batch_processes_where_the_caller_is_slow():
    with Pipeline(pipeline(stage("scheduling"), source=60, window=2)) as running:
        policies = []
        for policy in running:
            policies.append(policy)
            time.sleep(0.01)
    assert policies[-1] == os.SCHED_BATCH


def test_a_worker_is_a_normal_process_where_items_are_requested_one_by_one(tmp_path):
    fifo = tmp_path / "requests"
    os.mkfifo(fifo)
    source = {"uses": "tests.support.stages.asked", "with": {"path": str(fifo)}}
    with Pipeline(pipeline(stage("scheduling"), source=source)) as running:
        requests, items = os.open(fifo, os.O_RDWR), iter(running)
        for _ in range(40):
            os.write(requests, b".")
            assert next(items) == os.SCHED_OTHER
        os.close(requests)


def test_a_worker_is_a_normal_process_again_a_second_after_a_feeder_was_blocked():
    layout = BoardLayout(segment_count=2, stages_per_process=(1,))
    board = Board(make_board_fd(layout), layout)
    scheduling_policy, now_ns = SchedulingPolicy(board), 10**12
    try:
        scheduling_policy.update(now_ns)
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
        board.publish_admission_blocked(1, now_ns)
        scheduling_policy.update(now_ns + 10**9 - 1)
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        scheduling_policy.update(now_ns + 10**9)
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
