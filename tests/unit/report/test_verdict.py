"""The verdict names the limit, the evidence and the config change to try."""

from __future__ import annotations

import msgspec
import pytest

from stagepipe.report import (
    ByteCounts,
    StoreNodeReport,
    WhatIf,
    WorkerChangeRecord,
    WorkerLoad,
    WorkerRestartReport,
    compute_process_loads,
)
from stagepipe.report.utilization import compute_lost_ns, mean_starting_ns
from stagepipe.report.verdict import is_comparable, judge
from stagepipe.timing import Histogram


@pytest.fixture(scope="module")
def slow_decode(make):
    """A slow decode between a fast source and a fast augment."""

    def make_record(**more):
        stages = (
            make.stage("source", busy=0.1, blocked=0.8),
            make.stage("decode", busy=0.93, starved=0.02, cpu=0.9),
            make.stage("augment", busy=0.3, starved=0.65),
        )
        return make.record(*stages, **more)

    return make_record


def test_the_busiest_stage_is_the_limit_and_gets_workers(slow_decode):
    verdict = judge(slow_decode())
    assert (verdict.kind, verdict.limited_by) == ("stage", "decode")
    assert verdict.fix == "stages.decode.workers=3"
    assert verdict.confidence > 0.8
    assert "busy 98 % of the time after start-up" in verdict.sentence
    assert "blocked" in verdict.sentence
    assert "waited for input" in verdict.sentence


def test_a_slow_sink_is_named_as_one_and_gets_workers(make):
    stages = (
        make.stage("source", busy=0.1, blocked=0.8),
        make.stage("parts", busy=0.1, blocked=0.8, config_path="sink"),
        make.stage("jsonl", busy=0.93, starved=0.02, cpu=0.9, config_path="sink"),
    )
    verdict = judge(make.record(*stages, order_point_names=("parts",)))
    assert (verdict.kind, verdict.limited_by, verdict.fix) == ("sink", "jsonl", "sink.workers=4")
    assert verdict.sentence.startswith("The sink jsonl is the bottleneck")


def test_no_more_workers_are_advised_than_there_are_cpus(slow_decode):
    assert judge(slow_decode(cpus=2)).fix == "stages.decode.workers=2"


def test_no_worker_is_advised_if_nearly_every_cpu_is_used(make):
    stages = (
        make.stage("source", busy=0.1, blocked=0.8, cpu=0.35),
        make.stage("decode", busy=0.93, starved=0.02, cpu=0.9),
        make.stage("augment", busy=0.3, starved=0.65, cpu=0.45),
    )
    verdict = judge(make.record(*stages, cpus=2))
    assert (verdict.limited_by, verdict.fix) == ("decode", "")
    assert "only 0.3 of 2 CPUs are free" in verdict.advice


def test_cpus_that_other_programs_use_are_not_free(slow_decode):
    assert judge(slow_decode(cpus=4, other_cpus=1.5)).fix == "stages.decode.workers=2"
    verdict = judge(slow_decode(cpus=4, other_cpus=2.4))
    assert verdict.fix == ""
    assert "only 0.5 of 4 CPUs are free (other programs use 2.4)" in verdict.advice
    verdict = judge(slow_decode(cpus=4, other_cpus=2.4, yielding_cpus=1.2))
    assert verdict.fix == "stages.decode.workers=2"
    assert "1.7 of 4 CPUs are free (other programs use 1.2)" in verdict.advice


def test_other_programs_can_fill_the_machine(slow_decode):
    verdict = judge(slow_decode(cpus=8, other_cpus=7.0))
    assert verdict.fix == ""
    assert (verdict.kind, verdict.limited_by) == ("machine", "other programs")
    assert verdict.sentence == "Other programs use 7.0 of 8 CPUs; this run used 1.1."


def test_other_programs_are_the_limit_only_of_a_run_that_waits_for_cpus(make):
    def judge_waiting(share, **more):
        decode = make.stage("decode", busy=0.95, cpu=0.5, cpu_wait_ns=int(share * 10 * make.second))
        return judge(make.record(make.stage("source", busy=0.1, blocked=0.8, cpu=0.05), decode, cpus=2, **more))

    assert judge_waiting(0.4, other_cpus=1.0).limited_by == "other programs"
    assert judge_waiting(0.1, other_cpus=1.4).limited_by == "decode"
    assert judge_waiting(0.4, other_cpus=0.1).limited_by == "decode"


def test_workers_that_wait_for_a_cpu_get_no_more_workers(make):
    stages = (
        make.stage("source", busy=0.1, blocked=0.8, cpu=0.05),
        make.stage("decode", busy=0.95, workers=2, cpu=0.5, cpu_wait_ns=int(0.8e10)),
    )
    verdict = judge(make.record(*stages, cpus=4))
    assert verdict.fix == ""
    assert "the workers of decode waited for a CPU 40 % of their time" in verdict.advice


def test_a_stage_that_waits_for_the_network_on_a_busy_machine_is_named_as_the_limit(make):
    fetch = make.stage("fetch", busy=0.98, cpu=0.01, workers=4)
    verdict = judge(make.record(make.stage("source", busy=0.05, blocked=0.9), fetch, cpus=2, other_cpus=1.9))
    assert verdict.sentence.startswith("fetch is the bottleneck")


def test_a_stage_that_waits_for_the_network_may_get_more_workers_than_cpus(make):
    fetch = make.stage("fetch", busy=0.98, cpu=0.01, workers=4)
    source = make.stage("source", busy=0.05, blocked=0.9)
    assert judge(make.record(source, fetch, cpus=2)).fix == "stages.fetch.workers=16"


def test_a_stage_that_waits_gets_one_more_worker_on_a_full_machine(make):
    fetch = make.stage("fetch", busy=0.98, cpu=0.01, workers=4, cpu_wait_ns=int(1.2e10))
    verdict = judge(make.record(make.stage("source", busy=0.05, blocked=0.9), fetch, cpus=2, other_cpus=1.99))
    assert verdict.fix == "stages.fetch.workers=5"
    assert "each waits for most of its time" in verdict.advice


def test_two_equally_busy_stages_lower_the_confidence(make, slow_decode):
    stages = (
        make.stage("source", busy=0.1, blocked=0.8),
        make.stage("decode", busy=0.93, blocked=0.02),
        make.stage("augment", busy=0.92, starved=0.03),
    )
    assert judge(make.record(*stages)).confidence < judge(slow_decode()).confidence - 0.2


def test_a_full_machine_needs_less_work_not_more_workers(make):
    stages = (
        make.stage("source", busy=0.1, blocked=0.8, cpu=0.05),
        make.stage("decode", busy=0.95, workers=2, cpu=0.8),
        make.stage("augment", busy=0.5, starved=0.4, cpu=0.3),
    )
    verdict = judge(make.record(*stages, cpus=2))
    assert (verdict.kind, verdict.limited_by, verdict.fix) == ("stage", "decode", "")
    assert "machine is full: 1.9 of 2 CPUs" in verdict.sentence
    assert verdict.advice.startswith("No config change")


def test_threads_that_compete_on_a_full_machine_are_limited(make):
    stages = (make.stage("source", blocked=0.8), make.stage("decode", busy=0.95, workers=2, cpu=3.5))
    assert judge(make.record(*stages, cpus=7)).fix == "stages.decode.threads=1"


def test_a_full_machine_that_mostly_moves_data_is_limited_by_the_hop(make):
    stages = (make.stage("source", busy=0.2, cpu=0.95), make.stage("decode", busy=0.2, cpu=0.95))
    hops = (make.hop("source", "decode", cost_ns=13_000_000), make.hop("decode", "consumer"))
    verdict = judge(make.record(*stages, hops=hops, cpus=2))
    assert (verdict.kind, verdict.limited_by) == ("hop", "source -> decode")
    assert verdict.fix == "stages.decode.fuse=true stages.decode.transport=null"


def test_an_order_point_gets_no_workers(make):
    stages = (make.stage("source", busy=0.1, blocked=0.8), make.stage("batch", busy=0.97))
    verdict = judge(make.record(*stages, order_point_names=("batch",)))
    assert (verdict.kind, verdict.limited_by, verdict.fix) == ("stage", "batch", "")
    assert verdict.advice.startswith("No config change")


def test_a_stage_fused_into_an_order_point_is_unfused(make):
    stages = (
        make.stage("source", busy=0.1, blocked=0.8),
        make.stage("batch", busy=0.3),
        make.stage("normalise", busy=0.6, fused_into="batch"),
    )
    verdict = judge(make.record(*stages, order_point_names=("batch",)))
    assert (verdict.kind, verdict.limited_by) == ("stage", "normalise")
    assert verdict.fix == "stages.normalise.fuse=false stages.normalise.workers=2"


def test_workers_go_to_the_first_stage_of_a_fused_process(make):
    stages = (
        make.stage("source", busy=0.1, blocked=0.8),
        make.stage("decode", busy=0.3, cpu=0.9),
        make.stage("augment", busy=0.6, fused_into="decode", cpu=0),
    )
    verdict = judge(make.record(*stages))
    assert verdict.limited_by == "augment"
    assert verdict.fix.startswith("stages.decode.workers=")


def heavy_hop(make, **more):
    """A hop with sides of 9 ms and 4 ms per message, between functions of 0.5 ms each."""
    stages = (
        make.stage("source", busy=0.02, blocked=0.8),
        make.stage("decode", busy=0.05, starved=0.02),
        make.stage("augment", busy=0.05, starved=0.5),
    )
    phases = {
        "copy_ns": Histogram.from_values_ns([9_000_000] * 1000),
        "decode_ns": Histogram.from_values_ns([4_000_000] * 1000),
    }
    heavy = make.hop("decode", "augment", cost_ns=13_000_000, phase_histograms=phases, **more)
    return make.record(*stages, hops=(make.hop("source", "decode"), heavy, make.hop("augment", "consumer")))


def test_a_hop_that_costs_more_than_its_ends_is_fused(make):
    verdict = judge(heavy_hop(make, mode="auto"))
    assert (verdict.kind, verdict.limited_by) == ("hop", "decode -> augment")
    assert verdict.fix == "stages.augment.fuse=true"
    assert "13 ms per message, 13 s in total" in verdict.sentence


@pytest.mark.parametrize("mode, other", [("pipe", "shared_memory"), ("shared_memory", "pipe")])
def test_the_more_expensive_mode_is_changed(make, mode, other):
    predicted = {f"{mode}_ns": 2_100_000, f"{other}_ns": 46_000}
    verdict = judge(heavy_hop(make, mode=mode, predicted=predicted))
    assert verdict.fix == f"stages.augment.transport={other}"
    assert "46 times" in verdict.advice


def test_the_cheaper_mode_is_kept(make):
    verdict = judge(heavy_hop(make, predicted={"pipe_ns": 2_100_000, "shared_memory_ns": 46_000}))
    assert verdict.fix == "stages.augment.fuse=true stages.augment.transport=null"


def test_fusing_is_not_advised_if_it_would_cost_more_than_the_hop(make):
    # The eight workers of decode share the cost of the hop. In the process of `source`, one worker would bear it all.
    stages = (make.stage("source", busy=0.1, blocked=0.8), make.stage("decode", busy=0.2, workers=8, cpu=0.2))
    hop = make.hop(
        "source",
        "decode",
        phase_histograms={"decode_ns": Histogram.from_values_ns([30_000_000] * 1000)},
        cost_ns=30_000_000,
    )
    verdict = judge(make.record(*stages, hops=(hop,)))
    assert verdict.kind == "hop"
    assert verdict.fix.startswith("stages.decode.workers=")


def test_a_hop_into_an_order_point_is_not_fused(make):
    stages = (make.stage("source", busy=0.1, blocked=0.8), make.stage("batch", busy=0.05))
    hop = make.hop(
        "source",
        "batch",
        phase_histograms={"decode_ns": Histogram.from_values_ns([9_000_000] * 1000)},
        cost_ns=9_000_000,
    )
    verdict = judge(make.record(*stages, hops=(hop,), order_point_names=("batch",)))
    assert (verdict.kind, verdict.fix) == ("hop", "")
    assert verdict.advice.startswith("No config change")


def test_a_hop_that_copies_gets_the_advice_to_use_empty(make):
    stages = (make.stage("source", busy=0.1, starved=0.1), make.stage("batch", busy=0.05, starved=0.9))
    hop = make.hop(
        "source", "batch", phase_histograms={"copy_ns": Histogram.from_values_ns([8_000_000] * 1000)}, cost_ns=8_000_000
    )
    verdict = judge(make.record(*stages, hops=(hop,), order_point_names=("batch",)))
    assert "stagepipe.empty" in verdict.advice


def test_a_slow_source_is_named(make):
    stages = (make.stage("source", busy=0.95), make.stage("decode", busy=0.2, starved=0.7))
    verdict = judge(make.record(*stages))
    assert (verdict.kind, verdict.limited_by, verdict.fix) == ("source", "source", "")
    assert verdict.advice.startswith("No config change")


def test_a_source_that_ended_long_ago_is_not_the_limit(make):
    """Its process idles until the run ends; the record has no counter for that."""
    stages = (make.stage("source", busy=0.05), make.stage("decode", busy=0.9, cpu=0.9))
    assert judge(make.record(*stages, source_end_ns=make.second)).limited_by == "decode"


def test_a_busy_consumer_ends_the_tuning(make):
    stages = (make.stage("source", busy=0.1, blocked=0.8), make.stage("decode", busy=0.3, blocked=0.6))
    times = {"busy_ns": int(9.5 * make.second), "wait_ns": make.second // 2}
    verdict = judge(make.record(*stages, consumer=times))
    assert (verdict.kind, verdict.limited_by, verdict.fix) == ("consumer", "consumer", "")
    assert "Stop tuning" in verdict.advice


def test_a_busy_training_step_is_named(make):
    stages = (make.stage("source", busy=0.1, blocked=0.8), make.stage("decode", busy=0.3, blocked=0.6))
    times = {"busy_ns": int(9.5 * make.second), "wait_ns": make.second // 2}
    record = make.record(*stages, consumer={**times, "name": "training step"})
    verdict = judge(record)
    assert verdict.sentence.startswith("The training step is the bottleneck: it was busy 9")
    assert verdict.advice.endswith("Stop tuning here, or make the training step faster.")


@pytest.mark.parametrize("outside", [0, 20])
def test_time_between_epochs_does_not_change_the_verdict(make, outside):
    """Twenty seconds of validation, in which the workers wait: for room after a `break`, otherwise for input."""
    stages = (make.stage("source", busy=0.1, blocked=0.8), make.stage("decode", busy=0.9, cpu=0.9))
    record = make.record(*stages)
    waited = [
        make.replace(s, wall_ns=s.wall_ns + outside * make.second, starved_ns=s.starved_ns + outside * make.second)
        for s in stages
    ]
    longer = make.replace(
        record,
        stages=tuple(waited),
        wall_ns=record.wall_ns + outside * make.second,
        consumer=msgspec.structs.replace(record.consumer, outside_loop_ns=outside * make.second),
    )
    assert judge(longer) == judge(record)


def test_a_fast_consumer_is_not_the_limit(make, slow_decode):
    assert judge(slow_decode(consumer={"wait_ns": 0, "busy_ns": 1_000_000})).limited_by == "decode"


def test_a_narrow_window_is_the_limit_if_no_stage_is_busy(make):
    stages = (make.stage("source", busy=0.05, blocked=0.9), make.stage("decode", busy=0.4, starved=0.55, workers=4))
    verdict = judge(make.record(*stages, window_items=8))
    assert (verdict.kind, verdict.limited_by, verdict.fix) == ("window", "window", "window=16")
    assert judge(make.record(*stages)).fix == ""


def test_without_a_clear_bottleneck_the_verdict_says_so(make):
    verdict = judge(make.record(make.stage("source", busy=0.1, starved=0.85), make.stage("decode", starved=0.85)))
    assert verdict.kind == "none"
    assert verdict.confidence <= 0.3
    assert verdict.advice.startswith("No config change")


def test_a_run_of_a_few_items_is_not_judged(make):
    stages = (make.stage("source", items=3), make.stage("detect", busy=0.85, starting=0.05, items=3))
    verdict = judge(make.record(*stages))
    assert (verdict.kind, verdict.fix, verdict.confidence) == ("none", "", 0.1)
    assert verdict.sentence == "Too few items to judge: 3; start-up took 500 ms of 10 s (slowest: detect)."
    assert "on 16 items or more" in verdict.advice


def test_a_few_items_that_take_seconds_are_judged(make):
    stages = (make.stage("source", items=8), make.stage("detect", busy=0.85, starting=0.05, items=8))
    assert judge(make.record(*stages)).limited_by == "detect"


def test_a_slow_first_item_is_no_start_up(make):
    stages = (make.stage("source", blocked=0.9), make.stage("detect", busy=0.9))
    assert judge(make.record(*stages, first_item_ns=9 * make.second)).kind == "stage"


def test_a_start_up_that_dominates_is_named_with_its_cost(make):
    stages = (make.stage("source", blocked=0.9), make.stage("detect", busy=0.1, starting=0.85))
    verdict = judge(make.record(*stages))
    assert (verdict.kind, verdict.limited_by, verdict.fix) == ("startup", "detect", "")
    assert "it took 8.5 s of 10 s (slowest: detect)" in verdict.sentence
    assert "with about 51,000 items, start-up takes a tenth of the time" in verdict.advice
    assert not is_comparable(verdict)


def test_a_long_run_is_judged_despite_a_long_start(make):
    second = make.second
    slow = make.replace(make.stage("detect", busy=0.95), wall_ns=70 * second, starting_ns=60 * second)
    source = make.replace(make.stage("source", blocked=0.8), wall_ns=70 * second, blocked_ns=69 * second)
    verdict = judge(make.record(source, slow, wall_ns=70 * second, first_item_ns=60 * second))
    assert (verdict.kind, verdict.limited_by, verdict.fix) == ("startup", "detect", "stages.detect.workers=4")
    assert "After start-up: detect is the bottleneck" in verdict.sentence


def test_confidence_is_never_above_its_maximum(make, slow_decode):
    for record in (slow_decode(), heavy_hop(make), make.record(make.stage("source", busy=1.0))):
        assert 0 <= judge(record).confidence <= 0.95


@pytest.mark.parametrize("busy,kind", [(0.1, "none"), (0.9, "stage")])
def test_on_ray_a_stage_is_the_limit_only_if_it_works_most_of_the_time(make, busy, kind):
    stages = (
        make.stage("source", busy=0.01, starved=0.9, is_blocked_measured=False),
        make.stage("decode", busy=busy, starved=1 - busy, cpu=busy, is_blocked_measured=False),
    )
    verdict = judge(make.record(*stages, scheduler="Ray"))
    assert verdict.kind == kind
    assert "decode" in verdict.sentence
    assert ("Ray took the rest" in verdict.sentence) == (kind == "none")


@pytest.mark.parametrize("spill_s,kind", [(1.0, "stage"), (4.0, "memory")])
def test_blocks_on_disk_are_the_limit_if_they_take_much_of_the_time(make, slow_decode, spill_s, kind):
    nodes = (StoreNodeReport(node="a"), StoreNodeReport(node="b", spilled_bytes=10**9, spill_ns=int(spill_s * 1e9)))
    verdict = judge(slow_decode(store_nodes=nodes))
    assert verdict.kind == kind
    assert ("node b" in verdict.sentence) == (kind == "memory")


def test_the_time_before_the_first_worker_is_start_up(make):
    stages = (make.stage("source", blocked=0.5), make.stage("detect", busy=0.95))
    verdict = judge(make.record(*stages, wall_ns=25 * make.second))  # the workers lived for ten seconds
    assert (verdict.kind, verdict.share) == ("startup", 0.6)
    assert "it took 15 s of 25 s" in verdict.sentence
    assert judge(make.record(*stages, wall_ns=15 * make.second)).share == 1.0


def test_a_sentence_names_rows_of_the_config_not_inner_processes(make):
    def judge_parts(**shares):
        parts = make.stage("parts", config_path="sink", part_of="jsonl", **shares)
        writer = make.stage("jsonl", starved=0.9, config_path="sink")
        hops = (make.hop("source", "parts"), make.hop("parts", "jsonl", cost_ns=18_000_000))
        stages = (make.stage("source", blocked=0.9), parts, writer)
        return judge(make.record(*stages, hops=hops, order_point_names=("parts",)))

    late = judge_parts(busy=0.1, starting=0.85)
    assert (late.kind, late.limited_by) == ("startup", "jsonl")
    handing = judge_parts(busy=0.0)
    assert (handing.kind, handing.limited_by) == ("hop", "source -> jsonl")
    assert "parts" not in handing.sentence


def test_stages_that_are_too_small_are_fused_before_they_get_workers(make):
    change = WhatIf(kind="workers", change="", overrides=("stages.b.workers=2",), items_per_s=2, gain=0.9, gain_low=0.8)
    fused = msgspec.structs.replace(change, kind="fuse", overrides=("stages.b.fuse=true",), gain=0.3, gain_low=0.2)

    def judge_small(*changes):
        stages = [make.stage(name, busy=0.01, cpu=0.9) for name in ("source", "a", "b")]
        hops = [make.hop(*ends, mode="auto", bytes=ByteCounts()) for ends in (("source", "a"), ("a", "b"))]
        return judge(make.record(*stages, hops=tuple(hops), what_if=changes, cpus=2))

    assert judge_small(change, fused).limited_by == "hops"
    assert judge_small(change, fused).fix == "stages.b.fuse=true"
    assert judge_small(change).fix == "stages.b.workers=2"


def test_a_sink_whose_libraries_load_longer_than_the_stages_work_is_the_start(make):
    """Its writer starts in 6 of 10 s, in which the stage before it is blocked."""
    maker = make.stage("out.collect", busy=0.01, blocked=0.58, part_of="out", config_path="sink.collect")
    writer = make.stage("out", busy=0.02, starting=0.6, starved=0.3, items=20, part_of="out", config_path="sink")
    stages = (make.stage("source", busy=0.01, blocked=0.58), make.stage("work", busy=0.3), maker, writer)
    verdict = judge(make.record(*stages, order_point_names=("out.collect",)))
    assert (verdict.kind, verdict.limited_by) == ("startup", "out")
    loads_meanwhile = make.replace(maker, blocked_ns=0)
    verdict = judge(make.record(*stages[:2], loads_meanwhile, writer, order_point_names=("out.collect",)))
    assert verdict.kind != "startup"


def test_a_restart_costs_the_items_since_the_last_part_and_not_the_whole_part(make):
    """Of 1,000 items, 250 of 8 ms were repeated after a death: 2 s of the 8 s until the next part was there."""
    died = WorkerRestartReport(stage="work", worker=0, cause="SIGKILL", item="250", lost_ns=8 * make.second)
    work = make.stage("work", busy=1.0, items=1250)
    maker = make.stage("out.collect", busy=0.01, starved=0.9, part_of="out", config_path="sink.collect")
    writer = make.stage("out", busy=0.02, starved=0.9, items=3, part_of="out", config_path="sink")
    stages = (make.stage("source", busy=0.01, blocked=0.9, items=1500), work, maker, writer)
    record = make.record(*stages, restarts=(died,), order_point_names=("out.collect",))
    assert compute_lost_ns(record) == 2 * make.second
    verdict = judge(record)
    assert verdict.limited_by == "work"
    assert "a smaller `part_items` makes that cheaper" in verdict.advice


def test_sums_over_workers_are_divided_by_their_mean_number(make):
    """One worker for five seconds and three for five have done what two would have in ten."""
    source = make.stage("source", busy=0.05, blocked=0.9)
    fixed = make.stage("decode", workers=2, busy=0.9, starved=0.05, cpu=0.1)
    changed = make.replace(fixed, workers=3, mean_workers=2.0, min_workers=1, max_workers=3)
    records = [make.record(source, fixed), make.record(source, changed)]
    loads = [compute_process_loads(record)[1] for record in records]
    assert loads[0].utilization == loads[1].utilization
    assert [judge(record).confidence for record in records] == [judge(records[0]).confidence] * 2


def test_a_worker_that_came_for_the_slow_items_is_no_straggler(make):
    """The first worker has had the quick items, too: an item takes the second one far longer."""
    loads = (WorkerLoad(items=800, busy_ns=4 * make.second), WorkerLoad(items=200, busy_ns=7 * make.second))
    run = Histogram.from_values_ns([2_000_000] * 700 + [35_000_000] * 300)
    source = make.stage("source", busy=0.05, blocked=0.9)
    verdicts = [
        judge(make.record(source, make.stage("decode", workers=2, busy=0.55, run_histogram=run, **more)))
        for more in ({"worker_loads": loads}, {"worker_loads": loads, "mean_workers": 1.5, "wall_ns": 15 * make.second})
    ]
    assert ["One worker of decode" in verdict.sentence for verdict in verdicts] == [True, False]


def test_a_worker_that_left_has_started_too(make):
    decode = make.stage("decode", starting=0.04, min_workers=1, max_workers=4, mean_workers=1.5)
    left = WorkerChangeRecord(at_ns=5 * make.second, stage="decode", workers=1, delta=-1)
    record = make.record(decode, worker_changes=(left,))
    assert mean_starting_ns(decode, record) == 200_000_000  # of two workers, one after the other


def test_a_stage_that_shares_the_limit_is_left_to_the_run_if_its_workers_follow_the_work(make):
    stages = [make.stage(name, busy=0.95, cpu=0.05) for name in ("decode", "detect")]
    scaled = make.replace(stages[1], min_workers=1, max_workers=8)
    verdict = judge(make.record(make.stage("source", busy=0.05, blocked=0.9), stages[0], scaled))
    assert verdict.fix == "stages.decode.workers=4"
    assert "The run itself adds workers to detect where that pays, up to 8." in verdict.advice


@pytest.mark.parametrize("kind, fix", [("fuse", "stages.decode.workers=1-16"), ("workers", "")])
def test_wider_bounds_are_offered_where_the_model_has_no_estimate_of_them(make, kind, fix):
    decode = make.stage("decode", busy=0.95, cpu=0.05, workers=4, min_workers=1, max_workers=4)
    estimate = WhatIf(kind=kind, change="it", items_per_s=90, gain=-0.1, overrides=("stages.decode.fuse=true",))
    record = make.record(make.stage("source", busy=0.05, blocked=0.9), decode, what_if=(estimate,))
    assert judge(record).fix == fix


def test_a_stage_whose_workers_follow_the_work_is_fused_without_its_workers(make):
    verdicts = []
    for bounds in ({}, {"min_workers": 1, "max_workers": 4}):
        stages = (make.stage("source", busy=0.05), make.stage("decode", busy=0.1, **bounds))
        hop = make.hop("source", "decode", cost_ns=8_000_000)
        verdicts.append(judge(make.record(*stages, hops=(hop,))))
    assert "stages.decode.workers=null" not in verdicts[0].fix
    assert verdicts[1].fix == f"{verdicts[0].fix.split()[0]} stages.decode.workers=null stages.decode.transport=null"
