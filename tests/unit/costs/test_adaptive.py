"""A hop's rule follows the measured costs: a wrong curve is corrected, a right one is kept, and no rule oscillates."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepipe.costs import (
    MIN_MESSAGES_FOR_MEDIAN,
    CostCurve,
    CostCurves,
    CostMeasurement,
    negotiate,
    predict_hop_cost,
    revise_rule,
    summarize_ledgers,
)
from stagepipe.timing import LEDGER_WORDS, CostLedger, TransferKind

TRUE = CostCurves.from_points(
    (64, 3500, 4096, 65_536, 1 << 22),
    (8_000, 9_000, 50_000, 130_000, 6_000_000),
    (20_000, 20_000, 21_000, 25_000, 300_000),
)


def scaled(curves: CostCurves, **times: float) -> CostCurves:
    return replace(
        curves,
        **{
            name: CostCurve.from_points(
                getattr(curves, name).sizes, [max(int(ns * by), 1) for ns in getattr(curves, name).ns]
            )
            for name, by in times.items()
        },
    )


def measured(kind: TransferKind, nbytes: int, count: int = 100, curves: CostCurves = TRUE) -> CostMeasurement:
    return CostMeasurement(
        transfer_kind=kind,
        mean_bytes=nbytes,
        count=count,
        cost_ns=(curves.pipe if kind is TransferKind.PIPE else curves.copied)(nbytes),
    )


def test_a_pipe_predicted_ten_times_too_cheap_is_abandoned():
    wrong = scaled(TRUE, pipe=0.1)
    rule = negotiate("auto", None, (1, 1), wrong)
    assert rule.threshold_bytes > 65_536
    change = revise_rule(rule, [measured(TransferKind.PIPE, 65_536)], wrong, is_one_to_one=True)
    assert change is not None
    assert change.after.threshold_bytes < 65_536
    assert change.messages == 100
    assert "130 µs" in change.reason
    assert "13 µs" in change.reason


def test_shared_memory_predicted_ten_times_too_cheap_is_abandoned():
    wrong = scaled(TRUE, copied=0.1)
    rule = negotiate("auto", None, (2, 2), wrong)
    assert rule.threshold_bytes <= 2000
    change = revise_rule(rule, [measured(TransferKind.COPIED, 2500)], wrong, is_one_to_one=False)
    assert change is not None
    assert change.after.threshold_bytes > 2500


@given(st.floats(0.6, 3.5), st.sampled_from([200, 3000, 20_000, 1 << 20]), st.sampled_from([(1, 1), (2, 3)]))
def test_a_slower_machine_changes_no_rule(slowdown, nbytes, sides):
    rule = negotiate("auto", None, sides, TRUE)
    kind = TransferKind.PIPE if nbytes < rule.threshold_bytes else TransferKind.COPIED
    slower = replace(measured(kind, nbytes), cost_ns=int(measured(kind, nbytes).cost_ns * slowdown))
    assert revise_rule(rule, [slower], TRUE, is_one_to_one=sides == (1, 1)) is None


def test_a_few_messages_change_nothing():
    wrong = scaled(TRUE, pipe=0.1)
    rule = negotiate("auto", None, (1, 1), wrong)
    assert (
        revise_rule(rule, [measured(TransferKind.PIPE, 65_536, MIN_MESSAGES_FOR_MEDIAN - 1)], wrong, is_one_to_one=True)
        is None
    )


def test_cold_blocks_change_nothing():
    rule = negotiate("auto", None, (1, 1), TRUE)
    assert (
        revise_rule(
            rule,
            [CostMeasurement(transfer_kind=TransferKind.COLD_COPY, mean_bytes=65_536, count=500, cost_ns=900_000)],
            TRUE,
            is_one_to_one=True,
        )
        is None
    )


@pytest.mark.parametrize("mode", ["pipe", "shared_memory"])
def test_a_forced_mode_is_kept(mode):
    rule = negotiate(mode, None, (1, 1), TRUE)
    assert (
        revise_rule(
            rule,
            [CostMeasurement(transfer_kind=TransferKind.PIPE, mean_bytes=65_536, count=500, cost_ns=10**9)],
            TRUE,
            is_one_to_one=True,
        )
        is None
    )


@given(st.data())
def test_the_rule_settles_for_any_wrong_curves(data):
    """After at most two changes the hop uses the cheaper transfer kind, or one at most a quarter dearer."""
    times = {name: 10 ** data.draw(st.floats(-1, 1), name) for name in ("pipe", "copied")}
    wrong, is_one_to_one = scaled(TRUE, **times), data.draw(st.booleans())
    nbytes = data.draw(st.sampled_from([500, 3000, 9000, 65_536, 1 << 20]))
    rule = negotiate("auto", None, (1, 1) if is_one_to_one else (2, 1), wrong)
    measurements: dict[TransferKind, CostMeasurement] = {}
    changes = 0
    for _ in range(12):
        kind = TransferKind.PIPE if nbytes < rule.threshold_bytes else TransferKind.COPIED
        count = measurements[kind].count if kind in measurements else 0
        measurements[kind] = measured(kind, nbytes, count + 100)
        change = revise_rule(rule, list(measurements.values()), wrong, is_one_to_one=is_one_to_one)
        if change is None:
            break
        rule, changes = change.after, changes + 1
    assert changes <= 2
    if len(measurements) == 2 and (is_one_to_one or nbytes < 3500):  # both kinds were measured
        cost = measured(TransferKind.PIPE if nbytes < rule.threshold_bytes else TransferKind.COPIED, nbytes).cost_ns
        assert cost <= 1.25 * min(TRUE.pipe(nbytes), TRUE.copied(nbytes))


def ledger(*rows: tuple[TransferKind, int, int]) -> CostLedger:
    filled = CostLedger(np.zeros(LEDGER_WORDS, np.uint64))
    filled.add(*(np.array(column) for column in zip(*rows, strict=True)))
    return filled


def test_the_costs_of_both_sides_are_added_by_kind_and_size():
    sending = [
        ledger(*[(TransferKind.COPIED, 1000, 40)] * 3),
        ledger((TransferKind.COPIED, 1010, 40), (TransferKind.PIPE, 50, 7)),
    ]
    receiving = [ledger(*[(TransferKind.COPIED, 1000, 20)] * 4, (TransferKind.PIPE, 50, 3))]
    pipe, copied = summarize_ledgers(sending, receiving)[::-1]
    if pipe.transfer_kind is not TransferKind.PIPE:
        pipe, copied = copied, pipe
    assert (pipe.mean_bytes, pipe.count, pipe.cost_ns) == (50, 1, 10)
    assert (copied.mean_bytes, copied.count, copied.cost_ns) == (1002, 4, 60)


def test_a_passed_on_block_is_received_as_a_copy():
    (measurement,) = summarize_ledgers(
        [ledger((TransferKind.ZERO_COPY, 9000, 5))], [ledger((TransferKind.COPIED, 9000, 2))]
    )
    assert (measurement.transfer_kind, measurement.cost_ns) == (TransferKind.ZERO_COPY, 7)


def test_a_share_of_a_packet_does_not_make_the_pipe_cheap_for_large_items():
    rule = negotiate("auto", None, (1, 1), TRUE)
    assert rule.threshold_bytes <= 65_536
    packed = CostMeasurement(transfer_kind=TransferKind.PACKED, mean_bytes=70, count=10_000, cost_ns=300)
    large = measured(TransferKind.COPIED, 65_536)
    assert revise_rule(rule, [packed, large], TRUE, is_one_to_one=True) is None
    as_pipe = replace(packed, transfer_kind=TransferKind.PIPE)  # such a pipe would take them all
    assert revise_rule(rule, [as_pipe, large], TRUE, is_one_to_one=True) is not None


def test_a_share_of_a_packet_is_predicted_as_measured():
    packed = CostMeasurement(transfer_kind=TransferKind.PACKED, mean_bytes=70, count=3, cost_ns=300)
    estimate = predict_hop_cost([packed], TRUE)
    assert estimate.as_sent_ns == estimate.pipe_ns == estimate.predicted_median_ns == 300
    assert estimate.shared_memory_ns == 20_000


def test_the_estimate_covers_the_messages_as_sent():
    estimate = predict_hop_cost([measured(TransferKind.PIPE, 64, 3), measured(TransferKind.COPIED, 1 << 22, 1)], TRUE)
    assert estimate.as_sent_ns == (3 * 8000 + 300_000) // 4
    assert estimate.pipe_ns == (3 * 8000 + 6_000_000) // 4
    assert estimate.measured_median_ns == estimate.predicted_median_ns == 8000
