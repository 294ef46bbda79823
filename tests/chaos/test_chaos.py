"""Disturbed random pipelines yield what an inline run yields, and recover from a death at every crash point."""

from __future__ import annotations

import time

import pytest

from stagepipe.testing.crash_points import CRASH_POINTS
from tests.chaos.__main__ import BAD_VERDICTS
from tests.chaos.cases import accepts_key, make_case
from tests.chaos.runner import Runner
from tests.chaos.shrinking import iter_smaller_cases
from tests.support.pipelines import pipeline, stage

BUDGET_S = 18.0
RECOVERS = accepts_key("max_restarts", 1000, of_stage=False)


@pytest.fixture(scope="module")
def runner():
    with Runner() as runner:
        yield runner


@pytest.mark.timeout(120)
def test_disturbed_pipelines_yield_what_the_inline_run_yields(runner):
    deadline, equal_count = time.monotonic() + BUDGET_S, 0
    for seed in range(10_000):
        case = make_case(seed, kills=RECOVERS)
        outcome = runner.run(case)
        assert outcome["verdict"] not in BAD_VERDICTS, f"python -m tests.chaos --once --seed {seed}: {outcome}"
        equal_count += outcome["verdict"] == "equal"
        if time.monotonic() > deadline:
            break
    print(f"{equal_count} pipelines")  # noqa: T201 - shown with -s
    assert equal_count


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
@pytest.mark.skipif(not RECOVERS, reason="a crash ends the run")
@pytest.mark.parametrize("point", sorted(CRASH_POINTS))
def test_all_workers_may_die_at_any_crash_point(runner, point):
    base = FRAGMENT_CASE if point.startswith("fragment") else WHOLE_ITEM_CASE
    for passage in (1, 2, 7):
        case = {**base, "disturbances": [{"kind": "crash", "at": f"{point}:{passage}:*"}]}
        outcome = runner.run(case)
        assert outcome["verdict"] == "equal", f"{point}:{passage}:*: {outcome}"
        assert outcome.get("crashes") or passage > 1, "no worker has reached the crash point"
