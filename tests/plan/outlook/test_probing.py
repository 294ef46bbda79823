"""A probe's plan: one worker a stage, few items, and one under way, so that each stage is measured alone."""

import pytest

from stagepipe.config import load
from stagepipe.plan import Curves, Machine, make_plan
from stagepipe.plan.model import Plan
from stagepipe.plan.outlook.probing import probe_plan
from tests.zoo.pipelines import batch, pipeline, shuffle, stage

CURVES = Curves.simple((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))


def probed(*stages: dict, limit: int | None = None, **keys: object) -> Plan:
    return probe_plan(make_plan(load(pipeline(*stages, **keys)), Machine(4, 8 << 30), CURVES, limit=limit))


def test_one_worker_a_stage_and_one_item_under_way():
    plan = probed(stage("double", workers=3), batch(4), stage("same", workers=2), window=50)
    assert [process.workers for process in plan.processes] == [1, 1, 1, 1]
    assert [(stretch.window, stretch.roomy_window) for stretch in plan.stretches] == [(1, 1), (1, 1)]
    assert plan.probe


def test_a_stage_that_is_called_with_lists_gets_whole_ones():
    plan = probed(stage("halves_of_all", batch={"size": 8}), batch(4), stage("same"))
    assert [stretch.window for stretch in plan.stretches] == [16, 1]


@pytest.mark.parametrize(
    "stages, items",
    [
        ((stage("same"),), 48),
        ((batch(64),), 192),
        ((batch(16), batch(4)), 192),
        ((shuffle(1000),), 48),
        ((batch(100_000),), 2048),
    ],
    ids=["none", "batch", "nested", "shuffle", "huge"],
)
def test_as_many_items_as_give_a_few_groups_within_bounds(stages, items):
    assert probed(*stages).limit == items


def test_a_limit_of_the_run_holds():
    assert probed(batch(64), limit=10).limit == 10
