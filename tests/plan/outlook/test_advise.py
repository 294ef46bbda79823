"""Advice from costs: it names the edit that the foretold pace grows by, and is silent where none brings a tenth."""

from dataclasses import replace

import pytest

from stagepipe.plan.make import Machine
from stagepipe.plan.outlook.advise import GAIN, Room, advise, choose_workers, each_fusion, why
from stagepipe.plan.outlook.costs import Costs, HopCost, ProcessCost
from stagepipe.plan.outlook.pace import MACHINE, Group, layout_of, pace
from stagepipe.report.load import CONSUMER

MB = 10**6
US = 1000


def process(name, run_us, *, cpu_us=None, **more):
    """A process that works `run_us` an item; a thread of CPU time unless said."""
    values = {"loop_ns": 0.0, "call_ns": 0.0, "memory_bytes": 50 * MB, **more}
    cpu_ns = (run_us if cpu_us is None else cpu_us) * US
    return ProcessCost(name=name, last=name, run_ns=run_us * US, cpu_ns=cpu_ns, **values)


def chain(*processes, hop_us=10):
    """These processes, the first the source. Each hop costs `hop_us`, by halves, which also is CPU time of its ends."""
    half = hop_us * US / 2
    first, *rest = processes
    spread = [replace(first, alone=True, unfusable="it is the source", cpu_ns=first.cpu_ns + half)]
    spread += [replace(each, cpu_ns=each.cpu_ns + 2 * half) for each in rest]
    return Costs(tuple(spread), (HopCost(half, half),) * len(spread))


def batch(run_us=10):
    return process("batch", run_us, alone=True, unfusable="order is restored there")


def room(cpus=8, memory_mb=16_000, arena_mb=1000):
    return Room(Machine(cpus, memory_mb * MB), arena_mb * MB)


def ones(costs):
    return (1,) * len(costs.processes)


def edits(costs, workers=None, **machine):
    return [step.edits for step in advise(costs, workers or ones(costs), room(**machine))]


# ---------------------------------------------------------------------- the pace


def test_the_slowest_process_sets_the_pace():
    costs = chain(process("source", 100), process("decode", 990), batch())
    now = pace(layout_of((1, 1, 1)), costs, Machine(8, 0))
    assert now.limited_by == "decode"
    assert now.items_per_s == pytest.approx(1000)
    assert now.use[1] == 1
    assert pace(layout_of((1, 4, 1)), costs, Machine(8, 0)).items_per_s == pytest.approx(4000)


def test_a_full_machine_sets_the_pace_however_many_workers_there_are():
    costs = chain(process("source", 100), process("decode", 1000), batch(), hop_us=0)
    full = pace(layout_of((1, 8, 1)), costs, Machine(1, 0))
    assert full.limited_by == MACHINE
    assert full.items_per_s == pytest.approx(0.9e9 / 1_110_000, rel=1e-3)


def test_the_one_who_takes_the_items_can_be_the_limit():
    costs = chain(process("source", 10), batch(10), hop_us=100)
    costs = replace(costs, hops=(costs.hops[0], HopCost(10 * US, 900 * US)))
    assert pace(layout_of((1, 1)), costs, Machine(8, 0)).limited_by == CONSUMER
    assert not advise(costs, (1, 1), room())
    assert "whoever takes the items" in why(costs, (1, 1), room())


def test_what_shares_a_process_adds_up_without_the_hop_between():
    costs = chain(process("source", 100), process("decode", 200), process("crop", 300), hop_us=50)
    apart = pace(layout_of((1, 1, 1)), costs, Machine(8, 0))
    fused = pace((Group(0, 0), Group(1, 2)), costs, Machine(8, 0))
    assert apart.items_per_s == pytest.approx(1e6 / 350)
    assert fused.items_per_s == pytest.approx(1e6 / 550)
    assert apart.cpu_ns - fused.cpu_ns == pytest.approx(50 * US)
    assert (apart.memory_bytes, fused.memory_bytes) == (150 * MB, 100 * MB)


def test_of_what_shares_a_process_one_loop_is_left_and_every_call():
    costs = chain(*(process(name, 100, call_ns=8000, loop_ns=13_000, cpu_us=121) for name in "abc"), hop_us=0)
    apart, fused = (pace(layout, costs, Machine(8, 0)) for layout in (layout_of((1, 1, 1)), (Group(0, 2),)))
    assert apart.items_per_s == pytest.approx(1e6 / 121)
    assert fused.items_per_s == pytest.approx(1e6 / 337)
    assert apart.cpu_ns - fused.cpu_ns == pytest.approx(26 * US)


# ---------------------------------------------------------------------- workers


def test_the_limit_gets_as_many_workers_as_bring_it_level():
    costs = chain(process("source", 200), process("decode", 1000), process("crop", 100), batch())
    [step] = advise(costs, ones(costs), room())
    assert step.edits == ("stages.decode.workers=5",)
    assert step.after_per_s / step.before_per_s > 4
    assert "decode 5 workers instead of 1" in step.words


def test_two_stages_as_slow_as_each_other_get_workers_together():
    costs = chain(process("source", 100), process("decode", 1000), process("crop", 1000), batch(), hop_us=0)
    [step] = advise(costs, ones(costs), room(cpus=4))
    assert step.edits == ("stages.decode.workers=2", "stages.crop.workers=2")


def test_a_full_machine_gets_no_more_workers():
    costs = chain(process("source", 300), process("decode", 1000), process("crop", 900), batch(), hop_us=0)
    assert edits(costs, cpus=2) == []
    assert why(costs, ones(costs), room(cpus=2)).startswith("the machine is full")


def test_workers_stop_where_the_processors_do():
    costs = chain(process("source", 10), process("decode", 1000), batch(), hop_us=0)
    assert edits(costs, cpus=4) == [("stages.decode.workers=4",)]


def test_workers_stop_where_the_memory_does():
    costs = chain(process("source", 10), process("decode", 1000, memory_bytes=2000 * MB), batch(), hop_us=0)
    [[edit]] = edits(costs, cpus=8, memory_mb=10_000, arena_mb=2500)
    assert edit == "stages.decode.workers=3"
    assert edits(costs, cpus=8, memory_mb=4000) == []


def test_a_stage_that_waits_gets_more_workers_than_there_are_processors():
    costs = chain(process("source", 10), process("fetch", 50_000, cpu_us=100), batch(), hop_us=0)
    assert edits(costs, cpus=2) == [("stages.fetch.workers=8",)]


def test_a_stage_that_is_bound_to_processors_gets_no_more_workers_than_these():
    costs = chain(process("source", 10), process("decode", 1000, most_workers=2), batch(), hop_us=0)
    assert edits(costs, cpus=8) == [("stages.decode.workers=2",)]


def test_the_source_and_order_points_can_have_one_worker_only():
    costs = chain(process("source", 1000), process("decode", 100), batch(900), hop_us=0)
    assert edits(costs, cpus=8) == []
    assert "source is the limit" in why(costs, ones(costs), room())
    assert "one worker only" in why(costs, ones(costs), room())


def test_nobody_loses_workers():
    costs = chain(process("source", 100), process("decode", 200), batch())
    assert edits(costs, (1, 6, 1)) == []


# ---------------------------------------------------------------------- fusing


def test_on_a_full_machine_a_hop_dearer_than_the_work_is_worth_saving():
    costs = chain(process("source", 20), process("split", 20), process("count", 20), batch(20), hop_us=60)
    [step, *_] = advise(costs, ones(costs), room(cpus=1))
    assert "stages.split.fuse=true" in step.edits
    assert "stages.count.fuse=true" in step.edits
    assert step.after_per_s > GAIN * step.before_per_s
    assert "Run split and count in the process of source" in step.words
    assert "the hops between them cost 120 us" in step.words


def test_where_processors_are_free_fusing_two_that_are_both_at_work_is_not_said():
    costs = chain(process("source", 100), process("decode", 100), process("crop", 100), batch(), hop_us=30)
    assert not [edit for step in edits(costs, cpus=8) for edit in step if "fuse" in edit]


def test_a_hop_that_outweighs_the_stage_behind_it_is_fused_though_processors_are_free():
    bound = {"most_workers": 1}
    costs = chain(process("source", 20), process("decode", 100, **bound), process("tag", 5, **bound), batch(5))
    costs = replace(costs, hops=(HopCost(5000, 5000), HopCost(100_000, 100_000), HopCost(5000, 5000), HopCost(0, 0)))
    [[edit]] = edits(costs, cpus=8)
    assert edit == "stages.tag.fuse=true"


@pytest.mark.parametrize(
    "why_not", ["order is restored there", "it is called with lists", "it has an `env` of its own"]
)
def test_what_cannot_be_fused_is_not(why_not):
    costs = chain(process("source", 20), process("split", 20, unfusable=why_not), batch(20), hop_us=100)
    assert not [edit for step in edits(costs, cpus=1) for edit in step if "fuse" in edit]


def test_keys_that_a_fused_stage_cannot_have_are_taken_away():
    costs = chain(process("source", 20), process("split", 20, own_threads=True), batch(5), hop_us=100)
    [step] = edits(costs, (1, 2, 1), cpus=1)
    assert step == ("stages.split.fuse=true", "stages.split.workers=null", "stages.split.threads=null")


def test_each_step_brings_a_tenth_on_top_of_those_before_it():
    costs = chain(process("source", 5), process("decode", 600), process("crop", 300), process("tag", 1), batch(5))
    for cpus in (1, 2, 3, 4, 8, 64):
        at = 0.0
        for step in advise(costs, ones(costs), room(cpus=cpus)):
            assert step.after_per_s >= GAIN * step.before_per_s
            assert step.before_per_s == pytest.approx(at) or not at
            assert step.edits
            assert step.words
            at = step.after_per_s


def test_each_pair_of_neighbours_is_looked_at_alone():
    costs = chain(process("source", 20), process("split", 20), process("count", 20), batch(20), hop_us=60)
    split, count, gather = each_fusion(costs, ones(costs), room(cpus=1))
    assert (split.name, split.into, split.saved_ns) == ("split", "source", 60 * US)
    now = pace(layout_of(ones(costs)), costs, Machine(1, 0)).items_per_s
    assert split.per_s == pytest.approx(count.per_s)
    assert split.per_s > now
    assert (gather.why_not, gather.per_s) == ("order is restored there", 0.0)


# ---------------------------------------------------------------------- workers: auto


def test_auto_follows_the_same_advice():
    costs = chain(process("source", 200), process("decode", 1000), process("crop", 100), batch())
    assert choose_workers(costs, ones(costs), {1, 2}, room()) == (1, 5, 1, 1)


def test_auto_chooses_for_those_alone_who_ask():
    costs = chain(process("source", 100), process("decode", 1000), process("crop", 1000), batch(), hop_us=0)
    assert choose_workers(costs, (1, 1, 3, 1), {1}, room()) == (1, 3, 3, 1)
    assert choose_workers(costs, (1, 1, 1, 1), {1}, room()) == (1, 1, 1, 1), "crop, which does not ask, is the limit"


def test_auto_is_one_where_the_machine_is_full_or_memory_lacks():
    costs = chain(process("source", 300), process("decode", 1000), process("crop", 900), batch(), hop_us=0)
    assert choose_workers(costs, ones(costs), {1, 2}, room(cpus=2)) == (1, 1, 1, 1)
    assert choose_workers(costs, ones(costs), {1, 2}, room(cpus=64, memory_mb=1100)) == (1, 1, 1, 1)
