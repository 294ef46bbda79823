"""Workers run under SCHED_BATCH where items queue anyway, and under SCHED_OTHER where somebody waits for each item."""

import os
import time

import pytest

from stagepipe import Pipeline
from stagepipe.runtime.worker.scheduling import SchedulingPolicy
from stagepipe.timing import Board, BoardLayout, make_board_fd
from tests.support.pipelines import pipeline, stage

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
