"""What order points say of their outputs under `order: any` fits a packet, and comes back as it was."""

import random

import pytest

from stagepipe import UsageError
from stagepipe.core import Cursor
from stagepipe.runtime.groups import Leaves, Made, pack_made, root_of, unpack_made, with_root, without_root
from stagepipe.runtime.place import BehindAnyOrder, place_at

ROOM = 3000


@pytest.mark.parametrize(
    "made",
    [
        Made(None, 7, (((7,), (9,), (8,)),), ()),
        Made(None, 0, (), None, exact=False),
        Made(None, 2, (((2, 0), (2, 1, 3)), ((5,),)), (((1 << 40,), (3,)),)),
        Made(Cursor(Cursor(None, 3), 4, (4, 1)), 2, (), ((),)),
    ],
)
def test_it_comes_back(made):
    assert unpack_made(pack_made(made)) == made


def test_the_group_of_a_batch_of_a_thousand_items_in_disorder_fits():
    keys = [(number,) for number in range(100_000, 101_024)]
    random.Random(1).shuffle(keys)
    made = Made(None, 99_990, (tuple(keys),), ())
    assert len(pack_made(made)) < ROOM
    assert unpack_made(pack_made(made)) == made


def test_of_a_group_that_is_too_large_the_items_travel_and_their_order_does_not():
    keys = [(number,) for number in range(20_000)]
    random.Random(1).shuffle(keys)
    packed = pack_made(Made(None, 0, (tuple(keys),), ()))
    assert len(packed) < ROOM
    assert unpack_made(packed) == Made(None, 0, (tuple(sorted(keys)),), (), exact=False)


def test_inside_the_rows_of_such_a_group_no_place_can_be_told_and_behind_it_one_can():
    packed = pack_made(Made(None, 3, (((2,), (4,)),), (), exact=False))
    place = BehindAnyOrder(Cursor(), 1)
    place.leaf((0, 0), packed)
    with pytest.raises(UsageError, match="no place inside the rows of so large a batch"):
        _ = place.cursor
    place.end(0, packed)
    assert place.cursor == Cursor(Cursor(None, 3, out=frozenset({(4,)})), 1)


def test_inside_the_rows_of_a_group_the_place_says_what_it_is_made_of():
    place = place_at(Cursor(), 1, any_order=True)
    place.leaf((0, 0), pack_made(Made(None, 3, (((4,), (2,)),), ())))
    assert place.cursor == Cursor(Cursor(groups=(((4,), (2,)),)), 0, (0, 0))


def test_a_root_is_taken_from_a_cursor_of_any_depth_and_put_under_it_again():
    root = Cursor(None, 5, out=frozenset({(6,)}))
    deep = Cursor(Cursor(root, 4, (4, 0)), 2)
    assert root_of(deep, 2) == root
    assert with_root(without_root(deep, 2), root) == deep
    assert with_root(without_root(None, 2), root) == Cursor(Cursor(root))
    assert root_of(None, 2) == Cursor()


def test_what_lies_below_the_lowest_open_item_is_forgotten():
    leaves = Leaves(Cursor(None, 3, out=frozenset({(5,)})))
    leaves.add([(4,), (7,)])
    leaves.raise_floor(6)
    assert leaves.cursor() == Cursor(None, 6, out=frozenset({(7,)}))
