"""A probe's plan: one worker per stage, few items, and one in flight, so that each stage is measured alone."""

from dataclasses import replace

import pytest

from stagepipe.config import load
from stagepipe.costs import CostCurves
from stagepipe.machine import Machine
from stagepipe.plan import Plan, lower_sinks, make_plan, make_probe_plan
from tests.support.pipelines import batch, pipeline, shuffle, stage

CURVES = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))


def probed(*stages: dict, limit: int | None = None, **keys: object) -> Plan:
    return make_probe_plan(make_plan(load(pipeline(*stages, **keys)), Machine(4, 8 << 30), CURVES, limit=limit))


def test_one_worker_per_stage_and_one_item_in_flight():
    plan = probed(stage("double", workers=3), batch(4), stage("same", workers=2), window=50)
    assert [process.workers for process in plan.processes] == [1, 1, 1, 1]
    assert [(segment.window, segment.small_item_window) for segment in plan.segments] == [(1, 1), (1, 1)]
    assert plan.is_probe


def test_the_workers_of_a_probe_do_not_move():
    spec = load(pipeline(stage("double", workers="2-8"), source=3))
    moving = replace(spec, stages=(replace(spec.stages[0], workers=2),))
    plan = make_plan(moving, Machine(4, 8 << 30), CURVES)
    assert plan.processes[1].slot_count == 8
    assert make_probe_plan(plan).processes[1].slot_count == 1


def test_a_stage_with_batch_gets_full_batches():
    plan = probed(stage("halves_of_all", batch={"size": 8}), batch(4), stage("same"))
    assert [segment.window for segment in plan.segments] == [16, 1]


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
def test_the_probe_takes_enough_items_for_a_few_groups_within_bounds(stages, items):
    assert probed(*stages).limit == items


def test_the_limit_of_the_run_applies():
    assert probed(batch(64), limit=10).limit == 10


@pytest.mark.parametrize("stages, part_items, items", [((stage("same"),), 8, 48), ((batch(256),), 2, 1536)])
def test_sinks_write_small_parts_to_a_folder_of_the_probe(stages, part_items, items, tmp_path):
    sink = {"uses": "stagepipe.sinks.jsonl", "workers": 3, "with": {"path": "out"}}
    plan = make_plan(lower_sinks(load(pipeline(*stages, sink=sink))), Machine(4, 8 << 30), CURVES)
    probe = make_probe_plan(plan, tmp_path)
    parts, writer = probe.processes[2:]
    assert parts.first_stage.target.arguments["max_items"] == part_items
    assert writer.first_stage.target.arguments == {
        "sink": {"uses": "stagepipe.sinks.jsonl", "with": {"path": "out"}},
        "folder": str(tmp_path),
        "multiple": 1,
    }
    assert (writer.workers, probe.limit) == (1, items)


@pytest.mark.parametrize(
    "keys, part_bytes, limit",
    [({}, {}, 11), ({"memory": "256MB"}, {}, 10), ({"memory": "24MB"}, {}, 1), ({}, {"part_bytes": "10MB"}, 19)],
)
def test_a_sink_has_no_more_workers_than_memory_for_their_parts(keys, part_bytes, limit):
    sink = {"uses": "stagepipe.sinks.jsonl", "workers": "auto", "with": {"path": "out", **part_bytes}}
    plan = make_plan(lower_sinks(load(pipeline(sink=sink, **keys))), Machine(4, 1 << 30), CURVES)
    assert plan.max_writers == limit
