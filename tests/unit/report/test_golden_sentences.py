"""A golden file of every verdict and advice sentence, one record for each.

`pytest --update-goldens` rewrites it. Read the diff as a user would: users read these sentences most.
"""

from __future__ import annotations

from stagepipe.report.verdict import judge
from stagepipe.timing import Histogram


def repeated(run_ns):
    return Histogram.from_values_ns([run_ns] * 1000)


def nothing_ran(make):
    return make.record()


def too_few_items(make):
    return make.record(make.stage("source", items=8), make.stage("detect", busy=0.8, starting=0.05, items=8))


def start_outlasts_the_work(make):
    return make.record(
        make.stage("source"), make.stage("detect", starting=0.85, workers=2), first_item_ns=8_600_000_000
    )


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
    start_outlasts_the_work,
    stage,
    stage_with_workers,
    stage_without_free_cpus,
    order_point,
    stage_fused_into_an_order_point,
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
