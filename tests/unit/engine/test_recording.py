"""The counters are right, each item counts once, and the monitor measures what memory the workers use."""

import os
import time

import pytest

from stagepipe import Pipeline
from stagepipe.engine.recording import RunMonitor
from tests.support.pipelines import batch, pipeline, shuffle, stage
from tests.support.stages import parts


def test_the_memory_of_a_worker_that_has_ended_stays_as_last_measured():
    monitor = RunMonitor()
    monitor.sample_usage({3: os.getpid()})
    usage = monitor.usage_by_process[3]
    assert usage.rss_bytes > 1 << 20
    assert 0 < usage.pss_bytes <= usage.rss_bytes
    monitor.sample_usage({3: 2**22 + 1})
    assert monitor.usage_by_process == {3: usage}


pytestmark = pytest.mark.timeout(40)


def test_every_stage_counts_the_items_that_it_received():
    config = pipeline(stage("same", workers=2), shuffle(10), stage("parts"), batch(4), source=50)
    with Pipeline(config) as running:
        list(running)
    report = running.report()
    leaves = sum(1 for number in range(50) for _ in parts(number))
    assert [(s.name, s.items) for s in report.stages] == [
        ("source", 50),
        ("same", 50),
        ("shuffle", 50),
        ("parts", 50),
        ("batch", leaves),
    ]


def test_the_first_item_of_a_worker_is_not_among_the_slowest():
    with Pipeline(pipeline(stage("nap", with_={"seconds": 0.001}), source=20)) as running:
        list(running)
    slowest = [slow.item for slow in running.report().slowest if slow.stage == "nap"]
    assert slowest
    assert "0" not in slowest


@pytest.mark.parametrize("inline", [False, True])
def test_progress_reports_items_before_the_first_sample_is_out(inline):
    config = pipeline(stage("nap", with_={"seconds": 0.01}), batch(100), source=100)
    with Pipeline(config, inline=inline) as running:
        assert running.progress().items_per_s == 0
        items = iter(running)
        next(items)
        time.sleep(0.2)
        running.progress()
        time.sleep(0.2)
        progress = running.progress()
    assert (progress.items_in, progress.samples_out) == (100, 100)
