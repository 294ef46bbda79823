"""Advice stops where an earlier run shows that the step did not pay."""

import pytest

from stagepipe.report import PastRun, build_report
from stagepipe.report.verdict import is_comparable, judge


@pytest.fixture(scope="module")
def decoding(make):
    """A run that decode limits with `workers` workers: a third worker on 8 CPUs is advised, at least."""

    def make_record(workers=1, *, fused=False, **more):
        stages = (
            make.stage("source", busy=0.1, blocked=0.8),
            make.stage("decode", busy=0.93, starved=0.02, cpu=0.9, workers=workers),
            make.stage("augment", busy=0.3, starved=0.65),
        )
        return make.record(*stages, **more)

    return make_record


def past(decode, items_per_s, *, augment=1, free_cpus=8.0):
    """A run at this rate; that of `decoding` is 100 items per second."""
    layout = {"source": 1, "decode": decode, "augment": augment}
    return PastRun(layout=layout, items_per_s=items_per_s, free_cpus=free_cpus)


def test_workers_that_did_not_pay_are_the_last(decoding):
    verdict = build_report(decoding(2), [past(1, 102)]).verdict
    assert judge(decoding(2)).fix.startswith("stages.decode.workers=")
    assert verdict.fix == ""
    assert verdict.advice.startswith(
        "No config change will help: 2 workers of decode gave 0.98 of what 1 gave, so more will not help."
    )
    assert verdict.sentence == judge(decoding(2)).sentence


def test_workers_that_did_not_pay_are_not_advised_again_after_the_step_back(decoding):
    verdict = build_report(decoding(1), [past(2, 98)]).verdict
    assert (verdict.fix, "2 workers of decode gave 0.98 of what 1 gave" in verdict.advice) == ("", True)


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [past(1, 60)],
        [past(2, 100)],
        [past(1, 102, augment=2)],
        [past(1, 102, free_cpus=4.0)],
        [past(9, 90)],
        [past(1, 0.0)],
        [PastRun(layout={"decode": 1}, items_per_s=102, free_cpus=8.0)],
    ],
    ids=[
        "none",
        "the step paid",
        "same layout",
        "another stage differs",
        "a busier machine",
        "more workers than advised",
        "no rate",
        "other stages",
    ],
)
def test_other_runs_change_no_advice(decoding, runs):
    assert build_report(decoding(2), runs).verdict == judge(decoding(2))


def test_only_the_last_step_counts(decoding):
    assert build_report(decoding(3), [past(1, 60), past(2, 99)]).verdict.fix == ""
    assert build_report(decoding(3), [past(1, 99), past(2, 60)]).verdict.fix


@pytest.mark.parametrize(
    "workers, fix",
    [
        (1, "stages.decode.fuse=true stages.decode.transport=null"),
        (2, "stages.decode.fuse=true stages.decode.workers=null stages.decode.transport=null"),
    ],
)
def test_a_fusion_that_did_not_pay_is_not_advised_again(make, workers, fix):
    hops = (make.hop("source", "decode", cost_ns=9_000_000), make.hop("decode", "consumer"))
    decode = make.stage("decode", workers=workers, busy=0.02, starved=0.02)
    record = make.record(make.stage("source", busy=0.02, blocked=0.3), decode, hops=hops)
    assert judge(record).fix == fix
    fused = PastRun(layout={"source": 1, "decode": 0}, items_per_s=90.0, free_cpus=8.0)
    verdict = build_report(record, [fused]).verdict
    assert verdict.fix == ""
    assert verdict.advice.endswith("decode in the process of the stage before it gave 0.90 of this rate before.")


def test_a_run_that_was_short_or_that_its_consumer_slowed_down_is_no_measure(make, decoding):
    assert is_comparable(judge(decoding()))
    assert not is_comparable(judge(make.record(make.stage("source", items=3), make.stage("decode", items=3))))
    consumer = {"wait_ns": 0, "busy_ns": 10 * make.second}
    assert not is_comparable(
        judge(make.record(make.stage("source", blocked=0.85), make.stage("decode", blocked=0.85), consumer=consumer))
    )
