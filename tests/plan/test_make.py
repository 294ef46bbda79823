"""A config becomes a plan: processes, stretches with their windows, hops with their modes and reasons."""

from typing import Any

import pytest

from stagepipe.config import load
from stagepipe.plan import SINK, Curves, Machine, Plan, Role, make_plan
from tests.zoo.pipelines import batch, pipeline, shuffle, stage

CURVES = Curves.simple((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))
MACHINE = Machine(cpus=4, memory_bytes=8 << 30)


def planned(*stages: dict[str, Any], **keys: Any) -> Plan:
    return make_plan(load(pipeline(*stages, **keys)), MACHINE, CURVES)


def test_a_process_for_each_stage_that_is_not_fused():
    plan = planned(stage("same", fuse=True), stage("double", workers=3), stage("plus", fuse=True), batch(4), shuffle(5))
    assert [[each.name for each in process.stages] for process in plan.processes] == [
        ["source", "same"],
        ["double", "plus"],
        ["batch"],
        ["shuffle"],
    ]
    assert [process.workers for process in plan.processes] == [1, 3, 1, 1]
    assert [process.role for process in plan.processes] == [Role.SOURCE, Role.STAGE, Role.ORDER_POINT, Role.ORDER_POINT]
    assert [(process.reads, process.feeds) for process in plan.processes] == [(0, 0), (0, 0), (0, 1), (1, 2)]
    assert [(hop.source, hop.target) for hop in plan.hops] == [
        ("source", "double"),
        ("double", "batch"),
        ("batch", "shuffle"),
        ("shuffle", SINK),
    ]
    assert len(plan.stretches) == 3


@pytest.mark.parametrize(
    "mode, own, expected",
    [
        ("auto", "auto", "auto"),
        ("pipe", "auto", "pipe"),
        ("auto", "shared_memory", "shared_memory"),
        ("pipe", "shared_memory", "shared_memory"),
    ],
)
def test_a_stages_own_transport_goes_before_the_pipelines(mode, own, expected):
    plan = planned(stage("same", transport=own), transport={"mode": mode})
    assert plan.hops[0].mode == expected
    assert plan.hops[0].reason


def test_a_forced_pipe_carries_any_size_only_between_single_workers():
    plan = planned(stage("same"), stage("double", workers=2), stage("plus"), transport={"mode": "pipe"})
    assert [hop.large_in_pipe for hop in plan.hops] == [True, False, False, True]
    assert "what fits a packet" in plan.hops[1].reason


def test_a_threshold_of_the_config_is_obeyed():
    plan = planned(stage("same"), transport={"threshold": "3KiB"})
    assert {hop.threshold_bytes for hop in plan.hops} == {3072}
    assert "from the config" in plan.hops[0].reason


@pytest.mark.parametrize("window", [1, 5, 100])
def test_the_window_of_the_config_is_counted_at_the_source(window):
    plan = planned(stage("same", workers=4), batch(10), stage("double"), window=window)
    assert plan.stretches[0].window == plan.stretches[0].roomy_window == window
    assert plan.stretches[1].window == max(1, -(-window // 10))


def test_a_window_is_never_less_than_the_batches_of_a_stages_own_need():
    plan = planned(stage("size_of_call", batch={"size": 32}, workers=2), window=4)
    assert plan.stretches[0].window >= 64


def test_an_automatic_window_feeds_every_worker():
    plan = planned(stage("same", workers=30), stage("double", workers=10))
    assert plan.stretches[0].window >= 80
    assert plan.stretches[0].roomy_window >= plan.stretches[0].window


def test_memory_is_what_the_config_says_or_a_share_of_the_machine():
    assert planned(memory="1GiB").memory_bytes == 1 << 30
    assert planned().memory_bytes == (8 << 30) // 4


def test_what_the_plan_takes_over_from_the_config_and_the_machine():
    plan = planned(stage("same"), seed=5, order="any")
    assert (plan.seed, plan.any_order, plan.cpus, plan.limit) == (5, True, 4, None)
    assert make_plan(load(pipeline()), MACHINE, CURVES, limit=7).limit == 7


def test_order_points_given_as_classes_are_known():
    from stagepipe.stages import Batch

    config = pipeline({"name": "group", "uses": Batch, "with": {"size": 4}}, stage("same"))
    plan = make_plan(load(config), MACHINE, CURVES)
    assert plan.processes[1].role is Role.ORDER_POINT
