"""A woken worker takes the processor from nobody where items queue anyway; where they do not, from whoever has it."""

import os
import time

import pytest

from stagepipe import Pipeline
from stagepipe.runtime.manners import Manners
from stagepipe.timing import Board, Layout, make_board
from tests.zoo.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(60)


def test_where_the_caller_is_slow_the_workers_are_batch_processes():
    with Pipeline(pipeline(stage("scheduling"), source=60, window=2)) as running:
        said = []
        for policy in running:
            said.append(policy)
            time.sleep(0.01)
    assert said[-1] == os.SCHED_BATCH


def test_one_that_is_asked_for_each_item_by_itself_is_a_normal_one(tmp_path):
    fifo = tmp_path / "requests"
    os.mkfifo(fifo)
    source = {"uses": "tests.zoo.stages.asked", "with": {"path": str(fifo)}}
    with Pipeline(pipeline(stage("scheduling"), source=source)) as running:
        requests, items = os.open(fifo, os.O_RDWR), iter(running)
        for _ in range(40):
            os.write(requests, b".")
            assert next(items) == os.SCHED_OTHER
        os.close(requests)


def test_a_second_after_the_last_feeder_was_held_up_it_is_a_normal_one_again():
    layout = Layout(stretches=2, stages=(1,))
    board = Board(make_board(layout), layout)
    manners, now = Manners(board), 10**12
    try:
        manners.look(now)
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
        board.publish_held_up(1, now)
        manners.look(now + 10**9 - 1)
        assert os.sched_getscheduler(0) == os.SCHED_BATCH
        manners.look(now + 10**9)
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
