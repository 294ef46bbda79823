"""Computes the cost of a message over a hop on this machine, and chooses the hop's transport. Pure.

A cost curve gives the cost of a message by its size, as straight lines between measured points. `negotiate` derives the
rule of a hop from the curves. `decide_transfer` prices the placement of an item by the rule, and names the figures
behind it.

`revise_rule` corrects a rule during a run, because a calibration can be wrong: it may be old, come from a busy machine
or from one thread. It scales each curve to the costs measured at the sizes that the hop carried, and computes the
threshold from the scaled curves. It ignores messages that share a packet: a share costs less than a separate message of
that size. Hysteresis prevents oscillation: a change must save at least a fifth and rest on enough messages. The curve
of a transfer kind without measurements is scaled by the error of the other kind, up to a factor of four, because a busy
machine slows both. A larger error is assumed to affect one curve only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import msgspec
import numpy as np

from stagepipe.core import format_bytes, format_ns
from stagepipe.timing import CostLedger, LedgerEntry, TransferKind
from stagepipe.transport import (
    ALWAYS_PIPE_THRESHOLD_BYTES,
    MAX_INLINE_BYTES,
    PIPE,
    SHARED_MEMORY,
    Placement,
    TransportRule,
    Way,
    find_transport_target,
    load_transport,
)

_CROSSOVER_SAMPLES = 400
"""Number of sizes, from the smallest to the largest, at which two curves are compared."""

_MAX_VALUE = 1 << 53
"""The largest size and cost, in bytes and ns: the integers up to it are exact as floats."""


@dataclass(frozen=True)
class CostCurve:
    """The cost in ns of a message with one buffer of `sizes` bytes, both sides added.

    `ns` holds the medians, `low_ns` and `high_ns` the quartiles. None of them falls as the size grows.

    >>> curve = CostCurve.from_points((1000, 3000), (10, 30))
    >>> curve(2000), curve(5000)
    (20, 50)
    """

    sizes: tuple[int, ...]
    ns: tuple[int, ...]
    low_ns: tuple[int, ...]
    high_ns: tuple[int, ...]

    @classmethod
    def from_points(cls, sizes: Sequence[int], ns: Sequence[int]) -> CostCurve:
        """A curve through exact points: the quartiles equal the medians."""
        return cls(tuple(sizes), tuple(ns), tuple(ns), tuple(ns))

    @classmethod
    def fit(cls, sizes: Sequence[int], samples_ns: Sequence[Sequence[int]]) -> CostCurve:
        """A curve through the medians of `samples_ns`, which holds the measurements at each of `sizes`."""
        low, middle, high = (
            np.maximum(_fit_isotonic([float(np.quantile(samples, quantile)) for samples in samples_ns]), 1)
            for quantile in (0.25, 0.5, 0.75)
        )
        return cls(tuple(sizes), *(tuple(int(value) for value in costs) for costs in (middle, low, high)))

    def __call__(self, nbytes: float) -> int:
        """The cost of `nbytes` in ns. Beyond the last point, the last line continues."""
        return int(self.evaluate_ns(np.array([nbytes]))[0])

    def evaluate_ns(self, nbytes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The costs of many sizes at once, in ns."""
        slope = (self.ns[-1] - self.ns[-2]) / (self.sizes[-1] - self.sizes[-2])
        beyond = np.maximum(nbytes - self.sizes[-1], 0) * max(slope, 0)
        costs: np.ndarray[Any, Any] = np.interp(nbytes, self.sizes, self.ns) + beyond
        return costs

    @property
    def is_sound(self) -> bool:
        """Whether two or more rising sizes above 0 have a cost above 0 each, and all numbers are in range."""
        rows = (self.sizes, self.ns, self.low_ns, self.high_ns)
        rising = all(a < b for a, b in itertools.pairwise(self.sizes))
        in_range = all(0 <= value <= _MAX_VALUE for row in rows for value in row)
        same_length = {len(row) for row in rows} == {len(self.sizes)}
        return same_length and len(self.sizes) > 1 and rising and in_range and min(self.sizes[0], *self.ns) > 0

    @property
    def relative_iqr(self) -> float:
        """The interquartile range as a share of the median; the median over all points."""
        return float(
            np.median([(high - low) / ns for low, ns, high in zip(self.low_ns, self.ns, self.high_ns, strict=True)])
        )


@dataclass(frozen=True, kw_only=True)
class CostCurves:
    """The cost of carrying a message by each transfer kind: copy, send and receive. Pickling costs the same in all.

    pipe               through the pipe
    copied             copied into a block whose pages were used before
    cold               copied into a block whose pages were never touched
    loaned             made in a block by the stage
    passed_on          received in a block and sent on
    extra_buffer_ns    each buffer after an item's first: (in the pipe, in a block)
    timing_ns_per_hop  the cost of the timing itself
    measured_at        an ISO 8601 date
    """

    pipe: CostCurve
    copied: CostCurve
    cold: CostCurve
    loaned: CostCurve
    passed_on: CostCurve
    extra_buffer_ns: tuple[int, int] = (0, 0)
    timing_ns_per_hop: int = 0
    measured_at: str = ""

    @classmethod
    def from_points(
        cls, sizes: Sequence[int], pipe_ns: Sequence[int], copied_ns: Sequence[int], uncopied_ns: int = 1
    ) -> CostCurves:
        """Curves through exact points: one for the pipe, one for copies, and a flat one for uncopied blocks.

        >>> CostCurves.from_points((1000, 2000, 3000), (10, 20, 30), (15, 16, 17)).find_crossover_bytes()
        1557
        """
        flat = CostCurve.from_points(sizes, [uncopied_ns] * len(sizes))
        copied = CostCurve.from_points(sizes, copied_ns)
        pipe = CostCurve.from_points(sizes, pipe_ns)
        return cls(pipe=pipe, copied=copied, cold=copied, loaned=flat, passed_on=flat)

    def find_crossover_bytes(self) -> int:
        """The size from which shared memory is cheaper than the pipe at every larger size."""
        return find_crossover_bytes(self.pipe, self.copied)

    @property
    def relative_iqr(self) -> float:
        """The larger `relative_iqr` of the two curves that decide: `pipe` and `copied`."""
        return max(self.pipe.relative_iqr, self.copied.relative_iqr)

    def to_dict(self) -> dict[str, Any]:
        """The curves as values that JSON can hold."""
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CostCurves:
        """Make the curves from the result of `to_dict`. Raises ValueError for other data."""
        curves = msgspec.convert(data, cls)
        named = [getattr(curves, field.name) for field in fields(cls) if field.type == "CostCurve"]
        if not all(curve.is_sound for curve in named) or not all(
            0 <= value <= _MAX_VALUE for value in (*curves.extra_buffer_ns, curves.timing_ns_per_hop)
        ):
            message = "not cost curves: two or more rising sizes have a cost above 0 each, and none is too large"
            raise ValueError(message)
        return curves


def find_crossover_bytes(pipe: CostCurve, other: CostCurve) -> int:
    """The size from which `other` is cheaper than `pipe` at every larger size; the largest size if there is none."""
    ends = (pipe.sizes[0], max(pipe.sizes[-1], other.sizes[-1]))
    sizes = np.unique(
        np.concatenate((np.geomspace(*ends, _CROSSOVER_SAMPLES).astype(np.int64), pipe.sizes, other.sizes))
    )
    pipe_is_cheaper = np.flatnonzero(pipe.evaluate_ns(sizes) < other.evaluate_ns(sizes))
    return int(sizes[min(pipe_is_cheaper[-1] + 1, len(sizes) - 1)] if len(pipe_is_cheaper) else sizes[0])


def _fit_isotonic(values: list[float]) -> list[float]:
    """The nearest non-decreasing values, by pooling adjacent violators (Barlow et al., 1972)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            previous_mean, previous_count = pools.pop()
            total = mean * count + previous_mean * previous_count
            count += previous_count
            mean = total / count
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


MADE_UP_CURVES: Final = CostCurves.from_points((1, 2), (1, 1), (1, 1))
"""For a plan that is only checked or runs inline: its hops carry no messages."""


@dataclass(frozen=True)
class PayloadBuffer:
    """A buffer of an item: the bytes of an array or tensor. `is_in_arena`: it already lies in shared memory."""

    nbytes: int
    is_in_arena: bool = False
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class TransferDecision:
    """The mode of each buffer of an item, in order, and of its pickle, and the cost of carrying the item.

    `cost_ns` is the cost as decided; `pipe_ns` and `shared_memory_ns` are the costs in either fixed mode.
    """

    modes: tuple[str, ...]
    pickle_mode: str
    cost_ns: int
    pipe_ns: int
    shared_memory_ns: int
    reason: str


def negotiate(mode: str, threshold_bytes: int | None, workers: tuple[int, int], curves: CostCurves) -> TransportRule:
    """Choose the rule of a hop with `workers` processes on its sides. `threshold_bytes` comes from the config.

    >>> curves = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))
    >>> negotiate("auto", None, (1, 1), curves).threshold_bytes
    2419
    """
    is_one_to_one = workers == (1, 1)
    if mode == PIPE:
        reason = "forced by the config"
        if not is_one_to_one:
            reason += "; between several workers the pipe carries only messages that fit a packet"
        return TransportRule(
            mode=PIPE, threshold_bytes=ALWAYS_PIPE_THRESHOLD_BYTES, reason=reason, large_in_pipe=is_one_to_one
        )
    if mode == SHARED_MEMORY:
        return TransportRule(mode=SHARED_MEMORY, threshold_bytes=1, reason="forced by the config")
    if mode != "auto":
        return TransportRule(mode=mode, threshold_bytes=MAX_INLINE_BYTES, reason="forced by the config")
    if threshold_bytes is not None:
        reason = f"threshold {format_bytes(threshold_bytes)} from the config"
        return TransportRule(threshold_bytes=max(threshold_bytes, 1), reason=reason)
    return make_auto_rule(curves, is_one_to_one=is_one_to_one)


def make_auto_rule(curves: CostCurves, *, is_one_to_one: bool) -> TransportRule:
    """The rule of `auto`: shared memory from the size where it is cheaper, or from the packet size if that is smaller.

    Between two single workers the packet size sets no limit, because the pipe can carry an item in pieces.
    """
    crossover_bytes = curves.find_crossover_bytes()
    threshold = crossover_bytes if is_one_to_one else min(crossover_bytes, MAX_INLINE_BYTES)
    reason = (
        f"shared memory from {format_bytes(threshold)} up: {format_ns(curves.copied(threshold))} there, "
        f"{format_ns(curves.pipe(threshold))} by pipe, measured on this machine"
    )
    large_in_pipe = crossover_bytes > MAX_INLINE_BYTES and is_one_to_one
    return TransportRule(threshold_bytes=threshold, reason=reason, large_in_pipe=large_in_pipe)


def decide_transfer(
    buffers: Sequence[PayloadBuffer], rule: TransportRule, curves: CostCurves, *, pickle_bytes: int = 200
) -> TransferDecision:
    """Apply a hop's rule to the buffers of an item. Returns their modes, the costs and the reason.

    `pickle_bytes` is the size of the rest of the item, with its arrays below 3.5 KB. The costs leave out pickling.

    >>> curves = CostCurves.from_points((64, 1 << 20), (5_000, 2_000_000), (9_000, 60_000))
    >>> rule = TransportRule(threshold_bytes=3584)
    >>> decide_transfer([PayloadBuffer(1_200_000, name="image")], rule, curves).reason
    'image, 1.2 MB: shared memory 68 µs, pipe 2.3 ms'
    """
    placement = rule.place([buffer.nbytes for buffer in buffers], pickle_bytes)
    all_inline = Placement(ways=(Way.INLINE,) * len(buffers))
    all_shared = Placement(ways=(Way.SHARED,) * len(buffers), is_pickle_copied=not buffers)
    carried_by = SHARED_MEMORY if rule.mode in {"auto", PIPE} else rule.mode
    target = find_transport_target(rule.mode)
    carry_ns = load_transport(target).estimate_ns if target else curves.copied
    cost_ns, pipe_ns, shared_ns = (
        _price(each, buffers, curves, pickle_bytes, carry)
        for each, carry in ((placement, carry_ns), (all_inline, curves.copied), (all_shared, curves.copied))
    )
    payload = _describe_payload(buffers, pickle_bytes)
    reason = f"{payload}: shared memory {format_ns(shared_ns)}, pipe {format_ns(pipe_ns)}"
    if rule.mode != "auto":
        reason += f"; {rule.mode.replace('_', ' ')} is {rule.reason}"
    return TransferDecision(
        modes=tuple(PIPE if way is Way.INLINE else carried_by for way in placement.ways),
        pickle_mode=carried_by if placement.is_pickle_copied else PIPE,
        cost_ns=cost_ns,
        pipe_ns=pipe_ns,
        shared_memory_ns=shared_ns,
        reason=reason,
    )


def _price(
    placement: Placement,
    buffers: Sequence[PayloadBuffer],
    curves: CostCurves,
    pickle_bytes: int,
    carry_ns: Callable[[int], int],
) -> int:
    """The cost of carrying an item by `placement`. `carry_ns` prices the bytes outside the packet."""
    inline_bytes, copied_bytes = (0, pickle_bytes) if placement.is_pickle_copied else (pickle_bytes, 0)
    inline_count = 0
    passed_on_bytes = 0
    for buffer, way in zip(buffers, placement.ways, strict=True):
        if way is Way.INLINE:
            inline_bytes += buffer.nbytes
            inline_count += 1
        elif way is Way.SHARED and buffer.is_in_arena:
            passed_on_bytes = max(passed_on_bytes, buffer.nbytes)
        else:
            copied_bytes += buffer.nbytes
    extra_inline_ns, extra_shared_ns = curves.extra_buffer_ns
    if not copied_bytes and not passed_on_bytes:
        return curves.pipe(inline_bytes) + extra_inline_ns * max(inline_count - 1, 0)
    shared_ns = carry_ns(copied_bytes) if copied_bytes else curves.passed_on(passed_on_bytes)
    shared_ns += extra_shared_ns * max(len(buffers) - inline_count - 1, 0)
    return shared_ns + curves.pipe(inline_bytes) - curves.pipe(0) + extra_inline_ns * inline_count


def _describe_payload(buffers: Sequence[PayloadBuffer], pickle_bytes: int) -> str:
    total = format_bytes(sum(buffer.nbytes for buffer in buffers))
    if not buffers:
        return f"{format_bytes(pickle_bytes)} of pickle"
    if len(buffers) == 1:
        return f"{buffers[0].name or 'one buffer'}, {total}"
    largest = max(buffers, key=lambda buffer: buffer.nbytes)
    suffix = f" (largest: {largest.name})" if largest.name else ""
    return f"{len(buffers)} buffers{suffix}, {total}"


MIN_MESSAGES_FOR_MEDIAN = 32
"""Messages of one transfer kind and size from which a median is trusted."""
_MAX_COST_RATIO = 0.8
"""A change is made only if the other transfer kind costs less than this share of the current one."""
_MAX_COMMON_ERROR_RATIO = 4.0
"""Up to this factor, an error is attributed to the machine's load, which slows both transfer kinds."""


@dataclass(frozen=True, kw_only=True)
class CostMeasurement:
    """Messages of one transfer kind and of similar size.

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

    The receiver cannot tell a copied block from one that was passed on. Both cost it the same.
    """
    sent, received = _merge_ledgers(send_ledgers), _merge_ledgers(receive_ledgers)
    measurements = []
    for (transfer_kind, bits), entry in sent.items():
        is_in_packet = transfer_kind in {TransferKind.PIPE, TransferKind.PACKED}
        receive_kind = transfer_kind if is_in_packet else TransferKind.COPIED
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
        if measurement.count >= MIN_MESSAGES_FOR_MEDIAN
        and measurement.transfer_kind not in {TransferKind.COLD_COPY, TransferKind.PACKED}
    ]
    if rule.mode != "auto" or not trusted:
        return None
    corrected = correct_curves(curves, trusted)
    after = make_auto_rule(corrected, is_one_to_one=is_one_to_one)
    best: tuple[int, CostMeasurement] | None = None
    for measurement in trusted:
        by_pipe = measurement.transfer_kind is TransferKind.PIPE
        if by_pipe is not _is_below_threshold(rule, measurement) or by_pipe is _is_below_threshold(after, measurement):
            continue  # the current rule did not choose this kind, or the new rule keeps it
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
    return {m.mean_bytes: max(m.cost_ns, 1) / curve(m.mean_bytes) for m in measurements}


def _compute_common_error_ratio(error_ratios: Mapping[int, float]) -> float:
    """The error to assume for the other transfer kind: the median ratio, or 1 if that is out of bounds."""
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

    `pipe_ns`, `shared_memory_ns` and `as_sent_ns` are means: with all messages by pipe, with all through shared memory,
    and as they were sent. The medians describe the messages as they were sent.
    """

    pipe_ns: int = 0
    shared_memory_ns: int = 0
    as_sent_ns: int = 0
    predicted_median_ns: int = 0
    measured_median_ns: int = 0


def predict_hop_cost(measurements: Sequence[CostMeasurement], curves: CostCurves) -> HopCostEstimate:
    """Predict, from the curves, the cost of the messages that a hop carried.

    Messages that share a packet count with their measured cost, because no curve covers them.

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
        is_packed = measurement.transfer_kind is TransferKind.PACKED
        return measurement.cost_ns if is_packed else curves.pipe(measurement.mean_bytes)

    def shared_memory_ns(measurement: CostMeasurement) -> int:
        return shared_curves.get(measurement.transfer_kind, curves.copied)(measurement.mean_bytes)

    def as_sent_ns(measurement: CostMeasurement) -> int:
        is_in_packet = measurement.transfer_kind in {TransferKind.PIPE, TransferKind.PACKED}
        return (pipe_ns if is_in_packet else shared_memory_ns)(measurement)

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
