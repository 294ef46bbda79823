"""Measures the cost of a message by size and transfer kind, and fits the curves.

The messages travel over a real hop to another process (`calibration.round_trip`) and back. Between two messages both
sides work on memory, as stages do, so caches are as cold and readers sleep as often as in a run. The cost of a message
is the median of the work of both sides. Kinds and sizes are interleaved; the whole measurement takes less than a
second.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from stagepipe.calibration.round_trip import RoundTrip
from stagepipe.costs import CostCurve, CostCurves, CostMeasurement
from stagepipe.timing import (
    HISTOGRAM_WORDS,
    LEDGER_WORDS,
    RECEIVE_PHASES,
    SEND_PHASES,
    CostLedger,
    DurationRecorder,
    TransferKind,
)
from stagepipe.transport import MAX_INLINE_BYTES

PIPE_SIZES_BYTES = (64, 512, 1024, 3072, 4096, 16 << 10, 64 << 10, 256 << 10)
MESSAGE_SIZES_BYTES = (*PIPE_SIZES_BYTES, 1 << 20, 4 << 20)
"""Bytes of the array in a message. With the packet header, each size has another bit length, so the ledger keeps them
apart.
"""
MULTI_BUFFER_COUNT = 9
"""Number of buffers in the item that measures the cost of each buffer after the first."""
_MULTI_BUFFER_SIZES = [MAX_INLINE_BYTES + 64 * index for index in range(MULTI_BUFFER_COUNT)]
_DEFAULT_ROUNDS = 15
_COLD_ROUNDS = 5
"""Each cold message takes memory that was never touched."""


def make_multi_buffer_item() -> dict[str, NDArray[np.uint8]]:
    """Return the item with several buffers, for the pipe and for shared memory."""
    return {f"data{index}": np.full(nbytes, index, np.uint8) for index, nbytes in enumerate(_MULTI_BUFFER_SIZES)}


def measure_curves(rounds: int = _DEFAULT_ROUNDS) -> CostCurves:
    """Measure the curves of this machine with `rounds` messages of each size and transfer kind.

    Raises RunError if the echo process cannot be started or does not answer.
    """
    items = {size: {"data": np.zeros(size, np.uint8)} for size in MESSAGE_SIZES_BYTES}
    multi_buffer_item = make_multi_buffer_item()
    with RoundTrip() as round_trip:
        for _ in range(rounds):
            for size in MESSAGE_SIZES_BYTES:
                if size in PIPE_SIZES_BYTES:
                    round_trip.send(TransferKind.PIPE, items[size])
                round_trip.send(TransferKind.COPIED, items[size])
                round_trip.send_loaned(size)
            round_trip.send(TransferKind.PIPE, multi_buffer_item)
            round_trip.send(TransferKind.COPIED, multi_buffer_item)
        for size in MESSAGE_SIZES_BYTES * _COLD_ROUNDS:
            round_trip.send_cold(size, items[size])
        round_trip.stop()
        return fit_curves(*round_trip.summarize())


def fit_curves(outbound: Sequence[CostMeasurement], returned: Sequence[CostMeasurement]) -> CostCurves:
    """Fit the curves to the measurements of both directions."""
    fitted = {kind: _fit_curve(outbound, kind) for kind in TransferKind if kind is not TransferKind.PACKED}
    return CostCurves(
        pipe=fitted[TransferKind.PIPE],
        copied=fitted[TransferKind.COPIED],
        cold=fitted[TransferKind.COLD_COPY],
        loaned=fitted[TransferKind.ZERO_COPY],
        passed_on=_fit_curve(returned, TransferKind.ZERO_COPY),
        extra_buffer_ns=(
            _compute_extra_buffer_ns(outbound, TransferKind.PIPE, fitted[TransferKind.PIPE]),
            _compute_extra_buffer_ns(outbound, TransferKind.COPIED, fitted[TransferKind.COPIED]),
        ),
        timing_ns_per_hop=measure_timing_ns_per_hop(),
        measured_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )


def _fit_curve(measurements: Sequence[CostMeasurement], transfer_kind: TransferKind) -> CostCurve:
    selected = select_single_buffer(measurements, transfer_kind)
    return CostCurve.fit([m.mean_bytes for m in selected], [(m.low_ns, m.cost_ns, m.high_ns) for m in selected])


def select_single_buffer(measurements: Sequence[CostMeasurement], transfer_kind: TransferKind) -> list[CostMeasurement]:
    """The measurements of one transfer kind, sorted by size, without the item with several buffers."""
    selected = (m for m in measurements if m.transfer_kind is transfer_kind and not _is_multi_buffer(m))
    return sorted(selected, key=lambda m: m.mean_bytes)


def _is_multi_buffer(measurement: CostMeasurement) -> bool:
    return measurement.mean_bytes.bit_length() == sum(_MULTI_BUFFER_SIZES).bit_length()


def _compute_extra_buffer_ns(
    measurements: Sequence[CostMeasurement], transfer_kind: TransferKind, curve: CostCurve
) -> int:
    """The cost that each buffer after the first adds, in ns."""
    for measurement in measurements:
        if measurement.transfer_kind is transfer_kind and _is_multi_buffer(measurement):
            return max((measurement.cost_ns - curve(measurement.mean_bytes)) // (MULTI_BUFFER_COUNT - 1), 0)
    return 0


def measure_timing_ns_per_hop(rounds: int = 2000) -> int:
    """Measure the cost of timing one hop, in ns: its time stamps and the recording of both sides."""
    send_recorder, receive_recorder = (
        DurationRecorder(
            np.zeros(len(phases) * HISTOGRAM_WORDS, np.uint64),
            len(phases),
            CostLedger(np.zeros(LEDGER_WORDS, np.uint64)),
        )
        for phases in (SEND_PHASES, RECEIVE_PHASES)
    )
    stamps = 8  # three and the packet's on the sending side, four on the receiving side
    best_ns = 1 << 62
    for _ in range(3):
        start_ns = perf_counter_ns()
        for ns in range(rounds):
            for _ in range(stamps):
                perf_counter_ns()
            send_recorder.add((ns, ns, 0, ns, 0), (TransferKind.COPIED, _TIMED_MESSAGE_BYTES, ns))
            receive_recorder.add((ns, ns, ns, ns), (TransferKind.COPIED, _TIMED_MESSAGE_BYTES, ns))
        best_ns = min(best_ns, (perf_counter_ns() - start_ns) // rounds)
    return best_ns


_TIMED_MESSAGE_BYTES = 1_200_000
"""The size of every timed message, because most hops carry messages of one size."""
TIMING_OVERHEAD_METHOD = "time stamps and recording of both sides of a hop, repeated in isolation on this machine"
