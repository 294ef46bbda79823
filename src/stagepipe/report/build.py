"""From what the engine counted to the report. Pure: a `RunRecord` in, a `Report` out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagepipe.report import model
from stagepipe.report.load import own_busy_ns
from stagepipe.report.record import PHASES, HopRecord, RunRecord, StageRecord
from stagepipe.report.verdict import judge
from stagepipe.timing import Histogram

_LEAST_POINTS = 3
"""Deliveries that a steady rate needs: of two points, one is the first item, which may come in a burst."""

_LEAST_SHARE = 0.25
"""Share of all samples that must lie before the source's end; a source that is far ahead says nothing of the rate."""


def build(record: RunRecord) -> model.Report:
    """The report of a run, its verdict included.

    >>> build(record).stages[0].busy  # doctest: +SKIP
    0.93
    """
    return model.Report(
        name=record.name,
        config_sha256=record.config_sha256,
        host=_host(record.host, record.cpus),
        calibration=dict(record.calibration),
        run=_run(record),
        stages=tuple(_stage(s, record) for s in record.stages),
        hops=tuple(_hop(h) for h in record.hops),
        memory=model.Memory(record.arena_peak_bytes, record.arena_limit_bytes, record.copied_out_items),
        slowest=tuple(model.Slow(s.item, s.stage, s.run_ns, s.queue_ns) for s in record.slowest),
        dead_letters=tuple(dead_letter(d) for d in record.dead_letters),
        restarts=tuple(_restart(r) for r in record.restarts),
        verdict=judge(record),
        consumer=model.Consumer(
            record.consumer_wait_ns,
            record.consumer_busy_ns,
            record.consumer_name,
            record.consumer_first_wait_ns,
            record.consumer_outside_ns,
        ),
    )


def percentiles(histogram: Histogram) -> model.Percentiles:
    """The five numbers of a histogram, in ns.

    >>> percentiles(Histogram.of([10, 20, 30])).p50
    20
    """
    p50, p90, p99 = (histogram.percentile_ns(p) for p in (50, 90, 99))
    return model.Percentiles(p50, p90, p99, histogram.max_ns, histogram.mean_ns)


def shares(wall_ns: int, parts: tuple[int, ...]) -> tuple[float, ...]:
    """Each part over the wall time, and last the rest: none negative, their sum 1.

    Clocks are read one after another, so the parts may add up to a little more than the wall, or one may be a little
    below zero: what is below zero counts as zero, and the sum then takes the wall's place.

    >>> shares(10, (2, 3))
    (0.2, 0.3, 0.5)
    >>> shares(4, (6, 2, -1))
    (0.75, 0.25, 0.0, 0.0)
    """
    clean = [max(part, 0) for part in parts]
    whole = max(wall_ns, sum(clean), 1)
    rest = whole - sum(clean)
    return tuple(part / whole for part in [*clean, rest])


def steady_rate(record: RunRecord) -> float:
    """Samples out per second in the steady state: from the first delivery to the end of the source.

    The first delivery ends the start (the pipeline is full), the end of the source begins the drain. Where too few
    samples lie between them (a source of mere indices ends long before its work is done), the last delivery takes the
    place of the source's end; where there are not even three deliveries, it is all samples over the whole wall time.
    """
    whole = record.delivered
    steady = tuple(point for point in whole if point[0] <= record.source_end_ns)
    enough = _samples(steady) >= _LEAST_SHARE * _samples(whole)
    for points in (steady,) * enough + (whole,):
        elapsed_ns = points[-1][0] - points[0][0] if len(points) >= _LEAST_POINTS else 0
        if elapsed_ns > 0 and _samples(points) > 0:
            return _samples(points) * 1e9 / elapsed_ns
    return record.samples_out * 1e9 / record.wall_ns if record.wall_ns > 0 else 0.0


def _samples(points: tuple[tuple[int, int], ...]) -> int:
    return points[-1][1] - points[0][1] if points else 0


def _run(record: RunRecord) -> model.Run:
    return model.Run(
        status=record.status,
        items_in=record.items_in,
        items_out=record.items_out,
        samples_out=record.samples_out,
        items_skipped=record.items_skipped,
        wall_ns=record.wall_ns,
        items_per_s=steady_rate(record),
        first_item_ns=record.first_item_ns,
        timing_overhead=model.TimingOverhead(record.timing_ns_per_hop, record.timing_how),
        error=record.error,
    )


def _stage(stage: StageRecord, record: RunRecord) -> model.Stage:
    parts = _stage_shares(stage, record)
    starting, busy, starved, blocked, overhead = parts
    return model.Stage(
        name=stage.name,
        workers=stage.workers,
        items=stage.items,
        starting=starting,
        busy=busy,
        starved=starved,
        blocked=blocked,
        overhead=overhead,
        run_ns=percentiles(stage.run),
        cpu_ns=stage.cpu_ns,
        rss_bytes=stage.rss_bytes,
        pss_bytes=stage.pss_bytes,
        errors=stage.errors,
        skipped=stage.skipped,
        retries=stage.retries,
        crashes=stage.crashes,
        fused_into=stage.fused_into,
    )


def _stage_shares(stage: StageRecord, record: RunRecord) -> tuple[float, ...]:
    if stage.fused_into is not None:
        return 0.0, 1.0, 0.0, 0.0, 0.0
    busy_ns = own_busy_ns(stage, record)
    parts = (stage.starting_ns, busy_ns, stage.starved_ns, stage.blocked_ns)
    if stage.wall_ns <= 0 and not any(part > 0 for part in parts):
        return 1.0, 0.0, 0.0, 0.0, 0.0  # a worker that never came up was starting all its life
    return shares(stage.wall_ns, parts)


def _hop(hop: HopRecord) -> model.Hop:
    empty = Histogram()
    return model.Hop(
        source=hop.source,
        target=hop.target,
        transport=model.Transport(
            hop.mode,
            hop.threshold_bytes,
            hop.reason,
            tuple(model.Change(c.messages, c.from_bytes, c.to_bytes, c.reason) for c in hop.changes),
        ),
        messages=model.Messages(**_known(hop.messages, model.Messages)),
        bytes=model.Bytes(**_known(hop.bytes, model.Bytes)),
        cost_ns=percentiles(hop.cost),
        phases=model.Phases(**{phase: percentiles(hop.phases.get(phase, empty)) for phase in PHASES}),
        predicted=model.Predicted(
            hop.predicted_pipe_ns,
            hop.predicted_shared_memory_ns,
            hop.predicted_ns,
            hop.measured_ns,
            round(hop.measured_ns / hop.predicted_ns, 3) if hop.predicted_ns else 0.0,
        ),
        saved_ns=hop.saved_ns,
    )


def _known(counts: Mapping[str, int], struct: type[model.Messages | model.Bytes]) -> dict[str, int]:
    return {name: int(counts.get(name, 0)) for name in struct.__struct_fields__}


def _host(host: Mapping[str, Any], cpus: int) -> model.Host:
    return model.Host(
        cpus=int(host.get("cpus", cpus)),
        memory_bytes=int(host.get("memory_bytes", 0)),
        kernel=str(host.get("kernel", "")),
        python=str(host.get("python", "")),
        versions={str(k): str(v) for k, v in dict(host.get("versions") or {}).items()},
    )


def dead_letter(plain: Mapping[str, Any]) -> model.DeadLetter:
    """A dead letter as the engine has it."""
    text = {name: str(plain.get(name, "")) for name in ("item", "stage", "error")}
    return model.DeadLetter(
        **text,
        attempts=int(plain.get("attempts", 1)),
        epoch=int(plain.get("epoch", 0)),
        source_items=tuple(plain.get("source_items", ())),
        source=str(plain.get("source", "")),
        trace=str(plain.get("trace", "")),
    )


def _restart(plain: Mapping[str, Any]) -> model.Restart:
    text = {name: str(plain.get(name, "")) for name in ("stage", "cause", "item")}
    return model.Restart(**text, worker=int(plain.get("worker", -1)), lost_ns=int(plain.get("lost_ns", 0)))
