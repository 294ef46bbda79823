"""The report shows how long the training loop waited."""

import time

import pytest

from stagepipe.torch import Loader
from tests.support.pipelines import pipeline, stage

STEP_S = 0.002
PAUSE_S = 0.1


@pytest.mark.timeout(60)
def test_the_report_shows_how_long_the_training_loop_waited_worked_and_was_outside():
    with Loader(pipeline(stage("same"), source=40)) as loader:
        for _ in range(2):
            for _ in loader:
                time.sleep(STEP_S)
            time.sleep(PAUSE_S)
        report_while_open = loader.report().consumer
    consumer = loader.report().consumer
    assert consumer.name == "training step"
    assert 0 < consumer.first_wait_ns < consumer.wait_ns
    assert consumer.busy_ns >= 80 * STEP_S * 1e9
    assert consumer.outside_loop_ns >= report_while_open.outside_loop_ns >= 2 * PAUSE_S * 1e9
