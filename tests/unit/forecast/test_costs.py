"""Costs from a probe's record: they leave out the first item, waits for a CPU and waking up."""

import pytest
from msgspec.structs import replace

from stagepipe.config import load
from stagepipe.costs import CostCurves
from stagepipe.forecast import compute_costs, find_missing_items
from stagepipe.forecast.costs import describe_unseen, find_unfusable_reason, find_unseen_stages, get_pickling_cost
from stagepipe.machine import Machine
from stagepipe.plan import ItemSample, ProbeResult, make_plan
from stagepipe.report import (
    ByteCounts,
    ConsumerReport,
    CostPrediction,
    HopRecord,
    HopTransport,
    HostReport,
    MessageCounts,
    RunRecord,
    SharedMemoryReport,
    StageRecord,
    TimingOverhead,
)
from stagepipe.timing import Histogram
from tests.support.pipelines import batch, pipeline, stage

US = 1000
ITEMS = 96
CURVES = CostCurves.from_points((64, 1 << 20), (5_000, 2_000_000), (9_000, 60_000))
SAMPLES = (ItemSample((), 100),) * 8


def plan(*stages, **keys):
    return make_plan(load(pipeline(*stages, **keys)), Machine(4, 8 << 30), CURVES)


def stage_record(name, run_us, *, items=ITEMS, first_us=None, cpu_us=0, **more):
    run_histogram = Histogram.from_values_ns([(first_us or run_us) * US] + [run_us * US] * (items - 1))
    busy_ns = run_histogram.sum_ns + more.pop("other_us", 0) * US
    times = {"wall_ns": 10**9, "starting_ns": 0, "starved_ns": 0, "blocked_ns": 0}
    values = {"busy_ns": busy_ns, "run_histogram": run_histogram, "cpu_ns": cpu_us * US * items}
    return StageRecord(name=name, workers=1, items=items, **values, **times, **more)


def hop_record(source, target, messages=ITEMS):
    phases = {"encode_ns": 4000, "decode_ns": 2000, "copy_ns": 0, "send_ns": 900_000, "receive_ns": 900_000}
    histograms = {name: Histogram.from_values_ns([ns] * messages) for name, ns in phases.items()}
    return HopRecord(
        source=source,
        target=target,
        transport=HopTransport("auto", 3500, "why"),
        messages=MessageCounts(pipe=messages),
        bytes=ByteCounts(),
        cost_histogram=Histogram(),
        phase_histograms=histograms,
        predicted=CostPrediction(),
    )


def record(*stages, hops):
    counts = {"items_in": ITEMS, "items_out": ITEMS, "samples_out": ITEMS, "items_skipped": 0, "wall_ns": 10**9}
    times = {
        "first_item_ns": 0,
        "source_end_ns": 0,
        "delivery_points": (),
        "consumer": ConsumerReport(),
    }
    rest = {
        "timing_overhead": TimingOverhead(),
        "host": HostReport(),
        "calibration": {},
        "memory": SharedMemoryReport(),
    }
    run = {"name": "p", "config_sha256": "", "status": "finished", "error": None}
    return RunRecord(**run, **counts, **times, stages=stages, hops=hops, **rest)


def probe_result(cpu_us=0, delay_us=0):
    """The samples of a process that takes these times for every item, the first included."""
    numbers = range(1, len(SAMPLES) + 1)
    cpu_ns, delay_ns = (tuple(time_us * US * number for number in numbers) for time_us in (cpu_us, delay_us))
    return ProbeResult(
        items=SAMPLES,
        cpu_ns=cpu_ns,
        cpu_delay_ns=delay_ns,
        final_cpu_ns=cpu_us * US * ITEMS,
        final_cpu_delay_ns=delay_us * US * ITEMS,
    )


def costs_of_one_stage(run_us, *, cpu_us, delay_us=0, first_us=None):
    """The costs of a stage between a source and the sink."""
    stages = (stage_record("source", 10), stage_record("double", run_us, first_us=first_us, cpu_us=cpu_us))
    probed = record(*stages, hops=(hop_record("source", "double"), hop_record("double", "sink")))
    return compute_costs(
        plan(stage("double")), probed, {"source": probe_result(), "double": probe_result(cpu_us, delay_us)}
    )


def test_the_first_item_does_not_count():
    assert costs_of_one_stage(1000, cpu_us=1000, first_us=900_000).processes[1].run_ns == 1000 * US


@pytest.mark.parametrize("messages, expected_us", [(1, 4), (2, 4), (3, 2_000_000)])
def test_a_library_that_the_only_messages_import_is_no_cost_of_unpickling(messages, expected_us):
    """A probe of a few batches has few messages on its last hop, and the first tensor in a process imports torch."""
    hop = hop_record("batch", "sink", messages)
    hop.phase_histograms["decode_ns"] = Histogram.from_values_ns([2_000_000 * US] * messages)
    assert get_pickling_cost(hop).receive_ns == pytest.approx(expected_us * US, rel=0.02)


def test_the_threads_of_a_worker_share_its_items():
    stages = (stage_record("source", 10), stage_record("double", 800))
    probed = record(*stages, hops=(hop_record("source", "double"), hop_record("double", "sink")))
    cost = compute_costs(plan(stage("double", concurrency=8)), probed, {}).processes[1]
    assert cost.run_ns == pytest.approx(100 * US, rel=0.02)
    assert "concurrency" in cost.unfusable_reason


def test_attempts_that_failed_are_part_of_the_cost():
    repeated = stage_record("double", 10, retries=2 * ITEMS, repeated_ns=20 * US * ITEMS)
    probed = record(
        stage_record("source", 10), repeated, hops=(hop_record("source", "double"), hop_record("double", "sink"))
    )
    assert compute_costs(plan(stage("double")), probed, {}).processes[1].run_ns == pytest.approx(30 * US, rel=0.02)


def test_waits_for_a_cpu_are_subtracted():
    cost = costs_of_one_stage(4000, cpu_us=2000, delay_us=2000).processes[1]
    assert cost.run_ns == pytest.approx(2000 * US, rel=0.02)
    assert cost.scheduled_fraction == pytest.approx(0.5, rel=0.02)


def test_longer_waits_happened_outside_the_stage():
    assert costs_of_one_stage(4000, cpu_us=2000, delay_us=9000).processes[1].run_ns == pytest.approx(
        2000 * US, rel=0.02
    )


def test_a_stage_that_sleeps_keeps_its_time():
    cost = costs_of_one_stage(20_000, cpu_us=100, delay_us=50).processes[1]
    assert cost.run_ns == pytest.approx(20_000 * US, rel=0.01)
    assert cost.cpu_ns == pytest.approx(100 * US)


def test_a_stage_that_sleeps_keeps_it_where_the_process_waited_elsewhere():
    assert costs_of_one_stage(20_000, cpu_us=500, delay_us=9000).processes[1].run_ns == pytest.approx(
        20_000 * US, rel=0.02
    )


def test_cpu_time_leaves_out_waking_up_but_not_threads():
    assert costs_of_one_stage(1000, cpu_us=1250).processes[1].cpu_ns < 1060 * US
    assert costs_of_one_stage(1000, cpu_us=4000).processes[1].cpu_ns == pytest.approx(4000 * US, rel=0.001)


def test_a_hop_costs_measured_pickling_and_predicted_carrying():
    hop = costs_of_one_stage(1000, cpu_us=1000).hops[0]
    assert 6 * US < hop.total_ns < 20 * US, "without the writes of 900 µs that woke the reader up"
    assert hop.send_ns - hop.receive_ns == pytest.approx(2 * US)


def test_all_work_of_an_order_point_counts_except_its_first_item():
    stages = (
        stage_record("source", 10),
        stage_record("batch", 20, first_us=500_000, other_us=9600),
    )
    probed = record(*stages, hops=(hop_record("source", "batch"), hop_record("batch", "sink", messages=3)))
    costs = compute_costs(
        plan(batch(32)), probed, {"source": probe_result(), "batch": ProbeResult(items=SAMPLES[:3], cpu_ns=(0, 1, 2))}
    )
    assert costs.processes[1].run_ns == pytest.approx(120 * US, rel=0.02)
    assert costs.processes[1].is_single_worker
    assert costs.hops[1].total_ns <= costs.hops[0].total_ns * 3 / ITEMS, "fewer where they share packets"


def test_without_samples_only_pickling_counts():
    probed = record(
        stage_record("source", 10),
        stage_record("double", 10),
        hops=(hop_record("source", "double"), hop_record("double", "sink")),
    )
    assert compute_costs(plan(stage("double")), probed, {}).hops[0].total_ns == pytest.approx(6 * US, rel=0.01)


@pytest.mark.parametrize(
    "keys, reason",
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
def test_a_stage_that_cannot_be_fused_has_a_reason(keys, reason):
    planned = plan(stage("same"), stage("double", **keys))
    before, process = planned.processes[1:]
    assert reason in find_unfusable_reason(process, before, planned)
    assert bool(find_unfusable_reason(process, before, planned)) == bool(reason)


def test_neither_a_source_nor_an_order_point_can_be_fused():
    planned = plan(batch(2))
    assert "source" in find_unfusable_reason(planned.processes[0], None, planned)
    assert "order" in find_unfusable_reason(planned.processes[1], planned.processes[0], planned)


def test_memory_is_that_of_one_worker():
    stages = (replace(stage_record("source", 10), pss_bytes=7), replace(stage_record("double", 10), pss_bytes=9))
    probed = record(*stages, hops=(hop_record("source", "double"), hop_record("double", "sink")))
    assert [process.memory_bytes for process in compute_costs(plan(stage("double")), probed, {}).processes] == [7, 9]


def test_a_stage_that_the_probe_did_not_reach_is_named_and_costs_nothing():
    planned = plan(stage("same"), stage("double"), batch(32))
    stages = (stage_record("source", 10), stage_record("same", 10), stage_record("double", 900, items=1))
    hops = (("source", "same", ITEMS), ("same", "double", 1), ("double", "batch", 1), ("batch", "sink", 0))
    empty = replace(stage_record("batch", 10), items=0, run_histogram=Histogram())
    probed = replace(record(*stages, empty, hops=tuple(hop_record(*hop) for hop in hops)), items_out=0)
    cut_short = replace(probed, status="failed")
    assert find_unseen_stages(planned, cut_short) == ("double", "batch", "sink")
    assert find_unseen_stages(planned, probed) == ("batch", "sink"), "the source has ended: there is no second item"
    costs = compute_costs(planned, cut_short, {})
    assert [process.is_measured for process in costs.processes] == [True, True, False, False]
    assert costs.processes[2].run_ns == 0
    assert describe_unseen(cut_short, ("batch",), 60.2) == "batch saw no item in 1.0 min and 96 source items"
    assert describe_unseen(probed, ("double",), 2.0) == "double saw too few items in all 96 source items"


def test_too_few_items_give_no_forecast():
    probed = record(stage_record("source", 10), hops=())
    assert find_missing_items(probed) == ""
    assert "too few items" in find_missing_items(replace(probed, items_in=3))
    assert "ran out of time after 3 items" in find_missing_items(replace(probed, items_in=3, status="failed"))


def test_items_that_a_probe_leaves_on_their_way_do_not_lower_the_cost():
    planned = plan(batch(32), stage("same"))
    stages = (stage_record("source", 10), stage_record("batch", 10), stage_record("same", 640, items=2))
    hops = (("source", "batch", ITEMS), ("batch", "same", 3), ("same", "sink", 2))
    probed = record(*stages, hops=tuple(hop_record(*hop) for hop in hops))
    assert compute_costs(planned, probed, {}).processes[2].run_ns == pytest.approx(20 * US, rel=0.02)


def test_the_cost_of_a_stage_ignores_the_items_dropped_before_it():
    planned = plan(stage("same"), stage("double"))
    stages = (stage_record("source", 10), stage_record("same", 10), stage_record("double", 500, items=24))
    hops = (("source", "same", ITEMS), ("same", "double", 24), ("double", "sink", 24))
    probed = record(*stages, hops=tuple(hop_record(*hop) for hop in hops))
    costs = compute_costs(planned, probed, {}, items_before={"double": 73})
    assert costs.processes[2].run_ns == pytest.approx(500 * US, rel=0.02)
    assert costs.processes[1].run_ns == pytest.approx(10 * US, rel=0.02)
    assert costs.hops[1].total_ns == pytest.approx(costs.hops[0].total_ns, rel=0.02)
