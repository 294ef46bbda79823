"""Advice from costs: it suggests the change with the best predicted rate, and nothing if none gains a tenth."""

from dataclasses import replace

import pytest

from stagepipe.forecast import describe_bottleneck, make_layout
from stagepipe.forecast.advice import MIN_GAIN_RATIO, advise, estimate_fusions
from stagepipe.forecast.cost_values import HopCost
from stagepipe.forecast.layout import MACHINE_LIMIT, FusedGroup, predict_throughput
from stagepipe.report import CONSUMER
from tests.unit.forecast.chains import MB, US, batch, budget, chain, ones, process


def overrides(costs, workers=None, **machine):
    return [step.overrides for step in advise(costs, workers or ones(costs), budget(**machine))]


# ---------------------------------------------------------------------- throughput


def test_the_slowest_process_limits_the_rate():
    costs = chain(process("source", 100), process("decode", 990), batch())
    current = predict_throughput(make_layout((1, 1, 1)), costs, 8)
    assert current.limited_by == "decode"
    assert current.items_per_s == pytest.approx(1000)
    assert predict_throughput(make_layout((1, 4, 1)), costs, 8).items_per_s == pytest.approx(4000)


def test_a_full_machine_limits_the_rate_of_any_number_of_workers():
    costs = chain(process("source", 100), process("decode", 1000), batch(), hop_us=0)
    full = predict_throughput(make_layout((1, 8, 1)), costs, 1)
    assert full.limited_by == MACHINE_LIMIT
    assert full.items_per_s == pytest.approx(0.9e9 / 1_114_000, rel=1e-3)  # 4 us for sharing the items


def test_the_consumer_can_be_the_limit():
    costs = chain(process("source", 10), batch(10), hop_us=100)
    costs = replace(costs, hops=(costs.hops[0], HopCost(10 * US, 900 * US)))
    assert predict_throughput(make_layout((1, 1)), costs, 8).limited_by == CONSUMER
    assert not advise(costs, (1, 1), budget())
    assert "the consumer is the bottleneck" in describe_bottleneck(costs, make_layout((1, 1)), budget())


def test_the_work_of_fused_stages_adds_up_without_their_hop():
    costs = chain(process("source", 100), process("decode", 200), process("crop", 300), hop_us=50)
    apart = predict_throughput(make_layout((1, 1, 1)), costs, 8)
    fused = predict_throughput((FusedGroup(0, 0), FusedGroup(1, 2)), costs, 8)
    assert apart.items_per_s == pytest.approx(1e6 / 350)
    assert fused.items_per_s == pytest.approx(1e6 / 550)
    assert apart.cpu_ns - fused.cpu_ns == pytest.approx(50 * US)
    assert (apart.memory_bytes, fused.memory_bytes) == (150 * MB, 100 * MB)


def test_fused_stages_keep_every_call_but_only_one_loop():
    costs = chain(*(process(name, 100, call_ns=8000, loop_ns=13_000, cpu_us=121) for name in "abc"), hop_us=0)
    apart, fused = (predict_throughput(layout, costs, 8) for layout in (make_layout((1, 1, 1)), (FusedGroup(0, 2),)))
    assert apart.items_per_s == pytest.approx(1e6 / 121)
    assert fused.items_per_s == pytest.approx(1e6 / 337)
    assert apart.cpu_ns - fused.cpu_ns == pytest.approx(26 * US)


# ---------------------------------------------------------------------- workers


def test_the_bottleneck_gets_workers_until_it_is_level_with_the_next():
    costs = chain(process("source", 200), process("decode", 1000), process("crop", 100), batch())
    [step] = advise(costs, ones(costs), budget())
    assert step.overrides == ("stages.decode.workers=5",)
    assert step.items_per_s_after / step.items_per_s_before > 4
    assert "decode 5 workers instead of 1" in step.text


def test_two_equally_slow_stages_get_workers_together():
    costs = chain(process("source", 100), process("decode", 1000), process("crop", 1000), batch(), hop_us=0)
    [step] = advise(costs, ones(costs), budget(cpus=4))
    assert step.overrides == ("stages.decode.workers=2", "stages.crop.workers=2")


def test_a_full_machine_gets_no_more_workers():
    costs = chain(process("source", 300), process("decode", 1000), process("crop", 900), batch(), hop_us=0)
    assert overrides(costs, cpus=2) == []
    assert describe_bottleneck(costs, make_layout(ones(costs)), budget(cpus=2)).startswith("the machine is full")


def test_cpus_limit_the_workers():
    costs = chain(process("source", 10), process("decode", 1000), batch(), hop_us=0)
    assert overrides(costs, cpus=4) == [("stages.decode.workers=4",)]


def test_memory_limits_the_workers():
    costs = chain(process("source", 10), process("decode", 1000, memory_bytes=2000 * MB), batch(), hop_us=0)
    [[override]] = overrides(costs, cpus=8, memory_mb=10_000, arena_mb=2500)
    assert override == "stages.decode.workers=3"
    assert overrides(costs, cpus=8, memory_mb=4000) == []


def test_a_stage_that_waits_gets_more_workers_than_cpus():
    costs = chain(process("source", 10), process("fetch", 50_000, cpu_us=100), batch(), hop_us=0)
    assert overrides(costs, cpus=2) == [("stages.fetch.workers=32",)]


def test_a_stage_bound_to_cpus_gets_at_most_one_worker_per_cpu():
    costs = chain(process("source", 10), process("decode", 1000, max_workers=2), batch(), hop_us=0)
    assert overrides(costs, cpus=8) == [("stages.decode.workers=2",)]


def test_the_source_and_order_points_have_one_worker():
    costs = chain(process("source", 1000), process("decode", 100), batch(900), hop_us=0)
    assert overrides(costs, cpus=8) == []
    assert "source is the bottleneck" in describe_bottleneck(costs, make_layout(ones(costs)), budget())
    assert "only one worker" in describe_bottleneck(costs, make_layout(ones(costs)), budget())


def test_no_stage_loses_workers():
    costs = chain(process("source", 100), process("decode", 200), batch())
    assert overrides(costs, (1, 6, 1)) == []


# ---------------------------------------------------------------------- fusing


def test_on_a_full_machine_an_expensive_hop_is_fused():
    costs = chain(process("source", 20), process("split", 20), process("count", 20), batch(20), hop_us=60)
    [step, *_] = advise(costs, ones(costs), budget(cpus=1))
    assert "stages.split.fuse=true" in step.overrides
    assert "stages.count.fuse=true" in step.overrides
    assert step.items_per_s_after > MIN_GAIN_RATIO * step.items_per_s_before
    assert "Fuse split and count into source" in step.text
    assert "the hops between them cost 120 µs" in step.text


def test_with_free_cpus_two_busy_stages_are_not_fused():
    costs = chain(process("source", 100), process("decode", 100), process("crop", 100), batch(), hop_us=30)
    assert not [override for step in overrides(costs, cpus=8) for override in step if "fuse" in override]


def test_a_hop_dearer_than_its_stage_is_fused_even_with_free_cpus():
    one_cpu = {"max_workers": 1}
    costs = chain(process("source", 20), process("decode", 100, **one_cpu), process("tag", 5, **one_cpu), batch(5))
    costs = replace(costs, hops=(HopCost(5000, 5000), HopCost(100_000, 100_000), HopCost(5000, 5000), HopCost(0, 0)))
    [[override]] = overrides(costs, cpus=8)
    assert override == "stages.tag.fuse=true"


@pytest.mark.parametrize("reason", ["it restores the order", "it takes lists (`batch`)", "it sets `env`"])
def test_a_stage_that_cannot_be_fused_is_not_fused(reason):
    costs = chain(process("source", 20), process("split", 20, unfusable_reason=reason), batch(20), hop_us=100)
    assert not [override for step in overrides(costs, cpus=1) for override in step if "fuse" in override]


def test_keys_that_a_fused_stage_cannot_have_are_removed():
    costs = chain(process("source", 20), process("split", 20, has_own_threads=True), batch(5), hop_us=100)
    [step] = overrides(costs, (1, 2, 1), cpus=1)
    assert step == ("stages.split.fuse=true", "stages.split.workers=null", "stages.split.threads=null")


def test_each_step_gains_a_tenth_on_top_of_those_before_it():
    costs = chain(process("source", 5), process("decode", 600), process("crop", 300), process("tag", 1), batch(5))
    for cpus in (1, 2, 3, 4, 8, 64):
        items_per_s = 0.0
        for step in advise(costs, ones(costs), budget(cpus=cpus)):
            assert step.items_per_s_after >= MIN_GAIN_RATIO * step.items_per_s_before
            assert step.items_per_s_before == pytest.approx(items_per_s) or not items_per_s
            assert step.overrides
            assert step.text
            items_per_s = step.items_per_s_after


def test_each_pair_of_neighbours_is_estimated_separately():
    costs = chain(process("source", 20), process("split", 20), process("count", 20), batch(20), hop_us=60)
    split, count, gather = estimate_fusions(costs, ones(costs), budget(cpus=1))
    assert (split.stage, split.into, split.saved_ns) == ("split", "source", 60 * US)
    current = predict_throughput(make_layout(ones(costs)), costs, 1).items_per_s
    assert split.items_per_s == pytest.approx(count.items_per_s)
    assert split.items_per_s > current
    assert (gather.unfusable_reason, gather.items_per_s) == ("it restores the order", 0.0)
