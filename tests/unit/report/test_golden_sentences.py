"""A golden file of every verdict and advice sentence, one record for each.

`pytest --update-goldens` rewrites it. Read the diff as a user would: users read these sentences most.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from stagepipe.report import (
    ByteCounts,
    MemoryPressure,
    Series,
    StageSeries,
    StoreHopReport,
    StoreNodeReport,
    WhatIf,
    WorkerChangeRecord,
    WorkerLoad,
    WorkerRestartReport,
)
from stagepipe.report.rules import RULES
from stagepipe.report.utilization import gather_evidence
from stagepipe.report.verdict import judge
from stagepipe.timing import Histogram


def repeated(run_ns):
    return Histogram.from_values_ns([run_ns] * 1000)


def nothing_ran(make):
    return make.record()


def slow_decode(make, **more):
    decode = make.stage("decode", busy=0.93, starved=0.02, cpu=0.5, **more)
    return make.stage("source", busy=0.1, blocked=0.8, cpu=0.05), decode


def too_few_items(make):
    return make.record(make.stage("source", items=3), make.stage("detect", busy=0.8, starting=0.05, items=3))


def short_run(make, items=20, call_ns=2_000):
    """Quick items beside another program. The source's first call imports pyarrow."""
    calls = [300_000_000, *[call_ns] * (items - 1)]
    source, work = (
        make.replace(
            make.stage(name, items=items),
            wall_ns=900_000_000,
            busy_ns=sum(values),
            starting_ns=300_000_000,
            cpu_ns=sum(values) + 5_000_000,
            starved_ns=0,
            run_histogram=Histogram.from_values_ns(values),
        )
        for name, values in (("source", calls), ("same", calls[1:]))
    )
    hops = (make.hop("source", "same", mode="auto", messages=items, cost_ns=100_000, bytes=ByteCounts()),)
    fuse = WhatIf(
        kind="fuse",
        change="same fused into source",
        overrides=("stages.same.fuse=true",),
        items_per_s=700,
        gain=0.56,
        gain_low=0.4,
    )
    return make.record(
        source,
        work,
        hops=hops,
        what_if=(fuse,),
        wall_ns=900_000_000,
        items_in=items,
        items_out=items,
        consumer={"wait_ns": 500_000_000, "busy_ns": 1_000_000},
        cpus=2,
        other_cpus=1.0,
    )


def start_outlasts_the_work(make):
    return make.record(make.stage("source"), make.stage("detect", starting=0.85, workers=2))


def start_outlasts_long_work(make):
    source = make.replace(make.stage("source", blocked=0.8), wall_ns=70 * make.second, blocked_ns=69 * make.second)
    slow = make.replace(make.stage("detect", busy=0.95), wall_ns=70 * make.second, starting_ns=60 * make.second)
    return make.record(source, slow, wall_ns=70 * make.second)


def restarts(make):
    restart = WorkerRestartReport(stage="decode", worker=0, cause="killed by SIGSEGV", item="7", lost_ns=make.second)
    return make.record(*slow_decode(make), restarts=(restart,) * 4)


def stalls(make):
    restart = WorkerRestartReport(
        stage="", worker=-1, cause="decode waited for input for 60 s", item="", lost_ns=6 * make.second, kind="stall"
    )
    return make.record(*slow_decode(make), restarts=(restart,))


def spilling(make, hop_index, **more):
    """Two stages on Ray: the store of a node was too small for the blocks of a hop."""
    stages = slow_decode(make, workers=2)
    hops = [make.hop(a, b, mode="object_store") for a, b in (("source", "decode"), ("decode", "sink"))]
    hops[hop_index] = make.replace(hops[hop_index], store=StoreHopReport(spilled_bytes=3_000_000_000))
    node = StoreNodeReport(
        node="3f2a9c01",
        store_bytes=100_000_000,
        spilled_bytes=3_000_000_000,
        spill_ns=3 * make.second,
        restored_bytes=2_900_000_000,
        restore_ns=2 * make.second,
    )
    return make.record(
        *stages,
        hops=tuple(hops),
        store_nodes=(node, StoreNodeReport(node="77")),
        store_option="ray start --object-store-memory=BYTES",
        **more,
    )


def spilling_between_stages(make):
    return spilling(make, 0)


def spilling_in_order(make):
    return spilling(make, 1)


def spilling_in_any_order(make):
    return spilling(make, 1, is_ordered=False)


def cpu_quota(make):
    return make.record(*slow_decode(make), cpus=8, cpu_quota=1.5, throttled_share=0.9)


def other_programs(make):
    return make.record(*slow_decode(make, cpu_wait_ns=4 * make.second), cpus=2, other_cpus=1.4)


def repeated_attempts(make):
    return make.record(*slow_decode(make, repeated_ns=6 * make.second, retries=1500))


def equal_stages(make):
    return make.record(
        make.stage("source", busy=0.1, blocked=0.8),
        make.stage("decode", busy=0.93, cpu=0.9),
        make.stage("augment", busy=0.92, cpu=0.9),
    )


def changing_stages(make):
    stages = (
        make.stage("source", busy=0.1, blocked=0.8),
        make.stage("decode", busy=0.5, blocked=0.4),
        make.stage("augment", busy=0.5, starved=0.4),
    )
    busy = {"source": (0.1,) * 12, "decode": (0.97,) * 6 + (0.1,) * 6, "augment": (0.1,) * 6 + (0.96,) * 6}
    series = Series(
        times_ns=tuple(range(make.second // 2, 10 * make.second, 3 * make.second // 4))[:12],
        stages=tuple(StageSeries(name=name, busy=shares) for name, shares in busy.items()),
    )
    return make.record(*stages, series=series)


def changing_stages_that_workers_followed(make):
    record = changing_stages(make)
    change = WorkerChangeRecord(at_ns=5 * make.second, stage="augment", workers=2, delta=1)
    scaled = make.replace(record.stages[2], workers=2, mean_workers=1.5, min_workers=1, max_workers=8)
    return make.replace(record, stages=(*record.stages[:2], scaled), worker_changes=(change,))


def sink_with_workers(make):
    return sink_of_parts(make, items=1000)


def sink_of_few_parts(make):
    return sink_of_parts(make, items=1)


def sink_of_parts(make, *, items):
    stages = (
        make.stage("source", busy=0.1, blocked=0.8),
        make.stage("parts", busy=0.1, blocked=0.8, config_path="sink"),
        make.stage("jsonl", busy=0.93, starved=0.02, cpu=0.9, items=items, config_path="sink"),
    )
    return make.record(*stages, order_point_names=("parts",))


def sink_without_workers(make):
    record = busy_consumer(make, "ToDatabase")
    return make.replace(record, consumer=msgspec.structs.replace(record.consumer, is_sink=True))


def straggler(make):
    loads = (WorkerLoad(items=20, busy_ns=9 * make.second), *(WorkerLoad(items=300, busy_ns=make.second),) * 3)
    run = Histogram.from_values_ns([3_300_000] * 900 + [450_000_000] * 20)
    decode = make.stage("decode", busy=0.3, starved=0.65, workers=4, worker_loads=loads, run_histogram=run)
    return make.record(make.stage("source", busy=0.05, blocked=0.9), decode, window_items=16)


def worker_that_met_the_slow_items(make):
    loads = (WorkerLoad(items=220, busy_ns=7 * make.second), *(WorkerLoad(items=260, busy_ns=make.second),) * 3)
    run = Histogram.from_values_ns([3_000_000] * 950 + [140_000_000] * 50)
    decode = make.stage("decode", busy=0.4, starved=0.55, workers=4, worker_loads=loads, run_histogram=run)
    return make.record(make.stage("source", busy=0.05, blocked=0.9), decode, window_items=16)


def slow_items_under_a_kept_order(make):
    run = Histogram.from_values_ns([2_000_000] * 950 + [120_000_000] * 50)
    decode = make.stage("decode", busy=0.4, starved=0.55, workers=4, run_histogram=run)
    return make.record(make.stage("source", busy=0.05, blocked=0.9), decode, window_items=16)


def one_silent_call_among_many_threads(make):
    run = Histogram.from_values_ns([20_000_000] * 1500 + [8_000_000_000])
    fetch = make.stage("fetch", busy=0.2, starved=0.75, concurrency=16, run_histogram=run)
    # The first item of the caller is the sink's only part, which comes at the end.
    return make.record(make.stage("source", blocked=0.9), fetch, window_items=256, first_item_ns=10 * make.second)


def window_that_memory_cannot_hold(make):
    pressure = MemoryPressure(item_bytes=8_000_000, fitting_items=3, window_items=20, wanted_bytes=210 << 20)
    return narrow_window(make, memory_pressure=pressure)


def stage(make):
    return make.record(
        make.stage("source", busy=0.1, blocked=0.8),
        make.stage("decode", busy=0.93, starved=0.02, cpu=0.9),
        make.stage("augment", busy=0.3, starved=0.65),
    )


def stage_with_workers(make):
    return make.record(
        make.stage("source", busy=0.1, blocked=0.8), make.stage("decode", busy=0.93, starved=0.02, cpu=0.5, workers=4)
    )


def scaled(make, *numbers, most, mean, seconds=60, **more):
    """A run of a stage that waits, and has had these numbers of workers, which followed the work from 1 to `most`."""
    changes = tuple(
        WorkerChangeRecord(at_ns=index * make.second, stage="decode", workers=after, delta=after - before)
        for index, (before, after) in enumerate(pairwise(numbers), start=2)
    )
    wall_ns = seconds * make.second
    source, decode = (
        make.replace(stage, **{field: getattr(stage, field) * seconds // 10 for field in ("wall_ns", "blocked_ns")})
        for stage in (make.stage("source", busy=0.02, blocked=0.9), make.stage("decode", busy=0.95, cpu=0.05))
    )
    decode = make.replace(
        decode,
        workers=numbers[-1],
        mean_workers=mean if changes else 0.0,
        min_workers=1,
        max_workers=most,
        wall_ns=int(wall_ns * mean),
        busy_ns=int(0.95 * wall_ns * mean),
        cpu_ns=int(0.05 * wall_ns * mean),
        worker_loads=(WorkerLoad(items=1000 // max(numbers), busy_ns=int(0.9 * wall_ns)),) * max(numbers),
    )
    return make.record(source, decode, wall_ns=wall_ns, worker_changes=changes, **more)


def stage_that_grew_to_its_bounds(make):
    return scaled(make, 1, 2, 3, 4, most=4, mean=3.8)


def stage_that_still_grows(make):
    return scaled(make, 1, 2, 3, most=16, mean=2.9)


def stage_that_had_no_time_to_grow(make):
    return scaled(make, 1, most=16, mean=1, seconds=7)


def stage_that_began_with_all_that_its_bounds_allow(make):
    return scaled(make, 4, most=4, mean=4)


def stage_that_gave_a_worker_up(make):
    return scaled(make, 4, 3, most=8, mean=3.5)


def stage_without_free_cpus(make):
    return make.record(
        make.stage("source", busy=0.1, blocked=0.8, cpu=0.35),
        make.stage("decode", busy=0.93, starved=0.02, cpu=0.9),
        make.stage("augment", busy=0.3, starved=0.65, cpu=0.45),
        cpus=2,
    )


def order_point(make):
    stages = (make.stage("source", busy=0.1, blocked=0.8), make.stage("batch", busy=0.97))
    return make.record(*stages, order_point_names=("batch",))


def stages_fused_into_the_source(make):
    load = make.stage("load", busy=0.8, fused_into="source")
    return make.record(
        make.stage("source", busy=0.02), load, make.stage("tidy", busy=0.05, fused_into="source"), cpus=8
    )


def stage_with_state(make):
    return make.record(make.stage("source", busy=0.1, blocked=0.8), make.stage("dedup", busy=0.9, is_stateful=True))


def stage_fused_into_an_order_point(make):
    return make.record(
        make.stage("source", busy=0.1, blocked=0.8),
        make.stage("batch", busy=0.3),
        make.stage("normalise", busy=0.6, fused_into="batch"),
        order_point_names=("batch",),
    )


def source(make):
    return make.record(make.stage("source", busy=0.95), make.stage("decode", busy=0.2, starved=0.7))


def busy_consumer(make, name="consumer"):
    stages = (make.stage("source", busy=0.1, blocked=0.8), make.stage("decode", busy=0.3, blocked=0.6))
    times = {"busy_ns": int(9.5 * make.second), "wait_ns": make.second // 2}
    return make.record(*stages, consumer={"name": name, **times})


def training_step(make):
    return busy_consumer(make, "training step")


def full_machine(make):
    return make.record(
        make.stage("source", busy=0.1, blocked=0.8, cpu=0.05),
        make.stage("decode", busy=0.95, workers=2, cpu=0.8),
        make.stage("augment", busy=0.5, starved=0.4, cpu=0.3),
        cpus=2,
    )


def full_machine_with_threads(make):
    stages = (make.stage("source", blocked=0.8), make.stage("decode", busy=0.95, workers=2, cpu=3.5))
    return make.record(*stages, cpus=7)


def full_machine_with_a_hop(make):
    stages = (make.stage("source", busy=0.2, cpu=0.95), make.stage("decode", busy=0.2, cpu=0.95))
    hops = (make.hop("source", "decode", cost_ns=13_000_000), make.hop("decode", "consumer"))
    return make.record(*stages, hops=hops, cpus=2)


def hop_to_fuse(make, **more):
    stages = (
        make.stage("source", busy=0.02, blocked=0.8),
        make.stage("decode", busy=0.05, starved=0.02),
        make.stage("augment", busy=0.05, starved=0.5),
    )
    phases = {"copy_ns": repeated(9_000_000), "decode_ns": repeated(4_000_000)}
    expensive = make.hop("decode", "augment", cost_ns=13_000_000, phase_histograms=phases, **more)
    return make.record(*stages, hops=(make.hop("source", "decode"), expensive, make.hop("augment", "consumer")))


def hop_by_the_expensive_pipe(make):
    return hop_to_fuse(make, mode="pipe", predicted={"pipe_ns": 2_100_000, "shared_memory_ns": 46_000})


def hop_by_the_expensive_shared_memory(make):
    return hop_to_fuse(make, mode="shared_memory", predicted={"pipe_ns": 46_000, "shared_memory_ns": 60_000})


def hop_that_needs_workers(make):
    stages = (make.stage("source", busy=0.1, blocked=0.8), make.stage("decode", busy=0.2, workers=8, cpu=0.2))
    phases = {"decode_ns": repeated(30_000_000)}
    return make.record(*stages, hops=(make.hop("source", "decode", phase_histograms=phases, cost_ns=30_000_000),))


def hop_into_an_order_point(make):
    stages = (make.stage("source", busy=0.1, blocked=0.8), make.stage("batch", busy=0.05))
    hop = make.hop("source", "batch", phase_histograms={"decode_ns": repeated(9_000_000)}, cost_ns=9_000_000)
    return make.record(*stages, hops=(hop,), order_point_names=("batch",))


def hop_that_copies(make):
    stages = (make.stage("source", busy=0.1, starved=0.1), make.stage("batch", busy=0.05, starved=0.9))
    hop = make.hop("source", "batch", phase_histograms={"copy_ns": repeated(8_000_000)}, cost_ns=8_000_000)
    return make.record(*stages, hops=(hop,), order_point_names=("batch",))


def narrow_window(make, **more):
    stages = (make.stage("source", busy=0.05, blocked=0.9), make.stage("decode", busy=0.4, starved=0.55, workers=4))
    return make.record(*stages, **more)


def narrow_window_of_known_size(make):
    return narrow_window(make, window_items=8)


def no_bottleneck(make):
    return make.record(make.stage("source", busy=0.1, starved=0.85), make.stage("decode", starved=0.85))


def no_bottleneck_but_the_consumer_is_busiest(make):
    stages = (make.stage("source", busy=0.1, starved=0.85), make.stage("decode", starved=0.85))
    return make.record(*stages, consumer={"busy_ns": 5 * make.second, "wait_ns": 5 * make.second})


RECORDS = (
    nothing_ran,
    too_few_items,
    short_run,
    start_outlasts_the_work,
    start_outlasts_long_work,
    restarts,
    stalls,
    spilling_between_stages,
    spilling_in_order,
    spilling_in_any_order,
    cpu_quota,
    other_programs,
    repeated_attempts,
    equal_stages,
    changing_stages,
    changing_stages_that_workers_followed,
    sink_with_workers,
    sink_of_few_parts,
    sink_without_workers,
    straggler,
    worker_that_met_the_slow_items,
    slow_items_under_a_kept_order,
    one_silent_call_among_many_threads,
    window_that_memory_cannot_hold,
    stage,
    stage_with_workers,
    stage_that_grew_to_its_bounds,
    stage_that_still_grows,
    stage_that_had_no_time_to_grow,
    stage_that_began_with_all_that_its_bounds_allow,
    stage_that_gave_a_worker_up,
    stage_without_free_cpus,
    order_point,
    stage_fused_into_an_order_point,
    stages_fused_into_the_source,
    stage_with_state,
    source,
    busy_consumer,
    training_step,
    full_machine,
    full_machine_with_threads,
    full_machine_with_a_hop,
    hop_to_fuse,
    hop_by_the_expensive_pipe,
    hop_by_the_expensive_shared_memory,
    hop_that_needs_workers,
    hop_into_an_order_point,
    hop_that_copies,
    narrow_window,
    narrow_window_of_known_size,
    no_bottleneck,
    no_bottleneck_but_the_consumer_is_busiest,
)


def test_the_sentences_of_every_verdict(make, golden):
    lines = []
    for make_record in RECORDS:
        verdict = judge(make_record(make))
        limit = f"{verdict.kind}, {verdict.limited_by or '-'}, confidence {verdict.confidence}"
        lines += [f"{make_record.__name__} ({limit})", f"  {verdict.sentence}", f"  {verdict.advice}"]
        lines += [f"  try: {verdict.fix}"] if verdict.fix else []
        lines.append("")
    golden("verdicts.txt", "\n".join(lines))


RULE_RECORDS = {
    "too few items": too_few_items,
    "restarts": restarts,
    "short run": short_run,
    "drain": sink_of_few_parts,
    "spilling": spilling_between_stages,
    "CPU quota": cpu_quota,
    "consumer": training_step,
    "straggler": straggler,
    "retries": repeated_attempts,
    "wasteful hop": hop_to_fuse,
    "full machine": full_machine,
    "change of the limit": changing_stages,
    "busiest process": stage,
    "flow": no_bottleneck,
}
"""The rule that judges each of these, because none before it applies. Other tests have records for the other rules."""


def test_the_first_rule_that_applies_judges(make):
    def find_rule(record):
        evidence = gather_evidence(record)
        return next(rule.name for rule in RULES if rule.judge(evidence) is not None)

    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert {name: find_rule(make_record(make)) for name, make_record in RULE_RECORDS.items()} == {
        name: name for name in RULE_RECORDS
    }


def test_a_run_of_quick_items_is_judged_once_they_took_a_while(make):
    assert judge(short_run(make)).fix == ""
    assert judge(short_run(make, items=1000)).kind != "none"
    assert judge(short_run(make, call_ns=3_000_000)).kind != "none"
