"""benchmarks.scaling: the layouts that are searched, what a shift and a change are, ratios and the page."""

import pytest

from benchmarks import scaling
from benchmarks.common.figures import Estimate
from benchmarks.common.stages import Work
from benchmarks.common.turn import TurnError
from benchmarks.peers.__main__ import Results
from benchmarks.scaling import BEFORE, FIXED, JOBS, MOST_WORKERS, OURS, count_workers, find_best, find_change_s

MACHINE = {"cpu": "x", "cpus": 2, "kernel": "6", "versions": {}, "memory_bytes": 1 << 34, "load_average": 0.5}
ABOUT = {"commit": "abc", "settings": {}, "machine": MACHINE, "command": "python -m benchmarks.scaling"}


@pytest.fixture
def results(tmp_path):
    """Return a function that makes results of turns: contestant, round, items/s, and more figures."""

    def make(*turns):
        made = Results(tmp_path / "r.json", ABOUT, ["models"])
        for contestant, number, rate, more in turns:
            made.add("models", contestant, number, figures={"items_per_s": rate, "wall_s": 20.0, "changes": [], **more})
        return made

    return make


def search(**rates):
    return [(f"fixed {name.replace('_', '+')}", 0, rate, {}) for name, rate in rates.items()]


@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_every_layout_with_the_same_total_is_searched(job):
    assert job.layouts
    assert {sum(layout) for layout in job.layouts} == {job.workers}
    assert all(min(layout) >= 1 and max(layout) <= MOST_WORKERS for layout in job.layouts)
    assert {len(layout) for layout in job.layouts} == {len(job.moving)}


@pytest.mark.parametrize("job", JOBS.values(), ids=list(JOBS))
def test_a_shorter_job_has_the_same_shares(job):
    short = job.shorten(0.5)
    assert short.count == job.count // 2
    assert len(short.marks) == len(job.marks)
    for stage in job.stages:
        firsts, short_firsts = ([first for first, *_ in stage.make_schedule(each.count)] for each in (job, short))
        assert short_firsts == pytest.approx([first / 2 for first in firsts], abs=1)


def test_the_mark_of_a_shift_is_left_by_the_first_item_of_its_stage(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job = JOBS["models"].shorten(0.05)
    for stage in job.stages:
        quick = [(first, 0.0, 0.0) for first, *_ in stage.make_schedule(job.count)]
        work = Work(stage.name, quick)
        assert [work(item) for item in range(job.count)] == list(range(job.count))
    assert set(job.marks) <= {path.name for path in tmp_path.iterdir()}


def test_a_change_before_the_shift_is_none_of_it():
    changes = [{"at_s": 1.0}, {"at_s": 3.5}, {"at_s": 9.0}]
    assert find_change_s(3.0, changes) == 0.5
    assert find_change_s(10.0, changes) is None


def test_workers_are_counted_over_the_time_of_the_run():
    changes = [{"at_s": -1.0, "stage": "a", "delta": 1}, {"at_s": 8.0, "stage": "b", "delta": -1}]
    found = count_workers({"a": 3, "b": 1}, changes, 10.0)
    assert found == {"workers": 4.8, "most_workers": 5, "start": {"a": 2, "b": 2}}


def test_an_item_that_is_missing_or_comes_twice_fails_the_turn(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    job = JOBS["models"].shorten(0.01)
    watch = scaling.Watch(job)
    for item in (0, 1, 2, 3, 3):
        watch.see(item, float(item))
    with pytest.raises(TurnError, match="5 items came, 4 different ones, instead of 5"):
        watch.measure(0.0)


def test_an_item_that_is_made_again_came_when_it_came_first():
    assert scaling.read_arrivals("0 7.5\n1 8.0\n0 9.0\n") == {0: 7.5, 1: 8.0}


def test_the_best_fixed_layout_is_that_of_the_search(results):
    found = results(*search(**{"1_4": 16.0, "2_3": 24.0, "3_2": 24.5}))
    assert find_best(found, "models") == (3, 2)
    assert find_best(results(), "models") == (3, 2), "the file is read again"


def test_a_ratio_is_of_one_round(results):
    found = results((OURS, 1, 30.0, {}), (OURS, 2, 40.0, {}), (FIXED, 1, 20.0, {}), (FIXED, 3, 1.0, {}))
    assert scaling.divide(found, "models", OURS) == Estimate(1.5, 1.5, 1.5, 0.0)


def test_the_table_has_the_reason_of_a_contestant_that_could_not_run(results):
    found = results((FIXED, 1, 20.0, {}))
    for number in (1, 2):
        found.add("models", BEFORE, number, reason="no such commit")
    rows = list(scaling.make_rows(found, "models"))
    assert [row[1].split()[0] for row in rows] == ["best", "auto,"]
    assert "*no such commit*" in rows[1]


def test_the_targets_are_judged_by_whole_intervals(results):
    turns = [
        turn
        for number in range(1, 7)
        for turn in (
            (OURS, number, 30.0 + number / 10, {"changed_after_s": [1.2, 1.9]}),
            (FIXED, number, 20.0, {}),
        )
    ]
    rate, after = scaling.judge(results(*turns), "models")
    assert "1.52 [1.51, 1.53] of the best fixed layout's items/s: met" in rate
    assert "1.5 [1.2, 1.9] s from a shift to a change: met" in after


def test_a_shift_that_nothing_followed_is_a_miss(results):
    found = results(*((OURS, number, 30.0, {"changed_after_s": [None]}) for number in range(1, 7)))
    _, after = scaling.judge(found, "models")
    assert "missed" in after


def test_the_page_is_filled_between_its_markers(results, tmp_path):
    results((OURS, 1, 30.0, {}), (FIXED, 1, 20.0, {}))
    page = scaling.make_page(tmp_path / "r.json", "a <!-- scaling --> old <!-- end scaling --> b")
    assert "| stagepipe |" in page
    assert " old " not in page


def test_an_older_commit_takes_its_turn_with_its_own_package(tmp_path, monkeypatch, results):
    taken = []
    monkeypatch.setattr(scaling, "run_turn", lambda *arguments, **keys: taken.append(keys) or {"items_per_s": 1.0})
    scaling.take(results(), ("models", BEFORE, 1), (), scaling.Run(1.0, tmp_path / "old", tmp_path))
    [keys] = taken
    assert keys["root"] == tmp_path / "old"
    command = keys["launch"](tmp_path, ["python", "-m", "benchmarks.scaling"])
    assert command[1:4] == [f"PYTHONPATH={tmp_path}", "python", "-P"]
