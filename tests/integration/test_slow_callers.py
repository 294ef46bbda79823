"""A caller that works on small items, which come together, is shown as it is: at each item, and at the end."""

import time

import pytest

from stagepipe import Pipeline
from tests.support.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(100)

ITEMS = 3000
WORK_S = 0.01
SLOW = range(1000, 1040)


@pytest.mark.parametrize("order", ["source", "any"])
def test_the_items_and_the_work_of_a_caller_are_shown_at_each_item(order):
    config = pipeline(stage("same", workers=2), source=ITEMS, order=order)
    with Pipeline(config) as running:
        for taken, _ in enumerate(running, 1):
            if taken in SLOW:
                before = running.progress()
                time.sleep(WORK_S)
                after = running.progress()
                assert (before.items_out, after.items_out, running.items_yielded) == (taken, taken, taken)
                assert after.consumer_busy_ns - before.consumer_busy_ns >= WORK_S * 1e9
                assert after.consumer_wait_ns == before.consumer_wait_ns
        report = running.report()
    assert report.run.items_out == ITEMS
    assert report.consumer.busy_ns >= len(SLOW) * WORK_S * 1e9


@pytest.mark.parametrize("order", ["source", "any"])
def test_a_state_taken_at_any_item_of_a_chunk_is_exact(order):
    config = pipeline(stage("same", workers=2), source=400, order=order)
    seen = []
    with Pipeline(config) as running:
        for stop in (1, 2, 7, 50, 3, 64, 11):
            for _, item in zip(range(stop), running, strict=False):
                seen.append(item)
            state = running.state_dict()
            running.load_state_dict(state)
        seen += running
    assert sorted(seen) == list(range(400))
    assert order == "any" or seen == list(range(400))


def test_a_slow_caller_of_small_items_is_the_verdict():
    with Pipeline(pipeline(stage("same"), source=400)) as running:
        for taken, _ in enumerate(running, 1):
            if taken > 100:
                time.sleep(0.004)
    report = running.report()
    assert "consumer" in str(report.verdict), report.verdict
