"""The live figures of a run: another process reads them as the run does, and a rate follows a change."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from stagepipe import Pipeline, RunError
from stagepipe.api import open_shards, run_to_sink
from stagepipe.engine import LiveFigures
from stagepipe.engine.live_figures import RateEstimator, compare_looks, count_in_source_items
from stagepipe.report import LiveHop, LiveRun, LiveStage
from stagepipe.runtime import ProcessDescription, RunDescription, find_runs
from stagepipe.timing import BoardLayout
from tests.support.kills import kill, until, until_ready
from tests.support.pipelines import batch, pipeline, stage

SECOND = 1_000_000_000


def rates(counts, step=0.2):
    rate = RateEstimator()
    return [rate.update(int(tick * step * SECOND), count) for tick, count in enumerate(counts)]


def test_a_constant_flow_has_its_own_rate():
    assert rates(range(1, 100))[50:] == [pytest.approx(5.0)] * 49


def test_it_does_not_fall_to_zero_between_two_batches_that_are_ten_seconds_apart():
    counts = [256 * (tick // 50) for tick in range(500)]  # one batch of 256 every 10 s
    assert all(25.6 / 2 < rate <= 26 for rate in rates(counts)[110:])


def test_it_follows_a_change_within_seconds():
    counts = [*range(100), *(100 + 10 * tick for tick in range(60))]
    assert rates(counts)[-1] == pytest.approx(50)


def test_the_start_does_not_count():
    assert rates([0] * 100 + list(range(1, 20)))[-1] == pytest.approx(5)
    assert rates([0] * 100)[-1] == 0


pytestmark = pytest.mark.timeout(60)


def open_view(name: str = "test") -> LiveFigures:
    [run] = [run for run in find_runs().runs if run.description.name == name]
    return LiveFigures.attach(run)


def take_when(view: LiveFigures, is_reached) -> LiveRun:
    """Look until the workers have written their counters, which they do several times a second."""
    seen = [view.take(detailed=True)]
    until(lambda: is_reached(seen[0]) or seen.__setitem__(0, view.take(detailed=True)))
    return seen[0]


def test_a_view_counts_what_the_run_counts(socket_folder):
    config = pipeline(stage("same", workers=2), batch(4), source=400)
    with Pipeline(config) as running:
        items = iter(running)
        for _ in range(100):
            next(items)
        until_ready(running)
        view = open_view()
        run = take_when(
            view,
            lambda seen: (
                (seen.items_out, seen.stages[1].items, *(hop.messages for hop in seen.hops[:2])) == (100, 400, 400, 400)
            ),
        )
        pids = running._run._list_pids()
        assert list(items) == []
    assert (run.samples_out, run.items_total, run.state) == (400, 400, "running")
    assert [(each.name, each.workers) for each in run.stages] == [
        ("source", 1), ("same", 2), ("batch", 1), ("consumer", 1)
    ]  # fmt: skip
    assert [(hop.source, hop.target) for hop in run.hops] == [
        ("source", "same"),
        ("same", "batch"),
        ("batch", "consumer"),
    ]
    assert all(0 < hop.cost_ns.p50 <= hop.cost_ns.p99 for hop in run.hops[:2])
    assert all(each.rss_bytes > 1 << 20 for each in run.stages)
    assert len(set(pids.values())) == 4
    assert [each.kind for each in run.stages] == ["source", "stage", "stage", "consumer"]
    assert view.take(detailed=True).state == "ended"


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
    assert [each.restarts for each in run.stages] == [0, 1, 0, 0]
    assert run.stages[1].errors > 0


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


def test_rows_have_the_user_s_names_and_count_source_items(socket_folder, tmp_path):
    config = pipeline(
        stage("same", workers=2),
        batch(4),
        source=240,
        sink={"uses": "stagepipe.sinks.jsonl", "workers": 2, "with": {"path": str(tmp_path / "out"), "part_items": 3}},
    )
    seen: list[LiveRun] = []
    running = Pipeline(config)
    with open_shards(running) as shards, running:
        run_to_sink(running, seen.append, shards=shards)
        until(lambda: [each.items for each in running.progress().stages] == [240] * 4)  # workers write now and then
        end = running.progress()
    for run in seen:
        assert [each.name for each in run.stages] == ["source", "same", "batch", "jsonl"]
        assert [each.kind for each in run.stages] == ["source", "stage", "stage", "sink"]
        assert [each.workers for each in run.stages] == [1, 2, 1, 2]
        assert [(hop.source, hop.target) for hop in run.hops] == [
            ("source", "same"), ("same", "batch"), ("batch", "jsonl")
        ]  # fmt: skip
        assert run.limited_by in {"", *(each.name for each in run.stages)}
    assert (end.state, end.items_in, end.items_done, end.items_out, end.files_out) == ("running", 240, 240, 20, 1)
    assert end.format_items() == "240 of 240 items in, 1 file out"


def test_a_generator_and_a_filter_are_counted_in_source_items():
    def make_figures(items_per_output: int, received: int, sent: int) -> tuple[LiveStage, ...]:
        rows = [ProcessDescription(stages=(name,), rows=(name,), workers=1) for name in ("source", "stage")]
        rows[1] = replace(rows[1], items_per_output=items_per_output)
        described = RunDescription(name="", processes=tuple(rows), memory_bytes=0, layout=BoardLayout(1, (1, 1, 0), 2))
        run = LiveRun(
            items_sent=1000,
            stages=(
                LiveStage(name="source", items=100),
                LiveStage(name="stage", items=received, received=received),
                LiveStage(name="consumer", items=sent, items_per_s=float(sent)),
            ),
            hops=(
                LiveHop(source="source", target="stage", messages=100),
                LiveHop(source="stage", target="consumer", messages=sent),
            ),
        )
        return count_in_source_items(described, run)

    assert [each.items for each in make_figures(32, received=320, sent=10)] == [100, 320, 320]
    assert make_figures(32, received=320, sent=10)[2].items_per_s == 320
    assert make_figures(1, received=100, sent=400)[2].items == 100  # a generator
    assert make_figures(1, received=100, sent=50)[2].items == 50  # a filter
    assert make_figures(0, received=300, sent=3)[2].items == 300  # parts


def test_figures_of_processes_count_what_has_happened_and_stay_as_they_are():
    with Pipeline(pipeline(stage("same", workers=2), batch(4), source=40)) as running:
        items = iter(running)
        next(items)
        run = running._run
        before = run.read_figures()
        assert len(list(items)) == 9
        until_ready(running)
        kept = run.read_figures()
    assert ((before.items_out, before.samples_out), (kept.items_out, kept.samples_out)) == ((1, 4), (10, 40))
    assert ([row.workers for row in kept.stages], kept.items_sent, kept.starting) == ([1, 2, 1, 1], 40, ())
    same = run.make_record().stages[1]
    assert (same.items, sum(load.items for load in same.worker_loads)) == (40, 40)
    assert 0 < same.starting_ns + same.starved_ns + same.blocked_ns + same.busy_ns <= same.wall_ns


def test_a_restart_in_a_record_has_its_lost_time_once_an_item_has_come():
    with Pipeline(pipeline(stage("nap", with_={"seconds": 0.01}), source=200)) as running:
        items = iter(running)
        next(items)
        kill(running, 1)
        (restart,) = running._run.make_record().restarts
        list(items)
        assert restart.lost_ns == 0, "nothing has been delivered since"
        assert running._run.make_record().restarts[0].lost_ns > 0


def test_figures_stay_while_all_workers_are_in_a_function():
    before = LiveStage(name="a", workers=2)
    after = replace(before, covered_ns=4 * 10**9, items=44, busy_ns=10**9, queue_ns=6 * 10**9, hop_ns=2 * 10**9)
    rated = compare_looks(before, after, None)
    assert (rated.items_per_s, rated.busy, rated.work, rated.queued) == (22.0, 0.25, 0.75, 3.0)
    assert compare_looks(after, replace(after, is_starting=True), rated) == replace(rated, is_starting=True)
