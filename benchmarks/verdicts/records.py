"""Run records as small JSON, so that tests can judge real runs again. Histograms keep their buckets in use only."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import numpy as np

from stagepipe.report import HostReport, RunRecord
from stagepipe.timing import Histogram

_MAX_POINTS = 24
"""Points of the delivery curve that are kept."""


def encode_record(record: RunRecord) -> str:
    """Return a record as JSON: without calibration, host and slowest items, which no verdict uses."""
    points = record.delivery_points
    thinned = points[:: max(len(points) // _MAX_POINTS, 1)]
    small = dataclasses.replace(
        record,
        calibration={},
        host=HostReport(),
        slowest=(),
        dead_letters=(),
        delivery_points=(*thinned, *points[-1:]),
        series=msgspec.structs.replace(
            record.series, hops=(), shared_memory_bytes=(), rss_bytes=(), pss_bytes=()
        ),
        hops=tuple(dataclasses.replace(hop, sizes=()) for hop in record.hops),
    )  # fmt: skip
    return json.dumps(msgspec.to_builtins(small, enc_hook=_encode_counts))


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
