"""A woken worker takes the processor from nobody where items queue anyway; where they do not, from whoever has it."""

import os
import time

import pytest

from stagepipe import Pipeline
from tests.zoo.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(60)


def test_where_the_caller_is_slow_the_workers_are_batch_processes():
    with Pipeline(pipeline(stage("scheduling"), source=60, window=2)) as running:
        said = []
        for policy in running:
            said.append(policy)
            time.sleep(0.01)
    assert said[0] == os.SCHED_OTHER
    assert said[-1] == os.SCHED_BATCH


def test_where_the_source_is_slow_they_are_normal_ones():
    source = {"uses": "tests.zoo.stages.trickle", "with": {"count": 40}}
    with Pipeline(pipeline(stage("scheduling"), source=source)) as running:
        assert list(running) == [os.SCHED_OTHER] * 40
