"""From a probe's record to costs: the first item, waits for a CPU and waking up are not what an item costs."""

from dataclasses import replace

import pytest

from stagepipe.config import load
from stagepipe.plan import Curves, Machine, make_plan
from stagepipe.plan.outlook.costs import costs_of, unfusable
from stagepipe.plan.outlook.glimpse import Glimpse, ItemSeen
from stagepipe.report import HopRecord, RunRecord, StageRecord
from stagepipe.timing import Histogram
from tests.zoo.pipelines import batch, pipeline, stage

US = 1000
ITEMS = 96
CURVES = Curves.simple((64, 1 << 20), (5_000, 2_000_000), (9_000, 60_000))
SEEN = (ItemSeen((), 100),) * 8


def plan(*stages, **keys):
    return make_plan(load(pipeline(*stages, **keys)), Machine(4, 8 << 30), CURVES)


def stage_record(name, run_us, *, items=ITEMS, first_us=None, cpu_us=0, **more):
    run = Histogram.of([(first_us or run_us) * US] + [run_us * US] * (items - 1))
    busy_ns = run.sum_ns + more.pop("besides_us", 0) * US
    waits = {"wall_ns": 10**9, "starting_ns": 0, "starved_ns": 0, "blocked_ns": 0}
    return StageRecord(name, 1, items, busy_ns=busy_ns, run=run, cpu_ns=cpu_us * US * items, **waits, **more)


def hop_record(source, target, messages=ITEMS):
    phases = {"encode_ns": 4000, "decode_ns": 2000, "copy_ns": 0, "send_ns": 900_000, "receive_ns": 900_000}
    histograms = {name: Histogram.of([ns] * messages) for name, ns in phases.items()}
    return HopRecord(source, target, "auto", 3500, "why", {"pipe": messages}, {}, Histogram(), histograms)


def record(*stages, hops):
    counts = {"items_in": ITEMS, "items_out": ITEMS, "samples_out": ITEMS, "items_skipped": 0, "wall_ns": 10**9}
    times = {"first_item_ns": 0, "source_end_ns": 0, "delivered": (), "consumer_wait_ns": 0, "consumer_busy_ns": 0}
    rest = {"timing_ns_per_hop": 0, "timing_how": "", "host": {}, "calibration": {}}
    return RunRecord("p", "", "finished", None, **counts, **times, stages=stages, hops=hops, **rest)


def glimpse(cpu_us=0, delay_us=0):
    """What a process tells that takes so much for each item, its first included."""
    numbers = range(1, len(SEEN) + 1)
    cpu, delay = (tuple(each * US * number for number in numbers) for each in (cpu_us, delay_us))
    return Glimpse(SEEN, cpu, delay, cpu_us * US * ITEMS, delay_us * US * ITEMS)


def one(run_us, *, cpu_us, delay_us=0, first_us=None):
    """The cost of a stage between a source and the sink."""
    stages = (stage_record("source", 10), stage_record("double", run_us, first_us=first_us, cpu_us=cpu_us))
    probed = record(*stages, hops=(hop_record("source", "double"), hop_record("double", "sink")))
    return costs_of(plan(stage("double")), probed, {"source": glimpse(), "double": glimpse(cpu_us, delay_us)})


def test_the_first_item_which_loads_what_is_loaded_late_does_not_count():
    assert one(1000, cpu_us=1000, first_us=900_000).processes[1].run_ns == 1000 * US


def test_waits_for_a_cpu_that_others_had_are_taken_off():
    cost = one(4000, cpu_us=2000, delay_us=2000).processes[1]
    assert cost.run_ns == pytest.approx(2000 * US, rel=0.02)
    assert cost.undisturbed == pytest.approx(0.5, rel=0.02)


def test_more_waits_than_that_were_outside_of_the_stage():
    assert one(4000, cpu_us=2000, delay_us=9000).processes[1].run_ns == pytest.approx(2000 * US, rel=0.02)


def test_a_stage_that_waits_by_itself_keeps_its_time():
    cost = one(20_000, cpu_us=100, delay_us=50).processes[1]
    assert cost.run_ns == pytest.approx(20_000 * US, rel=0.01)
    assert cost.cpu_ns == pytest.approx(100 * US)


def test_waking_up_is_no_cpu_time_of_a_run_but_threads_are():
    assert one(1000, cpu_us=1250).processes[1].cpu_ns < 1060 * US
    assert one(1000, cpu_us=4000).processes[1].cpu_ns == pytest.approx(4000 * US)


def test_a_hop_is_pickling_as_measured_and_carrying_as_foretold():
    hop = one(1000, cpu_us=1000).hops[0]
    assert 6 * US < hop.ns < 20 * US, "the writes that woke the reader up took 900 us"
    assert hop.send_ns - hop.receive_ns == pytest.approx(2 * US)


def test_an_order_point_is_counted_whole_but_for_its_very_first_item():
    stages = (
        stage_record("source", 10),
        stage_record("batch", 20, first_us=500_000, besides_us=9600),
    )
    probed = record(*stages, hops=(hop_record("source", "batch"), hop_record("batch", "sink", messages=3)))
    costs = costs_of(plan(batch(32)), probed, {"source": glimpse(), "batch": Glimpse(SEEN[:3], (0, 1, 2))})
    assert costs.processes[1].run_ns == pytest.approx(120 * US, rel=0.02)
    assert costs.processes[1].alone
    assert costs.hops[1].ns == pytest.approx(costs.hops[0].ns * 3 / ITEMS)


def test_what_nothing_was_seen_of_costs_nothing_to_carry():
    probed = record(
        stage_record("source", 10),
        stage_record("double", 10),
        hops=(hop_record("source", "double"), hop_record("double", "sink")),
    )
    assert costs_of(plan(stage("double")), probed, {}).hops[0].ns == pytest.approx(6 * US, rel=0.01)


@pytest.mark.parametrize(
    "keys, words",
    [
        ({}, ""),
        ({"workers": 3}, ""),
        ({"threads": 1}, ""),
        ({"threads": 2}, "`threads`"),
        ({"env": {"A": "1"}}, "`env`"),
        ({"cpus": "0"}, "`cpus`"),
        ({"mutable": True}, "writes"),
        ({"batch": {"size": 2}}, "lists"),
        ({"transport": "pipe"}, "forced"),
    ],
    ids=str,
)
def test_what_cannot_be_fused_is_known_with_its_reason(keys, words):
    made = plan(stage("same"), stage("double", **keys))
    before, process = made.processes[1:]
    assert words in unfusable(process, before, made)
    assert bool(unfusable(process, before, made)) == bool(words)


def test_neither_a_source_nor_an_order_point_is_fused():
    made = plan(batch(2))
    assert "source" in unfusable(made.processes[0], None, made)
    assert "order" in unfusable(made.processes[1], made.processes[0], made)


def test_memory_is_of_one_worker():
    stages = (replace(stage_record("source", 10), pss_bytes=7), replace(stage_record("double", 10), pss_bytes=9))
    probed = record(*stages, hops=(hop_record("source", "double"), hop_record("double", "sink")))
    assert [each.memory_bytes for each in costs_of(plan(stage("double")), probed, {}).processes] == [7, 9]
