"""The consumer's order and position, and its figures."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest

from stagepipe.config import load
from stagepipe.core import Cursor, ImposedSkip
from stagepipe.costs import CostCurves
from stagepipe.machine import Machine
from stagepipe.plan import make_plan
from stagepipe.runtime import consumer
from stagepipe.runtime.consumer import DeliveryStatistics, GenerationDelivery, OutsideClock
from stagepipe.transport import PacketKind, ReceivedPacket
from tests.support.pipelines import pipeline, stage

CURVES = CostCurves.from_points((512, 2048, 4096), (9000, 9500, 40000), (15000, 15000, 15000))
START = Cursor()


class Progress:
    """Stands in for the ProgressPublisher, which needs a board."""

    def __init__(self) -> None:
        self.published: list[int] = []

    def publish(self, consumed_items: int) -> None:
        self.published.append(consumed_items)


def begin(cursor: Cursor = START, **keys: Any) -> GenerationDelivery:
    plan = make_plan(load(pipeline(stage("same", name="a"), **keys)), Machine(2, 1 << 30), CURVES)
    progress: Any = Progress()
    return GenerationDelivery(1, cursor, plan, progress)


def packet(*key: int, kind: PacketKind = PacketKind.ITEM, count: int = 0) -> ReceivedPacket:
    return ReceivedPacket(kind, key, 1, count, b"", key)


def add(delivery: GenerationDelivery, *packets: ReceivedPacket) -> list[Any]:
    return [ready.value for each in packets for ready in delivery.add(each)]


def test_early_items_wait_for_their_turn():
    delivery = begin()
    assert add(delivery, packet(2), packet(1)) == []
    assert add(delivery, packet(0)) == [(0,), (1,), (2,)]
    assert delivery.next_item == 3


@pytest.mark.parametrize("order", ["source", "any"])
def test_the_cursor_moves_with_each_item_that_is_taken(order):
    delivery = begin(order=order)
    for item in range(3):
        assert add(delivery, packet(item)) == [(item,)]
        assert delivery.cursor == Cursor(None, item + 1)


def test_an_iterable_that_is_not_used_up_loses_nothing():
    delivery = begin()
    add(delivery, packet(1), packet(2))
    ready = iter(delivery.add(packet(0)))
    assert next(ready).value == (0,)
    assert next(ready).value == (1,)
    assert delivery.cursor.item == 2
    del ready
    assert add(delivery, packet(3)) == [(2,), (3,)]


def test_the_segment_is_complete_once_everything_before_its_end_is_delivered():
    delivery = begin()
    assert not delivery.is_complete
    assert add(delivery, packet(0, kind=PacketKind.END_OF_SEGMENT, count=2), packet(1)) == []
    assert not delivery.is_complete
    add(delivery, packet(0))
    assert delivery.is_complete


def test_dropped_items_count_as_consumed():
    delivery = begin()
    assert add(delivery, packet(0, kind=PacketKind.TOMBSTONE), packet(1, kind=PacketKind.TOMBSTONE)) == []
    assert delivery.next_item == 2
    assert delivery._progress.published == [1, 2]


def test_the_cursor_inside_an_item_names_its_last_part_and_the_parts_that_failed():
    delivery = begin()
    assert add(delivery, packet(0, 0), packet(0, 1, kind=PacketKind.ERROR_SKIP, count=1)) == [(0, 0)]
    assert delivery.cursor == Cursor(None, 0, (0, 1), skips=frozenset({ImposedSkip("a", (0, 1))}))
    add(delivery, packet(0, kind=PacketKind.END_OF_PARTS, count=2))
    assert delivery.cursor == Cursor(None, 1)


def test_a_delivery_begins_after_its_cursor():
    delivery = begin(Cursor(None, 4, (4, 0)))
    assert add(delivery, packet(3), packet(4, 0), packet(4, 1)) == [(4, 1)]


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
    monkeypatch.setattr(consumer, "_MAX_DELIVERY_POINTS", 8)
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
