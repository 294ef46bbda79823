"""The report holds the shares, rates and percentiles of what the record counted."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stagepipe.report import build_report
from stagepipe.report.build import compute_percentiles, compute_shares, compute_steady_samples_per_s
from stagepipe.timing import Histogram

NAMES = ("starting", "busy", "starved", "blocked", "overhead")
some_ns = st.integers(-(2**40), 2**50)


@given(some_ns, st.lists(some_ns, min_size=4, max_size=4))
@example(0, [0, 0, 0, 0])
def test_shares_sum_to_one_and_none_is_negative(wall_ns, parts):
    shares = compute_shares(wall_ns, tuple(parts))
    assert sum(shares) == pytest.approx(1, abs=1e-9)
    assert min(shares) >= 0


@given(some_ns, st.lists(some_ns, min_size=4, max_size=4), st.booleans())
def test_the_shares_of_a_stage_sum_to_one_for_any_clock_readings(make, wall_ns, parts, fused):
    starting_ns, busy_ns, starved_ns, blocked_ns = parts
    stage = make.replace(
        make.stage(),
        wall_ns=wall_ns,
        starting_ns=starting_ns,
        busy_ns=busy_ns,
        starved_ns=starved_ns,
        blocked_ns=blocked_ns,
        fused_into="source" if fused else None,
    )
    report = build_report(make.record(make.stage("source"), stage))
    shares = [getattr(report.stages[1], name) for name in NAMES]
    assert sum(shares) == pytest.approx(1, abs=1e-9)
    assert min(shares) >= 0


def test_shares_are_of_the_wall_time_and_the_remainder_is_overhead(make):
    stage = build_report(make.record(make.stage(starting=0.1, busy=0.4, starved=0.2, blocked=0.1))).stages[0]
    assert [getattr(stage, name) for name in NAMES] == pytest.approx([0.1, 0.4, 0.2, 0.1, 0.2])


def test_a_worker_that_never_became_ready_was_starting_all_the_time(make):
    stage = build_report(make.record(make.stage(busy=0, items=0, wall_ns=0))).stages[0]
    assert stage.starting == 1


@pytest.mark.parametrize("counted", [0.3, 0.5])  # the time of the first stage alone, or of all stages in the process
def test_time_in_fused_stages_is_busy_time_of_their_process(make, counted):
    first = make.replace(make.stage("decode", busy=0.3), busy_ns=int(counted * 10 * make.second))
    fused = make.stage("augment", busy=0.2, fused_into="decode")
    report = build_report(make.record(make.stage("source"), first, fused))
    assert report.stages[1].busy == pytest.approx(0.5)
    assert report.stages[2].busy == 1


def test_percentiles_are_those_of_the_histogram():
    percentiles = compute_percentiles(Histogram.from_values_ns(list(range(1, 1001))))
    assert (percentiles.max, percentiles.mean) == (1000, 500)
    assert [percentiles.p50, percentiles.p90, percentiles.p99] == pytest.approx([500, 900, 990], rel=0.02)
    assert compute_percentiles(Histogram()) == compute_percentiles(Histogram.from_values_ns([0]))


def test_the_steady_rate_excludes_start_and_drain(make):
    second = make.second
    # One second of start-up, 100 samples/s until the source ends, then a slow drain of nine seconds.
    steady = [(i * second, 100 * (i - 1)) for i in range(1, 12)]
    drain = [(11 * second + i * second, 1000 + i) for i in range(1, 10)]
    record = make.record(
        make.stage(), delivery_points=(*steady, *drain), source_end_ns=11 * second, wall_ns=20 * second
    )
    assert compute_steady_samples_per_s(record) == pytest.approx(100)


def test_if_the_source_ends_at_once_the_rate_is_that_of_the_deliveries(make):
    delivered = tuple((i * make.second, 50 * i) for i in range(1, 11))
    assert compute_steady_samples_per_s(
        make.record(make.stage(), delivery_points=delivered, source_end_ns=1)
    ) == pytest.approx(50)


@pytest.mark.parametrize("delivered", [(), ((5, 10),), ((5, 10), (9, 20)), ((5, 10), (5, 20), (5, 30))])
def test_the_rate_of_a_tiny_run_is_all_samples_over_the_wall_time(make, delivered):
    record = make.record(make.stage(), delivery_points=delivered, samples_out=30, wall_ns=10 * make.second)
    assert compute_steady_samples_per_s(record) == pytest.approx(3)


def test_a_run_without_wall_time_has_no_rate(make):
    assert compute_steady_samples_per_s(make.record(make.stage(), delivery_points=(), wall_ns=0)) == 0


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), max_size=20), st.integers(-1, 5000))
def test_the_rate_is_never_negative(make, gaps, end_ns):
    time_ns = samples = 0
    delivered = []
    for gap_ns, new_samples in gaps:
        time_ns += gap_ns
        samples += new_samples
        delivered.append((time_ns, samples))
    assert (
        compute_steady_samples_per_s(make.record(make.stage(), delivery_points=tuple(delivered), source_end_ns=end_ns))
        >= 0
    )


def test_a_phase_that_was_not_recorded_is_empty(make):
    hop = make.hop("decode", "consumer", phase_histograms={}, messages=1)
    report = build_report(make.record(make.stage(), hops=(hop,)))
    assert report.hops[0].phases.encode_ns.max == 0


def test_a_failed_run_keeps_its_error(make):
    report = build_report(make.record(make.stage(), status="failed", error="decode worker 0: ValueError"))
    assert (report.run.status, report.run.error) == ("failed", "decode worker 0: ValueError")


def test_a_run_that_never_started_has_a_report(make):
    report = build_report(make.record(status="failed", error="no such file", items_in=0, wall_ns=0, delivery_points=()))
    assert report.verdict.kind == "none"
    assert report.stages == ()


def test_a_row_has_the_shares_of_its_process_without_fused_stages(make):
    indices = make.stage("source.indices", busy=0.3, starved=0.5, part_of="source")
    reader = make.stage("source", busy=0.2, fused_into="source.indices")
    [row] = build_report(make.record(indices, reader)).stages
    assert (row.name, row.starved) == ("source", 0.5)
    assert row.busy < 0.6
