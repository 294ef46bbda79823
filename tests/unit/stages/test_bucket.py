"""Bucket brings items of similar length together, each exactly once, the same for the same seed."""

import random

import pytest

from stagepipe.stages import Bucket, OrderPointStage


def group(lengths, seed=0, **arguments):
    bucket = Bucket(**arguments)
    full = [bucket.add("x" * length, 1) for length in lengths]
    assert full == [number == bucket.size * bucket.batches for number in range(1, len(lengths) + 1)]
    return [len(value) for value, _ in bucket.finish(random.Random(seed))]


LENGTHS = random.Random(1).sample(range(1000), 24)


def test_a_run_holds_neighbours_in_length():
    runs = group(LENGTHS, size=4, batches=6)
    ordered = sorted(LENGTHS)
    expected = [ordered[start : start + 4] for start in range(0, 24, 4)]
    assert sorted(runs[start : start + 4] for start in range(0, 24, 4)) == expected
    assert runs != ordered, "the runs are shuffled"


def test_the_order_is_that_of_the_seed():
    arguments = {"size": 4, "batches": 6}
    assert group(LENGTHS, 3, **arguments) == group(LENGTHS, 3, **arguments) != group(LENGTHS, 4, **arguments)
    assert group(LENGTHS, shuffle=False, **arguments) == sorted(LENGTHS)


def test_an_incomplete_run_comes_last_so_that_batches_stay_whole():
    runs = group(LENGTHS[:10], size=4, batches=6)
    assert runs[8:] == sorted(LENGTHS[:10])[8:]


def test_items_of_one_length_keep_their_order():
    bucket = Bucket(size=3, batches=1, field="length")
    items = [{"length": 2, "id": 0}, {"length": 1, "id": 1}, {"length": 2, "id": 2}]
    for item in items:
        bucket.add(item, 5)
    assert bucket.flush(random.Random(0)) == [(items[1], 5), (items[0], 5), (items[2], 5)]
    assert bucket.flush(random.Random(0)) == []


def test_it_is_a_permutation():
    assert isinstance(Bucket(2), OrderPointStage)
    assert Bucket.is_permutation


@pytest.mark.parametrize(
    "item, field, error, words",
    [
        ({"a": 1}, None, TypeError, "Bucket: the item is a dict; name the field that has the length in `field`"),
        ({"a": 1}, "b", KeyError, "the item has no field `b`; it has `a`"),
        ({"a": None}, "a", TypeError, "`a` is of type NoneType, which has no length"),
        ({"a": 2.5}, "a", TypeError, "`a` is of type float, which has no length"),
    ],
)
def test_an_item_without_a_length_is_refused(item, field, error, words):
    with pytest.raises(error, match=words):
        Bucket(2, field=field).add(item, 1)


def test_a_wrong_argument_is_refused():
    with pytest.raises(ValueError, match="Bucket: size is 0"):
        Bucket(0)
    with pytest.raises(ValueError, match="Bucket: batches is 0"):
        Bucket(2, batches=0)
