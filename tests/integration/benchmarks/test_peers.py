"""benchmarks.peers runs every job's functions by each contestant, compares the samples, and judges the figures."""

import json
import subprocess
import sys

import pytest

from benchmarks.common.figures import estimate
from benchmarks.peers.contestants import CONTESTANTS, OURS, REFERENCE
from benchmarks.peers.jobs import JOBS, Process
from benchmarks.peers.make_page import BEGIN, END, make_page
from benchmarks.peers.results import Results
from benchmarks.peers.tables import compare, format_seconds, judge, make_table
from tests.support.paths import ROOT

MACHINE = {"cpu": "x", "cpus": 2, "kernel": "6", "versions": {}}


@pytest.fixture
def results(tmp_path):
    """Return a function that makes results of turns: contestant, round, items/s, CPU for an item."""

    def make(*turns, settings=None):
        made = Results(tmp_path / "r.json", {"machine": MACHINE, "settings": settings or {}}, is_fresh=True)
        for contestant, number, rate, cpu in turns:
            timed = {"items_per_s": rate, "cpu_s_per_item": cpu, "first_s": 0.5, "p99_wait_s": 0.01, "items": 100}
            made.add("images", contestant, number, figures=timed, load=1.0)
        return made

    return make


def both(own, other, rounds=6):
    return [turn for number in range(1, rounds + 1) for turn in ((OURS, number, *own), ("Grain", number, *other))]


@pytest.mark.parametrize(
    "own, other, verdicts",
    [((1000, 1.0), (900, 1.0), ["met", "met"]), ((900, 1.2), (1000, 1.0), ["missed", "missed"])],
)
def test_a_target_is_met_or_missed_where_the_whole_interval_says_so(results, own, other, verdicts):
    lines = list(judge(results(*both(own, other)), "images"))
    assert [line.rpartition(" (")[0].rpartition(": ")[2] for line in lines] == verdicts


def test_a_target_is_undecided_where_the_interval_straddles_the_limit(results):
    noisy = [
        turn
        for number, rate in enumerate((700, 1300, 800, 1200, 900, 1100), 1)
        for turn in ((OURS, number, rate, 1.0), ("Grain", number, 1000, 1.0))
    ]
    assert ": undecided (" in next(judge(results(*noisy), "images"))


def test_the_table_shows_medians_the_fastest_first_and_reasons_last(results):
    found = results(*both((1000, 0.002), (2000, 0.001)))
    found.add("images", "Ray Data", 0, reason="needs ray")
    *_, first, second, last = make_table(found, "images")
    assert first == "| Grain | 2,000 | 2.00 [2.00, 2.00] | 1 ms | 500 ms | 10 ms |  | 6 |"
    assert second.startswith("| **stagepipe** | 1,000 |  | 2 ms |")
    assert last.startswith("| Ray Data | *needs ray* |")


def test_a_ratio_is_that_of_the_rounds_that_both_had():
    assert compare({1: 2.0, 2: 4.0, 3: 100.0}, {1: 1.0, 2: 2.0}) == estimate([2.0, 2.0])


def test_an_interrupted_run_goes_on_with_the_same_settings_only(results, tmp_path):
    results((OURS, 1, 10, 1.0))
    same, other = (
        Results(tmp_path / "r.json", {"machine": MACHINE, "settings": settings}, is_fresh=False)
        for settings in ({}, {"rounds": 9})
    )
    assert same.has("images", OURS, 1)
    assert not other.turns


def test_durations_have_three_digits_and_a_unit():
    assert [format_seconds(value) for value in (1.234, 0.0456, 7.89e-6)] == ["1.23 s", "45.6 ms", "7.89 us"]


def run_peers(*options):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip


@pytest.mark.timeout(120)
def test_the_contestants_deliver_the_samples_of_the_plain_loop(tmp_path):
    path = tmp_path / "peers.json"
    names = f"{OURS}; {REFERENCE}; Pool.imap"
    done = run_peers("--jobs", "tokens", "--only", names, "--quick", "--rounds", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    turns = json.loads(path.read_text())["turns"]
    inspected = {turn["contestant"]: turn["figures"] for turn in turns if turn["round"] == 0}
    timed = {turn["contestant"]: turn["figures"] for turn in turns if turn["round"] == 1}
    assert len(inspected) == len(timed) == 3
    assert {figures["inspected"] for figures in inspected.values()} == {192}
    assert len({figures["digest"] for figures in inspected.values()}) == 1
    for figures in timed.values():
        assert figures["items_per_s"] > 0 < figures["cpu_s_per_item"]
        assert figures["items"] >= 64
    assert "of the items/s of" in done.stdout


def test_other_samples_end_the_run(tmp_path):
    path = tmp_path / "peers.json"
    options = ("--jobs", "tokens", "--only", OURS, "--quick", "--rounds", "1", "--json", str(path))
    assert run_peers(*options).returncode == 0
    document = json.loads(path.read_text())
    kept = [turn for turn in document["turns"] if turn["contestant"] == REFERENCE]
    kept[0]["figures"]["digest"] += 1
    path.write_text(json.dumps({**document, "turns": kept}))
    done = run_peers(*options)
    assert done.returncode == 1
    assert f"{OURS} delivered other samples than the plain loop in tokens" in done.stderr


def test_an_unknown_name_is_answered_with_the_known_ones():
    done = run_peers("--jobs", "videos")
    assert done.returncode == 2
    assert "choose from images" in done.stderr


@pytest.mark.parametrize("name", ["tokens", "clips"])
def test_a_job_makes_the_same_sample_every_time(name):
    first, second = (Process(name)(5) for _ in range(2))
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert (value == second[key]).all() if key != "index" else value == second[key] == 5


def test_every_contestant_names_a_function_and_jobs_that_exist():
    for contestant in CONTESTANTS.values():
        module, _, function = contestant.run.partition(":")
        source = (ROOT / "benchmarks" / "peers" / "frameworks" / f"{module}.py").read_text()
        assert f"\ndef {function}(job: Job, workers: int)" in source
        assert set(contestant.jobs) <= JOBS.keys()


def test_the_tables_of_a_page_come_from_the_results(results, tmp_path):
    settings = {"jobs": ["images"], "rounds": 6}
    results(*both((1000, 0.002), (2000, 0.001)), settings=settings)
    page = f"# Title\n\n{BEGIN}\nearlier figures\n{END}\n\nAfter.\n"
    path = tmp_path / "r.json"
    document = json.loads(path.read_text())
    document["about"]["machine"] |= {"memory_bytes": 1 << 34, "load_average": 0.5}
    path.write_text(json.dumps(document))
    made = make_page(path, page)
    assert made.startswith("# Title\n")
    assert made.endswith(f"{END}\n\nAfter.\n")
    assert "earlier" not in made
    assert "### Images" in made
    assert "| Grain | 2,000 |" in made
    assert make_page(path, made) == made
