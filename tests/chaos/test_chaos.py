"""Random pipelines give what the plain run gives, whatever is done to their workers; every crash point is passed."""

from __future__ import annotations

import time

import pytest

from stagepipe.runtime.crashing import POINTS
from tests.chaos.__main__ import BAD
from tests.chaos.cases import make, understood
from tests.chaos.runner import Runner
from tests.chaos.shrinking import smaller
from tests.zoo.pipelines import pipeline, stage

BUDGET_S = 18.0
RECOVERS = understood("max_restarts", 1000, of_stage=False)


@pytest.fixture(scope="module")
def runner():
    with Runner() as made:
        yield made


@pytest.mark.timeout(120)
def test_disturbed_pipelines_give_what_the_plain_run_gives(runner):
    deadline, tried = time.monotonic() + BUDGET_S, 0
    for seed in range(10_000):
        case = make(seed, kills=RECOVERS)
        outcome = runner.run(case)
        assert outcome["verdict"] not in BAD, f"python -m tests.chaos --once --seed {seed}: {outcome}"
        tried += outcome["verdict"] == "equal"
        if time.monotonic() > deadline:
            break
    print(f"{tried} pipelines")  # noqa: T201 - shown with -s
    assert tried


def test_a_case_is_made_of_its_seed_alone_and_every_smaller_one_is_a_case():
    for seed in range(50):
        case = make(seed)
        assert case == make(seed)
        assert all(each != case for each in smaller(case))


WHOLE = {
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
"""A pipeline that passes every point but those of fragments."""
IN_FRAGMENTS = {
    **WHOLE,
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
@pytest.mark.parametrize("point", sorted(POINTS))
def test_all_workers_may_die_at_any_point_of_the_protocol(runner, point):
    whole = IN_FRAGMENTS if point.startswith("fragment") else WHOLE
    for passage in (1, 2, 7):
        case = {**whole, "disturbances": [{"kind": "crash", "at": f"{point}:{passage}:*"}]}
        outcome = runner.run(case)
        assert outcome["verdict"] == "equal", f"{point}:{passage}:*: {outcome}"
        assert outcome.get("crashes") or passage > 1, "nobody has come by"
