"""One run of a planted pipeline, in a separate process, and its record as small JSON, which tests judge again.

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
"""Number of kept points of the delivery curve."""

_WAITING_PHASES = ("pack_wait_ns", "send_wait_ns", "queue_ns")

_MAX_INTERVALS = 16
"""Number of kept intervals of the series: fewer than in a run of 4 s."""


def encode_record(record: RunRecord) -> str:
    """Return the parts of a record that verdicts use, as JSON."""
    points = record.delivery_points
    thinned = points[:: max(len(points) // _MAX_POINTS, 1)]
    small = msgspec.structs.replace(
        record,
        calibration={},
        host=HostReport(),
        slowest=(),
        dead_letters=(),
        delivery_points=tuple(dict.fromkeys((*thinned, *points[-1:]))),
        series=_thin_series(record.series),
        hops=tuple(_shrink_hop(hop) for hop in record.hops),
    )
    return json.dumps(_leave_out_defaults(small), separators=(",", ":"))


def _thin_series(series: Series) -> Series:
    """Keep each stage's busy share and rate, in at most `_MAX_INTERVALS` of the intervals."""
    step = -(-len(series.times_ns) // _MAX_INTERVALS) or 1
    stages = tuple(
        StageSeries(
            name=stage.name,
            busy=tuple(round(share, 3) for share in stage.busy[::step]),
            items_per_s=tuple(round(rate, 1) for rate in stage.items_per_s[::step]),
        )
        for stage in series.stages
    )
    return Series(times_ns=series.times_ns[::step], stages=stages)


def _leave_out_defaults(value: Any) -> Any:
    """Convert a record to JSON values, without fields that have their default."""
    if isinstance(value, np.ndarray):
        return {str(bucket): int(value[bucket]) for bucket in np.flatnonzero(value)}
    if isinstance(value, Mapping):
        return {key: _leave_out_defaults(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_leave_out_defaults(each) for each in value]
    if isinstance(value, msgspec.Struct):
        fields = [(field.name, field.default) for field in msgspec.structs.fields(value)]
    elif dataclasses.is_dataclass(value):
        fields = [(field.name, field.default) for field in dataclasses.fields(value)]
    else:
        return value
    named = ((name, getattr(value, name), default) for name, default in fields)
    return {name: _leave_out_defaults(each) for name, each, default in named if not _is_default(each, default)}


def _is_default(value: Any, default: Any) -> bool:
    return isinstance(value, str | int | float | tuple | None) and type(value) is type(default) and value == default


def _shrink_hop(hop: HopRecord) -> HopRecord:
    """Keep only the number and the sum of its durations, without waits: verdicts use nothing else."""
    phases = {
        phase: _shrink_histogram(histogram)
        for phase, histogram in hop.phase_histograms.items()
        if phase not in _WAITING_PHASES
    }
    return msgspec.structs.replace(
        hop,
        sizes=(),
        transport=msgspec.structs.replace(hop.transport, reason="", changes=()),
        cost_histogram=_shrink_histogram(hop.cost_histogram),
        phase_histograms=phases,
    )


def _shrink_histogram(histogram: Histogram) -> Histogram:
    counts = np.zeros_like(histogram.counts)
    counts[0] = histogram.count
    return Histogram(counts, histogram.sum_ns, histogram.max_ns)


def decode_record(text: str) -> RunRecord:
    """Rebuild a record from the output of `encode_record`."""
    return msgspec.convert(json.loads(text), RunRecord, dec_hook=_decode_counts)


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
                if consumer_ms:  # even a sleep of no time releases the CPU
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
    run = pipeline._run  # noqa: SLF001 - users do not need it
    assert isinstance(run, LocalRun)
    return msgspec.structs.replace(run.make_record(), consumer=report.consumer)


if __name__ == "__main__":
    answer_turn(sys.argv[1:], take_turn)
