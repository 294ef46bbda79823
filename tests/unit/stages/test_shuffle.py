"""Shuffle permutes each block, depending on the generator alone."""

import random

import pytest

from stagepipe.stages import OrderPointStage, Shuffle


def blocks(values: range, size: int, seed: int) -> list[list[int]]:
    shuffle, out = Shuffle(size), []
    for value in values:
        if shuffle.add(value, 1):
            out.append([v for v, _ in shuffle.flush(random.Random(seed + len(out)))])
    rest = shuffle.finish(random.Random(seed + len(out)))
    return [*out, [v for v, _ in rest]] if rest else out


def test_it_is_an_order_point():
    assert isinstance(Shuffle(2), OrderPointStage)


def test_every_block_is_a_permutation_of_its_own_items():
    shuffled = blocks(range(10), 4, seed=0)
    assert [sorted(block) for block in shuffled] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert shuffled != [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_order_depends_only_on_the_seed():
    assert blocks(range(50), 20, seed=3) == blocks(range(50), 20, seed=3)
    assert blocks(range(50), 20, seed=3) != blocks(range(50), 20, seed=4)


def test_a_block_can_be_repeated_by_itself():
    assert blocks(range(20, 40), 20, seed=4) == blocks(range(40), 20, seed=3)[1:]


def test_samples_stay_with_their_values():
    shuffle = Shuffle(3)
    for value, samples in zip("abc", (1, 2, 3), strict=True):
        shuffle.add(value, samples)
    assert sorted(shuffle.flush(random.Random(0))) == [("a", 1), ("b", 2), ("c", 3)]


def test_clear_discards_the_block():
    shuffle = Shuffle(3)
    shuffle.add("a", 1)
    shuffle.clear()
    assert shuffle.finish(random.Random(0)) == []


def test_an_invalid_size_is_refused():
    with pytest.raises(ValueError, match="Shuffle: size is 0"):
        Shuffle(0)
