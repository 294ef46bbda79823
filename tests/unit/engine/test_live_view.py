"""A view of a run from its board alone says what the run itself says."""

from pathlib import Path

import pytest

from stagepipe import Pipeline, RunError
from stagepipe.engine import LiveView
from stagepipe.report import LiveRun, LiveStage, find_limiting_stage
from stagepipe.runtime import find_runs
from tests.support.kills import kill, until, until_ready
from tests.support.pipelines import batch, pipeline, stage

pytestmark = pytest.mark.timeout(60)


def open_view(name: str = "test") -> LiveView:
    [run] = [run for run in find_runs().runs if run.description.name == name]
    return LiveView(run)


def take_when(view: LiveView, is_reached) -> LiveRun:
    """Look until the workers have written their counters, which they do several times a second."""
    seen = [view.take()]
    until(lambda: is_reached(seen[0]) or seen.__setitem__(0, view.take()))
    return seen[0]


def test_a_view_counts_what_the_run_counts(socket_folder):
    config = pipeline(stage("same", workers=2), batch(4), source=400)
    with Pipeline(config) as running:
        items = iter(running)
        for _ in range(100):
            next(items)
        view = open_view()
        run = take_when(
            view,
            lambda seen: (
                (seen.items_out, seen.stages[1].items, *(hop.messages for hop in seen.hops[:2])) == (100, 400, 400, 400)
            ),
        )
        workers = running._run.take_snapshot().workers
        assert list(items) == []
    assert (run.samples_out, run.items_total, run.state) == (400, 400, "running")
    assert [(each.name, each.workers) for each in run.stages] == [
        ("source", 1), ("same", 2), ("batch", 1), ("sink", 1)
    ]  # fmt: skip
    assert [(hop.source, hop.target) for hop in run.hops] == [("source", "same"), ("same", "batch"), ("batch", "sink")]
    assert all(0 < hop.cost_ns.p50 <= hop.cost_ns.p99 for hop in run.hops[:2])
    assert all(each.rss_bytes > 1 << 20 for each in run.stages)
    assert len({worker.pid for worker in workers}) == 4
    assert view._looks[-1].snapshot.workers[1].pid == workers[1].pid
    assert view.take().state == "ended"
    assert view.has_ended


def test_the_slow_stage_limits_the_run(socket_folder):
    config = pipeline(stage("nap", name="slow", with_={"seconds": 0.02}), stage("same", name="quick"), source=100_000)
    with Pipeline(config) as running:
        items = iter(running)
        next(items)
        view = open_view()

        def is_settled(seen: LiveRun) -> bool:
            next(items)
            return seen.limited_by == "slow" and seen.items_out > 30 and seen.items_per_s > 0

        run = take_when(view, is_settled)
    slow, quick, _ = run.stages[1:]
    assert slow.work >= slow.busy > quick.busy
    assert slow.run_ns.p50 > 20_000_000
    assert slow.work > quick.work
    assert quick.starved > quick.busy
    assert slow.queued > quick.queued


def test_restarts_and_errors_are_counted(socket_folder):
    fails = stage("tests.support.failing_stages.fails_sometimes", name="fails", on_error="skip")
    with Pipeline(pipeline(fails, stage("nap", with_={"seconds": 0.001}), source=2000)) as running:
        items = iter(running)
        next(items)
        view = open_view()
        kill(running, 1)
        next(items)
        until_ready(running)
        run = take_when(view, lambda seen: next(items, None) is None or seen.stages[1].errors > 10)
        restarted = running._run.take_snapshot().workers[1]
    assert [each.restarts for each in run.stages] == [0, 1, 0, 0]
    assert run.stages[1].errors > 0
    assert view._looks[-1].snapshot.workers[1].pid == restarted.pid


def test_a_stage_that_starts_is_shown_as_starting(socket_folder, tmp_path):
    late = stage("StartsWith", name="late", with_={"path": str(tmp_path / "go")})
    with Pipeline(pipeline(stage("same"), late, source=4)) as running:
        view = open_view()
        run = take_when(view, lambda seen: [each.is_starting for each in seen.stages] == [False, False, True, False])
        assert run.state == "starting"
        (tmp_path / "go").touch()
        assert len(list(running)) == 4
        assert take_when(view, lambda seen: seen.state == "running").stages[2].name == "late"


@pytest.mark.parametrize("ends", ["closed", "failed", "off"])
def test_no_socket_is_left_and_none_is_made_where_it_is_off(socket_folder: Path, ends):
    stages = (
        [stage("tests.support.failing_stages.fails_sometimes", name="fails")] if ends == "failed" else [stage("same")]
    )
    with Pipeline(pipeline(*stages, source=10, attach=ends != "off")) as running:
        if ends == "failed":
            with pytest.raises(RunError):
                list(running)
        else:
            assert len(list(running)) == 10
            assert socket_folder.exists() == (ends == "closed")
    assert not socket_folder.exists()


def test_a_stage_that_works_less_than_most_of_its_time_limits_nothing():
    idle, busy = (LiveStage(name=f"{work}", workers=1, work=work) for work in (0.59, 0.6))
    starting = LiveStage(name="starting", workers=1, work=1.0, is_starting=True)
    assert find_limiting_stage([]) == ""
    assert find_limiting_stage([idle, starting]) == ""
    assert find_limiting_stage([idle, busy, starting]) == "0.6"
