"""A snapshot says what a run has done at one moment, and does not change afterwards."""

import pytest

from stagepipe import Pipeline
from stagepipe.runtime import take_run_timings
from stagepipe.timing import RECEIVE_PHASES, SEND_PHASES, ProcessCounter, StageCounter
from tests.support.kills import kill, until_ready
from tests.support.pipelines import batch, pipeline, stage

pytestmark = pytest.mark.timeout(60)


def test_a_snapshot_counts_what_has_happened_and_stays_as_it_is():
    with Pipeline(pipeline(stage("same", workers=2), batch(4), source=40)) as running:
        items = iter(running)
        next(items)
        run = running._run
        before = run.take_snapshot()
        rest = list(items)
        until_ready(running)
        kept = run.take_snapshot()
    assert len(rest) == 9
    assert (before.deliveries.items, kept.deliveries.items) == (1, 10)
    assert (before.deliveries.samples, kept.deliveries.samples) == (4, 40)
    assert [len(group) for group in kept.worker_groups] == [1, 2, 1]
    assert kept.workers[0].counters[ProcessCounter.ITEMS_SENT] == 40
    assert len({worker.pid for worker in kept.workers}) == 4
    assert kept.starting_stages == ()
    after = run.take_snapshot()
    assert sum(worker.stage_counters[0][StageCounter.ITEMS] for worker in after.worker_groups[1]) == 40
    assert all(worker.counters[ProcessCounter.STOPPED_NS] for worker in after.workers)
    assert not any(worker.counters[ProcessCounter.STOPPED_NS] for worker in kept.workers)


def test_a_snapshot_names_the_stages_that_are_starting(tmp_path):
    late = stage("StartsWith", name="late", with_={"path": str(tmp_path / "go")})
    with Pipeline(pipeline(stage("same"), late, source=4)) as running:
        assert running._run.take_snapshot().starting_stages[-1] == "late"
        (tmp_path / "go").touch()
        until_ready(running)
        assert running._run.take_snapshot().starting_stages == ()


def test_a_restart_in_a_snapshot_keeps_its_lost_time():
    config = pipeline(stage("nap", with_={"seconds": 0.01}), source=200)
    with Pipeline(config) as running:
        items = iter(running)
        next(items)
        kill(running, 1)
        (restart,) = running._run.take_snapshot().restarts
        list(items)
        assert restart.lost_ns == 0, "nothing has been delivered since"
        assert running._run.take_snapshot().restarts[0].lost_ns > 0


def test_timings_are_summed_over_the_workers_of_both_sides():
    with Pipeline(pipeline(stage("same", workers=2), source=40)) as running:
        list(running)
    timings = take_run_timings(running._run._supervisor)
    assert list(timings.stages) == ["source", "same"]
    assert timings.stages["same"].run_histogram.count == 40
    for hop in timings.hops:
        assert {name: histogram.count for name, histogram in hop.phase_histograms.items()} == dict.fromkeys(
            (*SEND_PHASES, *RECEIVE_PHASES), 40
        )
