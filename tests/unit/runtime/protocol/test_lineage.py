"""The lineage of an order point's output survives packing, is small without skips, and fits a packet."""

import random
from typing import Any

import msgspec
import pytest

from stagepipe import UsageError
from stagepipe.core import Cursor, ImposedSkip
from stagepipe.runtime.consumer import DownstreamPosition, make_position
from stagepipe.runtime.protocol import (
    DeliveredLeaves,
    LeafGroup,
    OutputLineage,
    UnorderedLineage,
    attach_root,
    detach_root,
    extract_root,
    pack_lineage,
    unpack_lineage,
    unpack_unordered_lineage,
)


def test_a_lineage_survives_packing():
    lineage = OutputLineage(
        Cursor(Cursor(None, 7), 3, (2, 1)), 4, 9, frozenset({ImposedSkip("decode", (5,)), ImposedSkip("cut", (6, 1))})
    )
    assert unpack_lineage(pack_lineage(lineage)) == lineage
    assert unpack_lineage(b"") == OutputLineage()


def test_a_lineage_without_skips_is_a_few_bytes_larger_than_its_cursor():
    cursor = Cursor(None, 512, (511,))
    assert len(pack_lineage(OutputLineage(cursor, 256, 512))) <= len(msgspec.msgpack.encode(cursor)) + 12


def test_hundreds_of_skips_fit_and_more_are_dropped():
    def with_skips(count: int) -> OutputLineage:
        skips = frozenset(ImposedSkip("decode", (number * 3,)) for number in range(count))
        return OutputLineage(Cursor(None, 0, None, 2, skips), 0, 5000, skips)

    assert unpack_lineage(pack_lineage(with_skips(500))) == with_skips(500)
    assert unpack_lineage(pack_lineage(with_skips(50_000))) == OutputLineage(Cursor(None, 0, None, 2), 0, 5000)


PACKET_ROOM_BYTES = 3000


def lineage(low_watermark: int, *consumed_groups: LeafGroup, **fields: Any) -> UnorderedLineage:
    return UnorderedLineage(low_watermark=low_watermark, consumed_groups=consumed_groups, **fields)


@pytest.mark.parametrize(
    "original",
    [
        lineage(7, ((7,), (9,), (8,))),
        lineage(0, open_groups=None, has_exact_order=False),
        lineage(2, ((2, 0), (2, 1, 3)), ((5,),), open_groups=(((1 << 40,), (3,)),)),
        lineage(2, resume_cursor=Cursor(Cursor(None, 3), 4, (4, 1)), open_groups=((),)),
    ],
)
def test_a_lineage_of_any_order_survives_packing(original):
    assert unpack_unordered_lineage(pack_lineage(original)) == original


def test_an_unsorted_group_of_a_thousand_items_fits():
    keys = [(number,) for number in range(100_000, 101_024)]
    random.Random(1).shuffle(keys)
    shuffled = lineage(99_990, tuple(keys))
    assert len(pack_lineage(shuffled)) < PACKET_ROOM_BYTES
    assert unpack_unordered_lineage(pack_lineage(shuffled)) == shuffled


def test_a_group_that_is_too_large_keeps_its_items_and_loses_their_order():
    keys = [(number,) for number in range(20_000)]
    random.Random(1).shuffle(keys)
    packed = pack_lineage(lineage(0, tuple(keys)))
    assert len(packed) < PACKET_ROOM_BYTES
    assert unpack_unordered_lineage(packed) == lineage(0, tuple(sorted(keys)), has_exact_order=False)


def test_a_group_without_order_has_no_cursor_inside_its_rows_and_one_after_them():
    packed = pack_lineage(lineage(3, ((2,), (4,)), has_exact_order=False))
    position = DownstreamPosition(Cursor(), 1)
    position.mark_delivered((0, 0), packed)
    with pytest.raises(UsageError, match="a state cannot be saved between the rows of a batch this large"):
        _ = position.cursor
    position.mark_item_complete(0, packed)
    assert position.cursor == Cursor(Cursor(None, 3, emitted_keys=frozenset({(4,)})), 1)


def test_the_cursor_inside_the_rows_of_a_group_names_its_leaves():
    position = make_position(Cursor(), 1, any_order=True)
    position.mark_delivered((0, 0), pack_lineage(lineage(3, ((4,), (2,)))))
    assert position.cursor == Cursor(Cursor(replay_groups=(((4,), (2,)),)), 0, (0, 0))


def test_a_root_can_be_detached_from_a_cursor_of_any_depth_and_attached_again():
    root = Cursor(None, 5, emitted_keys=frozenset({(6,)}))
    deep = Cursor(Cursor(root, 4, (4, 0)), 2)
    assert extract_root(deep, 2) == root
    assert attach_root(detach_root(deep, 2), root) == deep
    assert attach_root(detach_root(None, 2), root) == Cursor(Cursor(root))
    assert extract_root(None, 2) == Cursor()


def test_leaves_below_the_lowest_open_item_are_forgotten():
    leaves = DeliveredLeaves(Cursor(None, 3, emitted_keys=frozenset({(5,)})))
    leaves.add([(4,), (7,)])
    leaves.advance_watermark(6)
    assert leaves.to_cursor() == Cursor(None, 6, emitted_keys=frozenset({(7,)}))
