"""The plan of a config: processes, segments with their windows, hops with their modes and reasons."""

from typing import Any

import pytest

from stagepipe.config import load
from stagepipe.costs import CostCurves
from stagepipe.machine import Machine
from stagepipe.plan import SINK_NAME, Plan, ProcessRole, make_plan
from tests.support.pipelines import batch, pipeline, shuffle, stage

CURVES = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))
MACHINE = Machine(cpus=4, memory_bytes=8 << 30)


def make(*stages: dict[str, Any], **keys: Any) -> Plan:
    return make_plan(load(pipeline(*stages, **keys)), MACHINE, CURVES)


def test_each_stage_that_is_not_fused_gets_a_process():
    plan = make(stage("same", fuse=True), stage("double", workers=3), stage("plus", fuse=True), batch(4), shuffle(5))
    assert [[stage.name for stage in process.stages] for process in plan.processes] == [
        ["source", "same"],
        ["double", "plus"],
        ["batch"],
        ["shuffle"],
    ]
    assert [process.workers for process in plan.processes] == [1, 3, 1, 1]
    assert [process.role for process in plan.processes] == [
        ProcessRole.SOURCE,
        ProcessRole.STAGE,
        ProcessRole.ORDER_POINT,
        ProcessRole.ORDER_POINT,
    ]
    assert [(process.input_segment, process.output_segment) for process in plan.processes] == [
        (0, 0),
        (0, 0),
        (0, 1),
        (1, 2),
    ]
    assert [(hop.source, hop.target) for hop in plan.hops] == [
        ("source", "double"),
        ("double", "batch"),
        ("batch", "shuffle"),
        ("shuffle", SINK_NAME),
    ]
    assert len(plan.segments) == 3


@pytest.mark.parametrize(
    "mode, stage_mode, expected",
    [
        ("auto", "auto", "auto"),
        ("pipe", "auto", "pipe"),
        ("auto", "shared_memory", "shared_memory"),
        ("pipe", "shared_memory", "shared_memory"),
    ],
)
def test_the_transport_of_a_stage_overrides_that_of_the_pipeline(mode, stage_mode, expected):
    plan = make(stage("same", transport=stage_mode), transport={"mode": mode})
    assert plan.hops[0].mode == expected
    assert plan.hops[0].rule.reason


def test_a_forced_pipe_carries_any_size_only_between_single_workers():
    plan = make(stage("same"), stage("double", workers=2), stage("plus"), transport={"mode": "pipe"})
    assert [hop.rule.large_in_pipe for hop in plan.hops] == [True, False, False, True]
    assert "what fits a packet" in plan.hops[1].rule.reason


def test_the_threshold_of_the_config_is_used():
    plan = make(stage("same"), transport={"threshold": "3KiB"})
    assert {hop.rule.threshold_bytes for hop in plan.hops} == {3072}
    assert "from the config" in plan.hops[0].rule.reason


@pytest.mark.parametrize("window", [1, 5, 100])
def test_the_window_of_the_config_counts_source_items(window):
    plan = make(stage("same", workers=4), batch(10), stage("double"), window=window)
    assert plan.segments[0].window == plan.segments[0].small_item_window == window
    assert plan.segments[1].window == max(1, -(-window // 10))


def test_a_window_holds_at_least_one_batch_per_worker():
    plan = make(stage("size_of_call", batch={"size": 32}, workers=2), window=4)
    assert plan.segments[0].window >= 64


def test_an_automatic_window_feeds_every_worker():
    plan = make(stage("same", workers=30), stage("double", workers=10))
    assert plan.segments[0].window >= 80
    assert plan.segments[0].small_item_window >= plan.segments[0].window


def test_memory_comes_from_the_config_or_is_a_share_of_the_machine():
    assert make(memory="1GiB").memory_bytes == 1 << 30
    assert make().memory_bytes == (8 << 30) // 4


def test_the_plan_copies_settings_of_the_config_and_the_machine():
    plan = make(stage("same"), seed=5, order="any")
    assert (plan.seed, plan.any_order, plan.cpu_count, plan.limit) == (5, True, 4, None)
    assert make_plan(load(pipeline()), MACHINE, CURVES, limit=7).limit == 7


def test_order_points_given_as_classes_are_recognised():
    from stagepipe.stages import Batch

    config = pipeline({"name": "group", "uses": Batch, "with": {"size": 4}}, stage("same"))
    plan = make_plan(load(config), MACHINE, CURVES)
    assert plan.processes[1].role is ProcessRole.ORDER_POINT


def test_the_plan_of_a_stage_has_every_key_of_its_spec():
    spec = load(pipeline(stage("double", timeout="3s", retries=2, stateful=True, mutable=True, cpus="0"), batch(4)))
    plan = make_plan(spec, MACHINE, CURVES)
    planned = [vars(stage) for process in plan.processes for stage in process.stages]
    expected = [{**vars(stage), "index": index, "cache_plan": None} for index, stage in enumerate(spec.stages, 1)]
    assert planned[1:] == expected
    source = {key: value for key, value in vars(spec.source).items() if key != "reading"}
    assert planned[0] == {**source, "index": 0, "cache_plan": None}


def test_a_users_order_point_ends_a_segment_and_is_found_by_an_attribute_of_its_class():
    pairs = stage("tests.support.order_points.Pairs")
    plan = make(stage("double", workers=2), pairs, stage("same"), window=12)
    assert [process.role for process in plan.processes[1:]] == [
        ProcessRole.STAGE,
        ProcessRole.ORDER_POINT,
        ProcessRole.STAGE,
    ]
    assert [segment.window for segment in plan.segments] == [12, 6], "a pair is two items of the source"
    hidden = make(stage("tests.support.order_points.HiddenPairs"))
    assert hidden.processes[1].role is ProcessRole.STAGE, "its source does not show it; the worker refuses it"
