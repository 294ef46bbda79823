"""Builds a `Report` from a `RunRecord`: shares, rates and percentiles. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stagepipe.report import model
from stagepipe.report.past_runs import PastRun, drop_step_that_did_not_pay, summarize_run
from stagepipe.report.record import PHASES, HopRecord, RunRecord, StageRecord
from stagepipe.report.shared_types import WhatIf
from stagepipe.report.utilization import compute_process_busy_ns
from stagepipe.report.verdict import is_comparable, judge
from stagepipe.timing import Histogram

_MIN_DELIVERIES_FOR_RATE = 3
"""Minimum number of deliveries for a steady rate: of two points, one is the first item, which may come in a burst."""

_MIN_STEADY_SAMPLE_SHARE = 0.25
"""Minimum share of samples delivered before the source ends. A source that is far ahead says nothing about the rate."""


def build_report(record: RunRecord, past_runs: Sequence[PastRun] = ()) -> model.Report:
    """Build the report of a run, verdict included. `past_runs` are earlier runs of the same config.

    >>> build_report(record).stages[0].busy  # doctest: +SKIP
    0.93
    """
    run = summarize_run(record, compute_steady_samples_per_s(record))
    judged = judge(record)
    verdict = drop_step_that_did_not_pay(judged, run, past_runs)
    return model.Report(
        name=record.name,
        config_sha256=record.config_sha256,
        host=record.host,
        calibration=dict(record.calibration),
        run=_build_run(record),
        stages=tuple(_build_stage(stage, record) for stage in record.stages),
        hops=tuple(_build_hop(hop) for hop in record.hops),
        memory=record.memory,
        slowest=record.slowest,
        dead_letters=record.dead_letters,
        restarts=record.restarts,
        verdict=verdict,
        consumer=record.consumer,
        series=record.series,
        what_if=_select_estimates(record, judged, verdict),
        store_nodes=record.store_nodes,
    )


def _select_estimates(record: RunRecord, judged: model.Verdict, verdict: model.Verdict) -> tuple[WhatIf, ...]:
    """Return none if the run was too short to judge, and not that of a step that has not paid in an earlier run."""
    if not is_comparable(judged) and judged.kind != "consumer":
        return ()
    dropped_key = judged.fix.partition("=")[0] if judged.fix != verdict.fix else None
    return tuple(
        estimate
        for estimate in record.what_if
        if dropped_key not in [override.partition("=")[0] for override in estimate.overrides]
    )


def compute_percentiles(histogram: Histogram) -> model.Percentiles:
    """Return p50, p90, p99, max and mean of a histogram, in ns.

    >>> compute_percentiles(Histogram.from_values_ns([10, 20, 30])).p50
    20
    """
    p50, p90, p99 = (histogram.percentile_ns(p) for p in (50, 90, 99))
    return model.Percentiles(p50=p50, p90=p90, p99=p99, max=histogram.max_ns, mean=histogram.mean_ns)


def compute_shares(wall_ns: int, parts_ns: tuple[int, ...]) -> tuple[float, ...]:
    """Divide each part by the wall time. The last share is the remainder. None is negative; their sum is 1.

    Clocks are read one after another, so the parts may add up to slightly more than the wall time, or one may be
    slightly negative. Negative parts count as 0. If their sum exceeds the wall time, the shares are of that sum.

    >>> compute_shares(10, (2, 3))
    (0.2, 0.3, 0.5)
    >>> compute_shares(4, (6, 2, -1))
    (0.75, 0.25, 0.0, 0.0)
    """
    non_negative_ns = [max(part_ns, 0) for part_ns in parts_ns]
    total_ns = max(wall_ns, sum(non_negative_ns), 1)
    remainder_ns = total_ns - sum(non_negative_ns)
    return tuple(part_ns / total_ns for part_ns in [*non_negative_ns, remainder_ns])


def compute_steady_samples_per_s(record: RunRecord) -> float:
    """Return the samples per second in the steady state: from the first delivery to the end of the source.

    At the first delivery the pipeline is full; at the end of the source the drain begins. If too few samples lie
    between the two (a source of plain indices ends long before the work is done), the interval ends at the last
    delivery instead. With fewer than three deliveries, the rate is all samples over the whole wall time.
    """
    all_points = record.delivery_points
    steady_points = tuple(point for point in all_points if point[0] <= record.source_end_ns)
    is_enough = _count_samples(steady_points) >= _MIN_STEADY_SAMPLE_SHARE * _count_samples(all_points)
    for points in (steady_points,) * is_enough + (all_points,):
        elapsed_ns = points[-1][0] - points[0][0] if len(points) >= _MIN_DELIVERIES_FOR_RATE else 0
        if elapsed_ns > 0 and _count_samples(points) > 0:
            return _count_samples(points) * 1e9 / elapsed_ns
    return record.samples_out * 1e9 / record.wall_ns if record.wall_ns > 0 else 0.0


def _count_samples(points: tuple[tuple[int, int], ...]) -> int:
    return points[-1][1] - points[0][1] if points else 0


def _build_run(record: RunRecord) -> model.RunReport:
    return model.RunReport(
        status=record.status,
        items_in=record.items_in,
        items_out=record.items_out,
        samples_out=record.samples_out,
        items_skipped=record.items_skipped,
        wall_ns=record.wall_ns,
        items_per_s=compute_steady_samples_per_s(record),
        first_item_ns=record.first_item_ns,
        timing_overhead=record.timing_overhead,
        error=record.error,
    )


def _build_stage(stage: StageRecord, record: RunRecord) -> model.StageReport:
    starting, busy, starved, blocked, overhead = _compute_stage_shares(stage, record)
    return model.StageReport(
        name=stage.name,
        workers=stage.workers,
        items=stage.items,
        starting=starting,
        busy=busy,
        starved=starved,
        blocked=blocked,
        overhead=overhead,
        run_ns=compute_percentiles(stage.run_histogram),
        cpu_ns=stage.cpu_ns,
        rss_bytes=stage.rss_bytes,
        pss_bytes=stage.pss_bytes,
        errors=stage.errors,
        skipped=stage.skipped,
        retries=stage.retries,
        crashes=stage.crashes,
        fused_into=stage.fused_into,
        passed_by=stage.passed_by,
        is_blocked_measured=stage.is_blocked_measured,
    )


def _compute_stage_shares(stage: StageRecord, record: RunRecord) -> tuple[float, ...]:
    if stage.fused_into is not None:
        return 0.0, 1.0, 0.0, 0.0, 0.0
    busy_ns = compute_process_busy_ns(stage, record)
    parts_ns = (stage.starting_ns, busy_ns, stage.starved_ns, stage.blocked_ns)
    if stage.wall_ns <= 0 and not any(part_ns > 0 for part_ns in parts_ns):
        return 1.0, 0.0, 0.0, 0.0, 0.0  # the workers never became ready: all their time is start-up
    return compute_shares(stage.wall_ns, parts_ns)


def _build_hop(hop: HopRecord) -> model.HopReport:
    empty = Histogram()
    return model.HopReport(
        source=hop.source,
        target=hop.target,
        transport=hop.transport,
        messages=hop.messages,
        bytes=hop.bytes,
        cost_ns=compute_percentiles(hop.cost_histogram),
        phases=model.PhasePercentiles(
            **{phase: compute_percentiles(hop.phase_histograms.get(phase, empty)) for phase in PHASES}
        ),
        predicted=hop.predicted,
        saved_ns=hop.saved_ns,
        sizes=hop.sizes,
        store=hop.store,
    )
