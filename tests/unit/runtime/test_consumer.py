"""The consumer's order and position, and its figures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from time import perf_counter_ns, sleep
from typing import Any

import pytest

from stagepipe.config import load
from stagepipe.core import SKIP, Cursor, ImposedSkip
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


def chunk(*key: int, values: list[Any]) -> ReceivedPacket:
    return ReceivedPacket(PacketKind.CHUNK, key, 1, len(values), b"", list(values))


def take(delivery: GenerationDelivery, *packets: ReceivedPacket) -> Iterator[Any]:
    for each in packets:
        for ready in delivery.add(each):
            while ready.value:
                yield ready.value.pop()


def add(delivery: GenerationDelivery, *packets: ReceivedPacket) -> list[Any]:
    return list(take(delivery, *packets))


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
    ready = take(delivery, packet(0))
    assert next(ready) == (0,)
    assert next(ready) == (1,)
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


def resume(delivery: GenerationDelivery, **keys: Any) -> GenerationDelivery:
    return begin(delivery.cursor, **keys)


@pytest.mark.parametrize("order", ["source", "any"])
def test_the_cursor_moves_with_each_value_taken_from_a_chunk(order):
    delivery = begin(order=order)
    taken = take(delivery, chunk(0, values=["a", "b"]), chunk(2, values=["c", "d", "e"]))
    for item, value in enumerate("abcde"):
        assert next(taken) == value
        assert delivery.cursor == delivery.cursor == Cursor(None, item + 1)
        assert delivery.next_item == item + 1
    assert next(taken, None) is None
    assert delivery.cursor == Cursor(None, 5)


@pytest.mark.parametrize("taken_items", range(6))
@pytest.mark.parametrize("order", ["source", "any"])
def test_a_chunk_that_came_early_is_delivered_once_over_a_break_at_any_value(order, taken_items):
    packets = [chunk(3, values=[3, 4, 5]), chunk(0, values=[0, 1, 2])]
    delivery = begin(order=order)
    first = list(islice(take(delivery, *packets), taken_items))
    rest = add(resume(delivery, order=order), chunk(0, values=[0, 1]), chunk(2, values=[2, 3, 4, 5]))
    assert sorted(first + rest) == list(range(6))
    assert order == "any" or first + rest == list(range(6))


@pytest.mark.parametrize("order", ["source", "any"])
def test_dropped_items_of_a_chunk_are_passed_over(order):
    values = [SKIP, "a", SKIP, SKIP, "b", SKIP]
    delivery = begin(order=order)
    taken = take(delivery, chunk(0, values=values))
    assert (next(taken), delivery.cursor, delivery.next_item) == ("a", Cursor(None, 2), 2)
    assert (next(taken), delivery.cursor, delivery.next_item) == ("b", Cursor(None, 5), 5)
    assert next(taken, None) is None
    assert (delivery.cursor, delivery.next_item) == (Cursor(None, 6), 6)
    later = add(delivery, chunk(8, values=[SKIP, "d"]), chunk(6, values=[SKIP, "c"]))
    assert later == (["c", "d"] if order == "source" else ["d", "c"])
    assert (delivery.cursor, delivery.next_item) == (Cursor(None, 10), 10)


def test_the_cursor_inside_a_chunk_of_parts_names_the_last_part():
    delivery = begin()
    taken = take(delivery, chunk(0, 0, values=["a", SKIP, "b", "c"]))
    assert (next(taken), delivery.cursor) == ("a", Cursor(None, 0, (0, 0)))
    assert (next(taken), delivery.cursor, delivery.next_item) == ("b", Cursor(None, 0, (0, 2)), 0)
    resumed = resume(delivery)
    assert add(resumed, chunk(0, 0, values=["a", SKIP, "b", "c"])) == ["c"]
    add(resumed, packet(0, kind=PacketKind.END_OF_PARTS, count=4))
    assert resumed.cursor == Cursor(None, 1)


def test_a_single_item_follows_a_chunk_that_was_taken_and_precedes_one_that_was_not():
    delivery = begin()
    assert add(delivery, packet(2), chunk(3, values=["d", "e"])) == []
    taken = take(delivery, chunk(0, values=["a", "b"]))
    cursors = [(value, delivery.cursor.item, delivery.next_item) for value in taken]
    assert cursors == [("a", 1, 1), ("b", 2, 2), ((2,), 3, 2), ("d", 4, 4), ("e", 5, 5)]


MS = 1_000_000


def test_the_items_of_a_slice_are_counted_as_they_are_taken():
    statistics = DeliveryStatistics()
    statistics.count_item(32)
    values = [3, 2, 1]
    statistics.begin_slice(values, 1, perf_counter_ns())
    counts = []
    for _ in range(2):
        values.pop()
        sleep(0.01)
        snapshot = statistics.take_snapshot()
        counts.append((snapshot.items, snapshot.samples))
        assert snapshot.busy_ns >= 10 * MS * len(counts)
    assert counts == [(2, 33), (3, 34)]
    statistics.end_slice(perf_counter_ns())
    snapshot = statistics.take_snapshot()
    assert (snapshot.items, snapshot.samples, statistics.items) == (3, 34, 3)
    sleep(0.01)
    assert statistics.take_snapshot().busy_ns == snapshot.busy_ns, "the caller waits"
    assert [samples for _, samples in snapshot.points] == [32, 33]


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
