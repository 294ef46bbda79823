"""Disturbed random pipelines yield what an inline run yields, and recover from a death at every crash point."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from types import SimpleNamespace

import pytest

from stagepipe import Pipeline
from stagepipe.config import load
from stagepipe.runtime.supervisor import watchdog
from stagepipe.testing.crash_points import CRASH_POINTS, worker_start_hook
from tests.chaos import disturbances
from tests.chaos.cases import make_case, make_change_case, make_kill_case
from tests.chaos.comparison import compare
from tests.chaos.runner import Runner
from tests.chaos.running import Trial, run_case
from tests.chaos.shrinking import iter_smaller_cases
from tests.chaos.totals import BAD_VERDICTS, Totals
from tests.support.lost_packets import HOOK as LOSE_PACKET
from tests.support.pipelines import pipeline, stage

BUDGET_S = 8.0
MIN_CHANGES = 20
MAX_DURATION_S = 90.0
"""On a busy machine the first pipelines may see no death: the test goes on until one has died in each way."""


def make_first_case():
    """Some 300 small items in any order, a few kills and crash points: so that no run of the test is without them."""
    case = make_kill_case(5)
    kills = [entry for entry in case["disturbances"] if entry["kind"] == "kill"]
    crashes = [entry for entry in case["disturbances"] if entry["kind"] == "crash"]
    return {**case, "disturbances": [*kills[:4], *crashes]}


@pytest.fixture(scope="module")
def runner():
    with Runner() as runner:
        yield runner


@pytest.mark.timeout(180)
def test_disturbed_pipelines_yield_the_items_of_the_inline_run(runner):
    totals, started_s = Totals(), time.monotonic()

    def is_enough() -> bool:
        has_deaths = totals["killed"] and totals["at crash points"]
        return time.monotonic() - started_s > (BUDGET_S if has_deaths else MAX_DURATION_S)

    for case in itertools.chain([make_first_case()], map(make_case, itertools.count())):
        outcome = runner.run(case)
        totals.add(case, outcome)
        assert outcome["verdict"] not in BAD_VERDICTS, f"python -m tests.chaos --case '{json.dumps(case)}': {outcome}"
        if is_enough():
            break
    print(totals)  # noqa: T201 - shown with -s
    assert totals["kills"]
    assert totals["killed"], "no killed worker was replaced"
    assert totals["at crash points"], "no worker died at a crash point"
    assert totals["restarts"] == totals["killed"] + totals["timeouts"] + totals["at crash points"]
    assert totals["items"]
    assert totals["no case"] <= totals["equal"] // 4


@pytest.mark.timeout(240)
def test_pipelines_whose_workers_come_and_go_yield_the_items_of_the_inline_run(runner):
    totals, started_s = Totals(), time.monotonic()
    for case in map(make_change_case, itertools.count(1)):
        outcome = runner.run(case)
        totals.add(case, outcome)
        assert outcome["verdict"] not in BAD_VERDICTS, f"python -m tests.chaos --case '{json.dumps(case)}': {outcome}"
        is_enough = totals["changes"] > MIN_CHANGES and totals["kills at start"] and totals["killed"]
        if time.monotonic() - started_s > (BUDGET_S if is_enough else MAX_DURATION_S):
            break
    print(totals)  # noqa: T201 - shown with -s
    assert totals["changes"] > MIN_CHANGES
    assert totals["kills at start"]
    assert totals["killed"], "no killed worker was replaced"


def test_the_first_case_is_one_of_small_items_in_any_order():
    config = make_first_case()["config"]
    assert config["order"] == "any"
    assert [entry["uses"] for entry in config["stages"]] == ["tests.chaos.stages.small"]


def test_every_random_config_is_accepted():
    for seed in range(200):
        load(make_case(seed)["config"])
        load(make_kill_case(seed)["config"])
        load(make_change_case(seed)["config"])


def test_datasets_in_chunks_are_among_the_cases_and_become_smaller():
    for make in (make_case, make_kill_case):
        cases = [make(seed) for seed in range(100)]
        (case, *_) = found = [case for case in cases if "dataset" in case["config"]["source"]["with"]]
        assert 10 <= len(found) <= 30
        counts = {smaller["config"]["source"]["with"]["with"]["count"] for smaller in iter_smaller_cases(case)}
        assert len(counts) > 1
        plan = Pipeline({**case["config"], "transport": {"mode": "auto"}}).make_plan()
        assert plan.processes[0].sends_chunks


def test_threads_and_stages_that_hang_are_among_the_cases():
    for make in (make_case, make_kill_case):
        stages = [entry for seed in range(500) for entry in make(seed)["config"]["stages"]]
        threaded = [entry for entry in stages if entry.get("concurrency", 1) > 1]
        names = {entry["uses"].rpartition(".")[2] for entry in threaded}
        assert {"number", "parts", "context_parts", "dropped", "flaky", "same_task", "slow_task"} <= names
        assert any("when" in entry for entry in threaded)
        assert any("timeout" in entry for entry in stages)


def test_a_case_does_not_count_other_processes_as_left(runner):
    pid = runner._ensure_started().pid
    assert os.getsid(pid) == pid


# ---------------------------------------------------------------------------------------------- what chaos must notice


def run(uses="same", kills=(), **keys):
    """The outcome of a small pipeline."""
    config = pipeline(stage(f"tests.chaos.stages.{uses}", name="s0", retries=9), source=200, order="source", **keys)
    return run_case(
        {"seed": 0, "config": config, "epochs": [], "resume": None, "disturbances": list(kills)}, lambda _: None
    )


def test_a_refused_config_is_a_failure():
    outcome = run(max_restart=1000)
    assert outcome["verdict"] == "refused"
    assert outcome["verdict"] in BAD_VERDICTS
    assert "did you mean `max_restarts`" in outcome["details"]


ITEMS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "received, any_order, stop, counts",
    [
        (["a", "b", "d"], False, None, (1, 0, 0)),
        (["a", "b", "b", "c", "d"], False, None, (0, 1, 0)),
        (["b", "a", "c", "d"], False, None, (0, 0, 0)),
        (["a", "b", "x", "d"], False, None, (1, 0, 1)),
        (["d", "b", "a"], True, None, (1, 0, 0)),
        (["d", "b", "b", "a"], True, None, (1, 1, 0)),
        (["d", "c", "b", "b", "a"], True, None, (0, 1, 0)),
        (["d", "c", "x", "a"], True, None, (1, 0, 1)),
        (["d", "d"], True, 2, (1, 1, 0)),
        (["d"], True, 2, (1, 0, 0)),
        (["c", "d"], False, 2, (2, 0, 2)),
    ],
)
def test_lost_doubled_and_strange_items_are_counted(received, any_order, stop, counts):
    difference = compare(received, ITEMS, any_order=any_order, stop=stop)
    assert difference is not None
    assert (difference.lost, difference.doubled, difference.strange) == counts


@pytest.mark.parametrize("stop", [None, 2])
def test_in_any_order_the_same_items_are_equal_and_in_order_they_are_not(stop):
    received = ["d", "c", "b", "a"][:stop]
    assert compare(received, ITEMS, any_order=True, stop=stop) is None
    assert compare(received, ITEMS, any_order=False, stop=stop) is not None
    assert compare(ITEMS[:stop], ITEMS, any_order=False, stop=stop) is None


def test_an_item_that_does_not_arrive_is_a_failure(monkeypatch):
    receive = Trial._iter_epoch
    monkeypatch.setattr(Trial, "_iter_epoch", lambda *arguments: itertools.islice(receive(*arguments), 1, None))
    outcome = run()
    assert (outcome["verdict"], outcome["lost"], outcome["doubled"]) == ("different", 1, 0)


def test_a_restart_after_a_stall_is_a_failure(monkeypatch):
    monkeypatch.setattr(watchdog, "_STALL_RECOVERY_AFTER_NS", 1_000_000_000)
    with worker_start_hook(LOSE_PACKET, "source/0:5"):
        outcome = run()
    assert (outcome["verdict"], outcome["stalls"]) == ("stalled", 1)
    assert "no item has moved" in outcome["details"]


def test_a_death_by_anything_but_a_kill_is_a_failure(monkeypatch):
    monkeypatch.setattr(disturbances, "signal", SimpleNamespace(SIGKILL=signal.SIGABRT))
    outcome = run("slow", kills=[{"kind": "kill", "process": "s0/0", "after": 0.3, "delay_s": 0}])
    assert (outcome["verdict"], outcome["restarts"]) == ("crashed", 1)
    assert "was killed by SIGABRT" in outcome["details"]


def test_a_seed_gives_one_case_and_every_smaller_case_differs_from_it():
    for seed in range(50):
        case = make_case(seed)
        assert case == make_case(seed)
        assert all(smaller != case for smaller in iter_smaller_cases(case))


WHOLE_ITEM_CASE = {
    "seed": 0,
    "config": {
        **pipeline(
            stage("tests.chaos.stages.image", name="s0", with_={"salt": 1}, workers=2),
            stage("tests.chaos.stages.parts", name="s1", with_={"salt": 2}),
            stage("tests.chaos.stages.listed", name="s2", with_={"salt": 3}, batch={"size": 3}),
            stage("stagepipe.stages.Batch", name="s3", with_={"size": 4}),
            stage("tests.chaos.stages.Keeping", name="s4", with_={"count": 2}),
            source=60,
        ),
        "order": "source",
        "transport": {"mode": "shared_memory"},
    },
    "epochs": [None, 0.5],
    "resume": None,
}
"""A pipeline that passes every crash point except those of fragments."""
FRAGMENT_CASE = {
    **WHOLE_ITEM_CASE,
    "config": {
        **pipeline(
            stage("tests.chaos.stages.image", name="s0", with_={"salt": 3}),
            stage("tests.chaos.stages.same", name="s1"),
            source=30,
        ),
        "order": "source",
        "transport": {"mode": "pipe"},
    },
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("point", sorted(CRASH_POINTS))
def test_all_workers_may_die_at_any_crash_point(runner, point):
    base = FRAGMENT_CASE if point.startswith("fragment") else WHOLE_ITEM_CASE
    for passage in (1, 2, 7):
        case = {**base, "disturbances": [{"kind": "crash", "at": f"{point}:{passage}:*"}]}
        outcome = runner.run(case)
        assert outcome["verdict"] == "equal", f"{point}:{passage}:*: {outcome}"
        assert outcome["at crash points"] or passage > 1, "no worker has reached the crash point"
