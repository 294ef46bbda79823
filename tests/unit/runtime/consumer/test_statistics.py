"""The delivery statistics: counts, waits, the thinned curve, and the time outside iterations."""

from time import sleep

from stagepipe.runtime.consumer import statistics as statistics_module
from stagepipe.runtime.consumer.statistics import DeliveryStatistics, OutsideClock

MS = 1_000_000


def test_items_and_samples_are_counted_and_the_first_one_is_timed():
    statistics = DeliveryStatistics()
    statistics.wait_ns = 5
    for _ in range(3):
        statistics.count_item(32)
        statistics.wait_ns += 7
    snapshot = statistics.take_snapshot()
    assert (snapshot.items, snapshot.samples) == (3, 96)
    assert (snapshot.wait_ns, snapshot.first_wait_ns) == (26, 5)
    assert 0 < snapshot.first_item_ns < snapshot.wall_ns
    assert [samples for _, samples in snapshot.points] == [32, 64, 96]


def test_a_snapshot_does_not_change_and_the_clock_stops_at_the_end():
    statistics = DeliveryStatistics()
    statistics.count_item(1)
    statistics.end()
    before = statistics.take_snapshot()
    sleep(0.01)
    assert statistics.take_snapshot() == before
    statistics.count_item(1)
    assert (before.items, len(before.points)) == (1, 1)


def test_the_curve_of_a_long_run_stays_short_and_spans_it(monkeypatch):
    monkeypatch.setattr(statistics_module, "_MAX_DELIVERY_POINTS", 8)
    statistics = DeliveryStatistics()
    for _ in range(1000):
        statistics.count_item(1)
    samples = [samples for _, samples in statistics.take_snapshot().points]
    assert 4 <= len(samples) < 8
    assert samples[0] == 1
    assert samples[-1] > 700
    assert samples == sorted(samples)


def test_time_outside_counts_between_iterations_only():
    clock = OutsideClock()
    first = clock.begin_iteration()
    sleep(0.01)
    assert clock.read(10**18) == 0, "an iteration is under way"
    clock.end_iteration(first)
    sleep(0.02)
    second = clock.begin_iteration()
    outside_ns = clock.read(0)
    assert 20 * MS <= outside_ns < 10_000 * MS
    clock.end_iteration(first)  # an abandoned iterator is collected late
    assert clock.read(10**18) == outside_ns
    clock.end_iteration(second)
    assert clock.read(10**18) > outside_ns
