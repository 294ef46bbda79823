"""The report says what the training loop waited for."""

import time

import pytest

from stagepipe.torch import Loader
from tests.zoo.pipelines import pipeline, stage

STEP_S, PAUSE_S = 0.002, 0.1


@pytest.mark.timeout(60)
def test_of_a_training_loop_it_says_how_long_it_waited_worked_and_was_elsewhere():
    with Loader(pipeline(stage("same"), source=40)) as loader:
        for _ in range(2):
            for _ in loader:
                time.sleep(STEP_S)
            time.sleep(PAUSE_S)
        early = loader.report().consumer
    consumer = loader.report().consumer
    assert consumer.name == "training step"
    assert 0 < consumer.first_wait_ns < consumer.wait_ns
    assert consumer.busy_ns >= 80 * STEP_S * 1e9
    assert consumer.outside_ns >= early.outside_ns >= 2 * PAUSE_S * 1e9
