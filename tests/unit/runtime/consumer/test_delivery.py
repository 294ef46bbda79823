"""The delivery of a generation: order, position, progress and the end of the segment."""

from typing import Any

import pytest

from stagepipe.config import load
from stagepipe.core import Cursor, ImposedSkip
from stagepipe.costs import CostCurves
from stagepipe.machine import Machine
from stagepipe.plan import make_plan
from stagepipe.runtime.consumer.delivery import GenerationDelivery
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
