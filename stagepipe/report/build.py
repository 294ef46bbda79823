"""Builds a `Report` from a `RunRecord`: shares, rates and percentiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from stagepipe.report import model
from stagepipe.report.record import (
    PHASES,
    SUMMED_FIGURES,
    HopFigures,
    HopRecord,
    RunFacts,
    RunRecord,
    Series,
    StageFigures,
    StageRecord,
    StageSeries,
)
from stagepipe.report.utilization import (
    compute_drain_ns,
    compute_process_busy_ns,
    compute_startup_ns,
    get_consumer_row,
    list_one_to_one,
)
from stagepipe.report.verdict import judge_with_changes
from stagepipe.timing import Histogram

_MIN_DELIVERIES_FOR_RATE = 3
"""Minimum number of deliveries for a steady rate: with two, one is the first item, which may come in a burst."""

_MIN_COUNT_CHANGE = 0.01
"""Smaller differences between item counts come from skipped or repeated items."""

_MIN_STEADY_SAMPLE_SHARE = 0.25
"""Minimum share of samples delivered before the source ends. A source that is far ahead does not show the rate."""


def build_report(record: RunRecord) -> model.Report:
    """Build the report of a run, verdict included.

    >>> build_report(record).stages[0].busy  # doctest: +SKIP
    0.93
    """
    verdict, changes = judge_with_changes(record)
    rows = _name_rows(record)
    facts = {fact: getattr(record, fact) for fact in RunFacts.__struct_fields__}
    for fact in ("slowest", "dead_letters", "restarts", "worker_changes"):
        facts[fact] = tuple(replace(each, stage=rows.get(each.stage, each.stage)) for each in facts[fact])
    return model.Report(
        **{**facts, "series": _name_series(record, rows), "what_if": changes},
        run=_build_run(record),
        stages=tuple(_build_rows(record)),
        hops=tuple(_build_hop(hop, rows) for hop in record.hops),
        verdict=verdict,
    )


def compute_percentiles(histogram: Histogram) -> model.Percentiles:
    """Return p50, p90, p99, max and mean of a histogram, in ns.

    >>> compute_percentiles(Histogram.from_values_ns([10, 20, 30])).p50
    20
    """
    p50, p90, p99 = (histogram.percentile_ns(p) for p in (50, 90, 99))
    return model.Percentiles(p50=p50, p90=p90, p99=p99, max=histogram.max_ns, mean=histogram.mean_ns)


def compute_shares(wall_ns: int, parts_ns: tuple[int, ...]) -> tuple[float, ...]:
    """Divide each part by the wall time. The last share is the remainder. No share is negative; their sum is 1.

    Clocks are read one after another, so the parts may add up to slightly more than the wall time, or one may be
    slightly negative. Negative parts count as 0. If the parts exceed the wall time, their sum is the divisor.

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
    delivery instead. With fewer than three deliveries, as in a sink with few parts, the rate is
    all samples over the time after start-up and before the drain.
    """
    all_points = record.delivery_points
    steady_points = tuple(point for point in all_points if point[0] <= record.source_end_ns)
    is_enough = _count_samples(steady_points) >= _MIN_STEADY_SAMPLE_SHARE * _count_samples(all_points)
    for points in (steady_points,) * is_enough + (all_points,):
        elapsed_ns = points[-1][0] - points[0][0] if len(points) >= _MIN_DELIVERIES_FOR_RATE else 0
        if elapsed_ns > 0 and _count_samples(points) > 0:
            return _count_samples(points) * 1e9 / elapsed_ns
    work_ns = record.wall_ns - compute_startup_ns(record) - compute_drain_ns(record)
    return record.samples_out * 1e9 / work_ns if work_ns > 0 else 0.0


def compute_steady_items_per_s(record: RunRecord) -> float:
    """Return the source items per second in the steady state: the samples per second, times the items per sample.

    A filter makes fewer samples than source items, a generator more. Skipped items count. Without samples, the result
    is all items over the time after start-up and before the drain.
    """
    if record.samples_out > 0:
        return compute_steady_samples_per_s(record) * _count_source_items(None, record) / record.samples_out
    work_ns = record.wall_ns - compute_startup_ns(record) - compute_drain_ns(record)
    return _count_source_items(None, record) * 1e9 / work_ns if work_ns > 0 else 0.0


def _count_samples(points: tuple[tuple[int, int], ...]) -> int:
    return points[-1][1] - points[0][1] if points else 0


def _build_run(record: RunRecord) -> model.RunReport:
    has_parts = record.consumer.items > 0 or any(stage.part_of for stage in record.stages if stage.is_sink)
    return model.RunReport(
        status=record.status,
        items_in=record.items_in,
        items_out=record.consumer.items if has_parts else record.items_out,
        samples_out=record.samples_out,
        items_skipped=record.items_skipped,
        wall_ns=record.wall_ns,
        items_per_s=compute_steady_items_per_s(record),
        samples_per_s=compute_steady_samples_per_s(record),
        first_item_ns=0 if has_parts else record.first_item_ns,
        timing_overhead=record.timing_overhead,
        error=record.error,
        files_out=record.consumer.files,
    )


def _name_rows(record: RunRecord) -> dict[str, str]:
    """Return the row of each stage, by the stage's name."""
    return {stage.name: stage.row for stage in record.stages}


def _build_rows(record: RunRecord) -> Iterator[model.StageReport]:
    """Yield a row for the source, each stage and each sink, in the order of the pipeline.

    The planner's inner processes count in the row that they belong to. The row shows the shares of the busiest of them.
    """
    rows: dict[str, list[StageRecord]] = {}
    for stage in record.stages:
        rows.setdefault(stage.row, []).append(stage)
    consumer_row = None
    if record.consumer.is_sink:
        consumer_row = get_consumer_row(record)
    for name, stages in rows.items():
        yield _build_row(name, stages, record, has_consumer=name == consumer_row)
    if consumer_row is not None and consumer_row not in rows:
        yield _build_row(consumer_row, [], record, has_consumer=True)


def _build_row(name: str, stages: Sequence[StageRecord], record: RunRecord, *, has_consumer: bool) -> model.StageReport:
    members = [_build_stage(stage, record) for stage in stages]
    members += [_build_consumer_row(record)] if has_consumer else []
    heads = [row for row in members if row.fused_into is None]  # a fused stage is never starved
    main = max(heads or members, key=lambda row: row.busy + row.overhead)
    if record.is_inline:  # the members run one after the other
        busy = min(sum(row.busy for row in members), 1.0)
        main = replace(main, busy=busy, starved=1.0 - busy)
    is_sink = has_consumer or stages[0].is_sink
    kind: Literal["source", "stage", "sink"] = "sink" if is_sink else "stage"
    if record.stages and name == record.stages[0].row:
        kind = "source"
    own = next((row for row in members if row.name == name), main)
    if is_sink:
        items = record.consumer.items or (record.items_out if not stages else main.items)
    else:
        items = main.items if kind == "source" and len(members) > 1 else members[0].items
    outputs, unit = _count_outputs(stages, record, is_sink=is_sink)
    fused_into = None if main.fused_into is None else _name_rows(record).get(main.fused_into, main.fused_into)
    return replace(
        main,
        name=name,
        fused_into=None if fused_into == name else fused_into,
        kind=kind,
        **{figure: getattr(own, figure) for figure in ("workers", "mean_workers", "min_workers", "max_workers")},
        items=items,
        **{figure: sum(getattr(row, figure) for row in members) for figure in SUMMED_FIGURES},
        source_items=max(row.source_items for row in members),
        source_item_ns=sum(row.source_item_ns for row in members),
        outputs=outputs,
        output_unit=unit,
    )


def _build_consumer_row(record: RunRecord) -> model.StageReport:
    """Return the row of a sink in the calling process, or of making files from the parts of sinks with workers."""
    consumer, startup_ns = record.consumer, compute_startup_ns(record)
    starved_ns = max(consumer.wait_ns - startup_ns, 0)
    wall_ns = consumer.wait_ns + consumer.busy_ns if record.is_inline else record.wall_ns
    starting, busy, starved, overhead = compute_shares(wall_ns, (startup_ns, consumer.busy_ns, starved_ns))
    source_items = _count_source_items(None, record)
    return model.StageReport(
        name=consumer.name,
        workers=1,
        items=consumer.items or record.items_out,
        starting=starting,
        busy=busy,
        starved=starved,
        blocked=0.0,
        overhead=overhead,
        run_ns=model.Percentiles(),
        source_items=source_items,
        source_item_ns=consumer.busy_ns // max(source_items, 1),
    )


def _build_stage(stage: StageRecord, record: RunRecord) -> model.StageReport:
    starting, busy, starved, blocked, overhead = _compute_stage_shares(stage, record)
    source_items = _count_source_items(stage, record)
    return model.StageReport(
        **{figure: getattr(stage, figure) for figure in StageFigures.__struct_fields__},
        starting=starting,
        busy=busy,
        starved=starved,
        blocked=blocked,
        overhead=overhead,
        run_ns=compute_percentiles(stage.run_histogram),
        source_items=source_items,
        source_item_ns=round(_compute_new_work_ns(stage, record) / max(source_items, 1)),
    )


def _count_source_items(stage: StageRecord | None, record: RunRecord) -> int:
    """Return how many source items of this run have reached a stage (None: the consumer), each counted once.

    In a finished run, all items have reached every stage; items skipped earlier did so as tombstones. Before the end,
    the result is at most the item count of each stage that gets one item per source item.
    """
    if record.status == "finished" or not record.stages or stage is record.stages[0]:
        return record.items_in
    reached = [record.items_in]
    for each in list_one_to_one(record):
        reached.append(each.items + each.passed_by + (record.items_skipped if each is not record.stages[0] else 0))
        if each is stage:
            break
    return min(reached)


def _compute_new_work_ns(stage: StageRecord, record: RunRecord) -> float:
    """Return the time in a stage's function, without the share of items that it repeated after a seek."""
    items = stage.items + stage.passed_by
    if stage is record.stages[0] or stage not in list_one_to_one(record) or items <= record.items_in:
        return stage.busy_ns
    return stage.busy_ns * record.items_in / items


def _count_outputs(stages: Sequence[StageRecord], record: RunRecord, *, is_sink: bool) -> tuple[int, str]:
    """Return the number of a row's outputs and their unit if it differs from the items; (0, "") if it is the same."""
    if is_sink:
        sinks = {each.row for each in record.stages if each.is_sink}  # several sinks: files not counted by sink
        return (record.consumer.files, "files") if record.consumer.files and len(sinks) <= 1 else (0, "")
    stage = stages[-1]
    sent = next((hop.messages.total for hop in record.hops if hop.source == stage.name), 0)
    made = stage.items + stage.passed_by
    if stage.name in record.order_point_names:
        return (sent, "batches") if sent < made else (0, "")
    if stages[0] is record.stages[0] or not made or abs(sent - made) <= _MIN_COUNT_CHANGE * made:
        return 0, ""
    return sent, "items"


def _compute_stage_shares(stage: StageRecord, record: RunRecord) -> tuple[float, ...]:
    if stage.fused_into is not None:
        return 0.0, 1.0, 0.0, 0.0, 0.0
    busy_ns = compute_process_busy_ns(stage, record)
    parts_ns = (stage.starting_ns, busy_ns, stage.starved_ns, stage.blocked_ns)
    if stage.wall_ns <= 0 and not any(part_ns > 0 for part_ns in parts_ns):
        return 1.0, 0.0, 0.0, 0.0, 0.0  # no worker ever became ready, so all time is start-up
    return compute_shares(stage.wall_ns, parts_ns)


def _name_series(record: RunRecord, rows: Mapping[str, str]) -> Series:
    """Return the series with one line per row: the line of the row's busiest process."""
    lines: dict[str, StageSeries] = {}
    for line in record.series.stages:
        row = rows.get(line.name, line.name)
        if row not in lines or sum(line.busy) > sum(lines[row].busy):
            lines[row] = line
    stages = tuple(replace(line, name=row) for row, line in lines.items())
    hops = tuple(
        replace(hop, source=rows.get(hop.source, hop.source), target=rows.get(hop.target, hop.target))
        for hop in record.series.hops
        if rows.get(hop.source, hop.source) != rows.get(hop.target, hop.target)
    )
    return replace(record.series, stages=stages, hops=hops)


def _build_hop(hop: HopRecord, rows: Mapping[str, str]) -> model.HopReport:
    """Return the hop between two rows. A hop inside a row keeps the names of its inner processes."""
    empty = Histogram()
    source, target = rows.get(hop.source, hop.source), rows.get(hop.target, hop.target)
    if source == target:
        source, target = hop.source, hop.target
    return model.HopReport(
        source=source,
        target=target,
        cost_ns=compute_percentiles(hop.cost_histogram),
        phases=model.PhasePercentiles(
            **{phase: compute_percentiles(hop.phase_histograms.get(phase, empty)) for phase in PHASES}
        ),
        **{figure: getattr(hop, figure) for figure in HopFigures.__struct_fields__},
    )
