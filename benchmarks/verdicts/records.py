"""Run records as small JSON, so that tests can judge real runs again."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import numpy as np

from stagepipe.report import HopRecord, HostReport, RunRecord, Series, StageSeries
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
