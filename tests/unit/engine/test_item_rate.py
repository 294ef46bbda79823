"""The rate of a progress bar: never 0.0 between two batches, and at most 5 s behind a change."""

import pytest

from stagepipe.engine.item_rate import RateEstimator

SECOND = 1_000_000_000


def rates(counts, step=0.2):
    rate = RateEstimator()
    return [rate.update(int(tick * step * SECOND), count) for tick, count in enumerate(counts)]


def test_a_constant_flow_has_its_own_rate():
    assert rates(range(1, 100))[50:] == [pytest.approx(5.0)] * 49


def test_it_does_not_fall_to_zero_between_two_batches_that_are_ten_seconds_apart():
    counts = [256 * (tick // 50) for tick in range(500)]  # one batch of 256 every 10 s
    assert all(25.6 / 2 < rate <= 26 for rate in rates(counts)[110:])


def test_it_follows_a_change_within_seconds():
    counts = [*range(100), *(100 + 10 * tick for tick in range(60))]
    assert rates(counts)[-1] == pytest.approx(50)


def test_the_start_does_not_count():
    assert rates([0] * 100 + list(range(1, 20)))[-1] == pytest.approx(5)
    assert rates([0] * 100)[-1] == 0
