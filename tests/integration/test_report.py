"""The report of real pipelines whose truth is known: a stage that sleeps, arrays of known size, a slow stage."""

import pickle
import time
from statistics import median
from typing import Any

import pytest

from stagepipe import Pipeline
from stagepipe.report import Report
from tests.support.pipelines import pipeline, stage

pytestmark = pytest.mark.timeout(120)
NAP_NS = 20_000_000


def run(config: dict[str, Any], *overrides: str) -> tuple[Report, float]:
    """The report of a run, and the seconds between its first and last item by the caller's clock."""
    with Pipeline(config, overrides) as running:
        moments = [time.perf_counter() for _ in running]
    return running.report(), moments[-1] - moments[0]


def test_the_time_of_a_stage_agrees_with_a_clock_in_the_stage(tmp_path):
    log = tmp_path / "clock"
    nap = stage("timed_nap", name="nap", with_={"seconds": NAP_NS / 1e9, "path": str(log)})
    report, _ = run(pipeline(stage("same"), nap, source=100))
    durations_ns = [int(line) for line in log.read_text().split()]
    assert len(durations_ns) == 100
    truth_ns, middle_ns = sum(durations_ns) / 100, median(durations_ns)
    _, same, found = report.stages
    assert found.items == 100
    assert NAP_NS <= truth_ns <= found.run_ns.mean, "the report's clock starts before the stage's and ends after it"
    assert found.run_ns.p50 < 1.03 * middle_ns + 3_000_000, "beside the nap, the stage only writes a line"
    assert 0.97 * min(durations_ns) <= found.run_ns.p50, "percentiles are accurate to 2 %"
    assert found.run_ns.max >= max(durations_ns)
    assert found.cpu_ns < report.run.wall_ns / 2, "a nap needs no CPU"
    assert same.run_ns.p50 < NAP_NS / 10
    assert report.run.wall_ns >= sum(durations_ns)


@pytest.mark.parametrize("maker, way", [("filled", "copied"), ("lent", "zero_copy")])
def test_the_bytes_of_a_hop_are_those_of_its_arrays(maker, way):
    nbytes, items = 1_000_000, 60
    report, _ = run(pipeline(stage(maker, name="maker", with_={"nbytes": nbytes}), stage("number_of"), source=items))
    to_maker, arrays, to_sink = report.hops
    assert (to_maker.messages.pipe, arrays.messages.shared_memory) == (items, items)
    for hop in (to_maker, to_sink):
        pickled_bytes = sum(len(pickle.dumps(number, 5)) for number in range(items))
        assert pickled_bytes <= hop.bytes.inline < 5 * pickled_bytes, "more as a chunk, perhaps of one item"
        assert hop.bytes.copied == hop.bytes.zero_copy == 0
    assert getattr(arrays.bytes, way) == items * nbytes
    assert arrays.bytes.copied + arrays.bytes.zero_copy == items * nbytes
    assert 0 < arrays.bytes.inline < 200 * items, "a dict and the place of its array"
    assert report.run.items_out == items


def test_the_fix_of_a_planted_bottleneck_makes_the_run_faster():
    slow = stage("nap", name="slow", with_={"seconds": NAP_NS / 1e9})
    config = pipeline(stage("same"), slow, stage("double"), source=300)
    report, slow_s = run(config)
    assert (report.verdict.kind, report.verdict.limited_by) == ("stage", "slow")
    assert report.verdict.sentence.startswith("slow is the bottleneck")
    assert report.run.items_per_s == pytest.approx(299 / slow_s, rel=0.25)
    key, _, workers = report.verdict.fix.partition("=")
    assert key == "stages.slow.workers"
    assert int(workers) > 1
    fixed_report, fixed_s = run(config, report.verdict.fix)
    assert fixed_report.run.items_out == 300
    assert slow_s / fixed_s > 1.5, "workers that sleep do not compete for the CPUs"
