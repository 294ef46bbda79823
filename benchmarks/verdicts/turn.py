"""One run of a planted pipeline, in a process of its own, and its record as small JSON, which tests judge again.

run_turn("benchmarks.verdicts.turn", job, limit)
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.common.turn import answer_turn
from stagepipe import Pipeline
from stagepipe.api import open_shards, run_to_sink
from stagepipe.engine import LocalRun
from stagepipe.report import HopRecord, HostReport, Report, RunRecord, Series, StageSeries
from stagepipe.timing import Histogram

_MAX_POINTS = 24
"""Points of the delivery curve that are kept."""


def encode_record(record: RunRecord) -> str:
    """Return what verdicts use of a record, as JSON."""
    points = record.delivery_points
    thinned = points[:: max(len(points) // _MAX_POINTS, 1)]
    series = record.series
    stage_series = tuple(StageSeries(name=stage.name, busy=stage.busy) for stage in series.stages)
    small = dataclasses.replace(
        record,
        calibration={},
        host=HostReport(),
        slowest=(),
        dead_letters=(),
        delivery_points=tuple(dict.fromkeys((*thinned, *points[-1:]))),
        series=Series(times_ns=series.times_ns, stages=stage_series),
        hops=tuple(_shrink_hop(hop) for hop in record.hops),
    )
    return json.dumps(msgspec.to_builtins(small, enc_hook=_encode_counts), separators=(",", ":"))


def _shrink_hop(hop: HopRecord) -> HopRecord:
    """Keep the number and the sum of its durations, which is all that verdicts use."""
    phases = {phase: _shrink_histogram(histogram) for phase, histogram in hop.phase_histograms.items()}
    cost = _shrink_histogram(hop.cost_histogram)
    return dataclasses.replace(hop, sizes=(), cost_histogram=cost, phase_histograms=phases)


def _shrink_histogram(histogram: Histogram) -> Histogram:
    counts = np.zeros_like(histogram.counts)
    counts[0] = histogram.count
    return Histogram(counts, histogram.sum_ns, histogram.max_ns)


def decode_record(text: str) -> RunRecord:
    """Return the record that `encode_record` wrote."""
    return msgspec.convert(json.loads(text), RunRecord, dec_hook=_decode_counts)


def _encode_counts(value: Any) -> Any:
    """The counts of a histogram, by bucket."""
    if isinstance(value, np.ndarray):
        return {str(bucket): int(value[bucket]) for bucket in np.flatnonzero(value)}
    raise NotImplementedError


def _decode_counts(_: type, value: Any) -> Any:
    counts = np.zeros_like(Histogram().counts)
    for bucket, count in value.items():
        counts[int(bucket)] = count
    return counts


def take_turn(
    config: Mapping[str, Any], overrides: Sequence[str], *, consumer_ms: float, cpu_group: str
) -> dict[str, Any]:
    """Run it. Return the rates, the verdict and the run's record. `cpu_group`: a folder of cgroup version 1 to join."""
    if cpu_group:
        (Path(cpu_group) / "cgroup.procs").write_text(str(os.getpid()))
    began_s = time.perf_counter()
    pipeline = Pipeline(config, list(overrides))
    with open_shards(pipeline) as shards, pipeline:
        if pipeline.spec.sinks:
            run_to_sink(pipeline, lambda _: None, shards=shards)
        else:
            for _ in pipeline:
                time.sleep(consumer_ms / 1000)
    wall_s = time.perf_counter() - began_s
    report = pipeline.report()
    record = _get_record(pipeline, report)
    return {
        "wall_s": wall_s,
        "steady": report.run.items_per_s,
        "total": report.run.items_in / wall_s,
        "verdict": msgspec.to_builtins(report.verdict),
        "other_cpus": record.other_cpus,
        "record": encode_record(record),
    }


def _get_record(pipeline: Pipeline, report: Report) -> RunRecord:
    """The record that the report was built from."""
    run = pipeline._run  # noqa: SLF001 - users have no need of it
    assert isinstance(run, LocalRun)
    return dataclasses.replace(run.make_record(), consumer=report.consumer)


if __name__ == "__main__":
    answer_turn(sys.argv[1:], take_turn)
