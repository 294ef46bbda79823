"""benchmarks.scaling runs a job by processes, and goes on where it was interrupted."""

import json

import pytest

from benchmarks.common.turn import run_turn
from benchmarks.scaling import FIXED, JOBS, OURS
from tests.support.command import run_benchmark


@pytest.mark.timeout(120)
def test_a_turn_delivers_every_item_and_its_figures():
    request = {"job": "models", "contestant": FIXED, "layout": [2, 3], "share": 0.1, "started_s": 0.0}
    figures = run_turn("benchmarks.scaling", request, 60)
    assert 5 < figures["items_per_s"] < 50
    assert figures["workers"] == figures["most_workers"] == JOBS["models"].workers
    assert figures["changes"] == figures["changed_after_s"] == []


@pytest.mark.timeout(120)
def test_a_run_with_changing_workers_reports_the_changes_and_their_cost():
    request = {"job": "models", "contestant": OURS, "layout": [], "share": 0.1, "started_s": 0.0}
    figures = run_turn("benchmarks.scaling", request, 60)
    assert len(figures["changed_after_s"]) == len(JOBS["models"].shifts)
    assert set(figures["start"]) == set(JOBS["models"].moving)
    assert figures["most_workers"] >= sum(figures["start"].values())
    assert 0 < figures["deciding_cpu"] < 1


@pytest.mark.timeout(120)
def test_the_command_takes_the_rounds_that_the_file_lacks(tmp_path):
    path = tmp_path / "scaling.json"
    options = ("--jobs", "models", "--only", FIXED, "--share", "0.1", "--json", str(path))
    done = run_benchmark("scaling", *options, "--rounds", "1")
    assert done.returncode == 0, done.stderr
    *search, turn = json.loads(path.read_text())["jobs"]["models"]["turns"]
    assert [each["round"] for each in (*search, turn)] == [0, 0, 0, 0, 1]
    assert turn["figures"]["items_per_s"] > 0
    assert f"| models | {FIXED}" in done.stdout
    again = run_benchmark("scaling", *options, "--rounds", "1")
    assert again.returncode == 0
    assert "round" not in again.stderr
