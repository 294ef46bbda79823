"""Revises a hop's rule during the run: corrects the calibration's curves by what the hop's messages really cost.

A calibration can be wrong: made on a busy machine, in one thread, or long ago. Each curve is therefore scaled to the
costs measured at the sizes that the hop carried, and the threshold is computed from the scaled curves. Hysteresis
prevents oscillation: a change must save at least a fifth and rest on enough messages. The curve of a transfer kind
without measurements is scaled by the error of the other one, up to a factor of four (a busy machine slows both). A
larger error is taken to affect one curve only.

Pure. Runs in the caller's process: in the supervisor thread during a run, and for the report after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stagepipe.core import format_bytes, format_ns
from stagepipe.costs.curves import CostCurve, CostCurves
from stagepipe.costs.negotiator import make_auto_rule
from stagepipe.timing import CostLedger, LedgerEntry, TransferKind
from stagepipe.transport import PIPE, SHARED_MEMORY, TransportRule

MIN_MESSAGES_FOR_MEDIAN = 32
"""Messages of one transfer kind and size from which a median is trusted."""
_MAX_COST_RATIO = 0.8
"""A change is made only if the other transfer kind costs less than this share of the current one."""
_MAX_COMMON_ERROR_RATIO = 4.0
"""Up to this factor an error is taken to be the machine's load, which affects both transfer kinds."""


@dataclass(frozen=True, kw_only=True)
class CostMeasurement:
    """Messages of one transfer kind and about one size.

    `cost_ns` is the median cost of carrying one message; `low_ns` and `high_ns` are the quartiles.
    """

    transfer_kind: TransferKind
    mean_bytes: int
    count: int
    cost_ns: int
    low_ns: int = 0
    high_ns: int = 0


def summarize_ledgers(
    send_ledgers: Sequence[CostLedger], receive_ledgers: Sequence[CostLedger]
) -> list[CostMeasurement]:
    """Add the costs of both sides, for each transfer kind and size.

    The receiving side cannot tell a copied block from one that was passed on. Receiving either costs the same.
    """
    sent, received = _merge_ledgers(send_ledgers), _merge_ledgers(receive_ledgers)
    measurements = []
    for (transfer_kind, bits), entry in sent.items():
        receive_kind = transfer_kind if transfer_kind is TransferKind.PIPE else TransferKind.COPIED
        receive_entry = received.get((receive_kind, bits))
        if receive_entry is not None:
            sides = entry.cost_histogram, receive_entry.cost_histogram
            low_ns, cost_ns, high_ns = (sum(side.percentile_ns(percent) for side in sides) for percent in (25, 50, 75))
            count = min(side.count for side in sides)
            measurements.append(
                CostMeasurement(
                    transfer_kind=transfer_kind,
                    mean_bytes=entry.mean_bytes,
                    count=count,
                    cost_ns=cost_ns,
                    low_ns=low_ns,
                    high_ns=high_ns,
                )
            )
    return measurements


def _merge_ledgers(ledgers: Sequence[CostLedger]) -> dict[tuple[TransferKind, int], LedgerEntry]:
    merged: dict[tuple[TransferKind, int], LedgerEntry] = {}
    for ledger in ledgers:
        for entry in ledger.entries():
            key = entry.transfer_kind, entry.size_bits
            earlier = merged.get(key)
            merged[key] = entry if earlier is None else earlier + entry
    return merged


@dataclass(frozen=True)
class TransportRuleChange:
    """A change of a hop's rule after `messages` messages. `reason` names the figures behind it."""

    messages: int
    before: TransportRule
    after: TransportRule
    reason: str


def revise_rule(
    rule: TransportRule, measurements: Sequence[CostMeasurement], curves: CostCurves, *, is_one_to_one: bool
) -> TransportRuleChange | None:
    """Return the change of the rule that the measurements call for, or None if the rule should stay.

    >>> curves = CostCurves.from_points((1 << 12, 1 << 20), (1_000, 60_000), (15_000, 60_001))
    >>> initial_rule = make_auto_rule(curves, is_one_to_one=True)
    >>> measured = CostMeasurement(transfer_kind=TransferKind.PIPE, mean_bytes=65_536, count=40, cost_ns=110_000)
    >>> change = revise_rule(initial_rule, [measured], curves, is_one_to_one=True)
    >>> change.reason
    '66 kB messages took 110 µs by pipe (predicted 4.5 µs); shared memory is predicted at 18 µs'
    """
    trusted = [
        measurement
        for measurement in measurements
        if measurement.count >= MIN_MESSAGES_FOR_MEDIAN and measurement.transfer_kind is not TransferKind.COLD_COPY
    ]
    if rule.mode != "auto" or not trusted:
        return None
    corrected = correct_curves(curves, trusted)
    after = make_auto_rule(corrected, is_one_to_one=is_one_to_one)
    best: tuple[int, CostMeasurement] | None = None
    for measurement in trusted:
        by_pipe = measurement.transfer_kind is TransferKind.PIPE
        if by_pipe is not _is_below_threshold(rule, measurement) or by_pipe is _is_below_threshold(after, measurement):
            continue  # the current rule sends such messages otherwise already, or the new rule would not
        other_ns = (corrected.copied if by_pipe else corrected.pipe)(measurement.mean_bytes)
        gain_ns = (measurement.cost_ns - other_ns) * measurement.count
        if other_ns < _MAX_COST_RATIO * measurement.cost_ns and (best is None or gain_ns > best[0]):
            best = gain_ns, measurement
    if best is None:
        return None
    reason = _format_reason(best[1], trusted, curves, corrected)
    messages = sum(measurement.count for measurement in measurements)
    return TransportRuleChange(messages, rule, replace(after, reason=reason), reason)


def correct_curves(curves: CostCurves, measurements: Sequence[CostMeasurement]) -> CostCurves:
    """Scale `pipe` and `copied` to the costs that were measured."""
    trusted = [m for m in measurements if m.count >= MIN_MESSAGES_FOR_MEDIAN]
    errors = {
        transfer_kind: _compute_error_ratios(curve, [m for m in trusted if m.transfer_kind is transfer_kind])
        for transfer_kind, curve in _get_copying_curves(curves).items()
    }
    common = {transfer_kind: _compute_common_error_ratio(ratios) for transfer_kind, ratios in errors.items()}
    pipe = _scale_curve(curves.pipe, errors[TransferKind.PIPE] or {1: common[TransferKind.COPIED]})
    copied = _scale_curve(curves.copied, errors[TransferKind.COPIED] or {1: common[TransferKind.PIPE]})
    return replace(curves, pipe=pipe, copied=copied)


def _get_copying_curves(curves: CostCurves) -> dict[TransferKind, CostCurve]:
    return {TransferKind.PIPE: curves.pipe, TransferKind.COPIED: curves.copied}


def _compute_error_ratios(curve: CostCurve, measurements: Sequence[CostMeasurement]) -> dict[int, float]:
    """Measured cost over predicted cost, by size in bytes."""
    return {m.mean_bytes: m.cost_ns / curve(m.mean_bytes) for m in measurements}


def _compute_common_error_ratio(error_ratios: Mapping[int, float]) -> float:
    """The error to assume for the other transfer kind: the median ratio, or 1 if that is too far off."""
    median = float(np.median(list(error_ratios.values()))) if error_ratios else 1.0
    return median if 1 / _MAX_COMMON_ERROR_RATIO <= median <= _MAX_COMMON_ERROR_RATIO else 1.0


def _scale_curve(curve: CostCurve, error_ratios: Mapping[int, float]) -> CostCurve:
    """Multiply the curve by its error ratios, interpolated log-log between their sizes and constant beyond them."""
    sizes = sorted({*curve.sizes, *(size for size in error_ratios if size > 1)})
    error_sizes, ratios = zip(*sorted(error_ratios.items()), strict=True)
    factors = np.exp(np.interp(np.log(sizes), np.log(error_sizes), np.log(ratios)))
    return CostCurve.from_points(sizes, [max(int(cost), 1) for cost in curve.evaluate_ns(np.array(sizes)) * factors])


def _is_below_threshold(rule: TransportRule, measurement: CostMeasurement) -> bool:
    return measurement.mean_bytes < rule.threshold_bytes


def _format_reason(
    measurement: CostMeasurement, trusted: Sequence[CostMeasurement], curves: CostCurves, corrected_curves: CostCurves
) -> str:
    mode, other_mode, other_kind = PIPE, SHARED_MEMORY, TransferKind.COPIED
    curve, other_curve = curves.pipe, corrected_curves.copied
    if measurement.transfer_kind is not TransferKind.PIPE:
        mode, other_mode, other_kind = SHARED_MEMORY, PIPE, TransferKind.PIPE
        curve, other_curve = curves.copied, corrected_curves.pipe
    is_other_measured = any(m.transfer_kind is other_kind for m in trusted)
    nbytes = measurement.mean_bytes
    return (
        f"{format_bytes(nbytes)} messages took {format_ns(measurement.cost_ns)} by {mode.replace('_', ' ')} (predicted "
        f"{format_ns(curve(nbytes))}); {other_mode.replace('_', ' ')} is "
        f"{'measured' if is_other_measured else 'predicted'} at {format_ns(other_curve(nbytes))}"
    )


@dataclass(frozen=True, kw_only=True)
class HopCostEstimate:
    """The predicted cost of carrying a hop's messages, in ns per message.

    `pipe_ns`, `shared_memory_ns` and `as_sent_ns` are means: if all messages went by pipe, if all went through shared
    memory, and as they were sent. The medians are of the messages as they were sent.
    """

    pipe_ns: int = 0
    shared_memory_ns: int = 0
    as_sent_ns: int = 0
    predicted_median_ns: int = 0
    measured_median_ns: int = 0


def predict_hop_cost(measurements: Sequence[CostMeasurement], curves: CostCurves) -> HopCostEstimate:
    """Predict, from the curves, the cost of the messages that a hop carried.

    >>> curves = CostCurves.from_points((0, 1000), (0, 1000), (500, 600), 300)
    >>> passed_on = CostMeasurement(transfer_kind=TransferKind.ZERO_COPY, mean_bytes=1000, count=10, cost_ns=400)
    >>> estimate = predict_hop_cost([passed_on], curves)
    >>> estimate.pipe_ns, estimate.shared_memory_ns, estimate.as_sent_ns
    (1000, 300, 300)
    >>> estimate.predicted_median_ns, estimate.measured_median_ns
    (300, 400)
    """
    count = max(sum(m.count for m in measurements), 1)
    shared_curves = {TransferKind.ZERO_COPY: curves.passed_on, TransferKind.COLD_COPY: curves.cold}

    def mean_ns(predict_ns: Callable[[CostMeasurement], int]) -> int:
        return sum(m.count * predict_ns(m) for m in measurements) // count

    def pipe_ns(measurement: CostMeasurement) -> int:
        return curves.pipe(measurement.mean_bytes)

    def shared_memory_ns(measurement: CostMeasurement) -> int:
        return shared_curves.get(measurement.transfer_kind, curves.copied)(measurement.mean_bytes)

    def as_sent_ns(measurement: CostMeasurement) -> int:
        return (pipe_ns if measurement.transfer_kind is TransferKind.PIPE else shared_memory_ns)(measurement)

    return HopCostEstimate(
        pipe_ns=mean_ns(pipe_ns),
        shared_memory_ns=mean_ns(shared_memory_ns),
        as_sent_ns=mean_ns(as_sent_ns),
        predicted_median_ns=_compute_weighted_median([(as_sent_ns(m), m.count) for m in measurements]),
        measured_median_ns=_compute_weighted_median([(m.cost_ns, m.count) for m in measurements]),
    )


def _compute_weighted_median(value_counts: Sequence[tuple[int, int]]) -> int:
    """The median of (value, count) pairs; 0 if there are none."""
    remaining = sum(count for _, count in value_counts) / 2
    for value, count in sorted(value_counts):
        remaining -= count
        if remaining <= 0:
            return value
    return 0
