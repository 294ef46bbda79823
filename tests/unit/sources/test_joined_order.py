"""The schedule of a mix: proportions, ends, and counts that are found without those before."""

import random
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from stagepipe.sources.joined_order import StopMode, make_phases
from stagepipe.sources.joined_sources import MixSource


def read(source: MixSource, epoch: int = 0, seed: int = 3) -> list[int]:
    order = source.make_order(source.shuffle)
    order.begin(epoch, seed)
    return [order[position] for position in range(len(order))]


def make_mix(*lengths: int, weights: list[float] | None = None, **arguments: object) -> MixSource:
    return MixSource([range(length) for length in lengths], weights=weights, **arguments)


def split(source: MixSource, indices: list[int]) -> list[list[int]]:
    """Return the indices of each part, in the order in which they come."""
    bounds = source.first_indices
    return [[index - first for index in indices if first <= index < last] for first, last in pairwise(bounds)]


def test_proportions_hold_to_an_item_over_every_block():
    source = make_mix(40_000, 40_000, 40_000, weights=[0.7, 0.2, 0.1])
    indices = np.array(read(source))
    parts = indices // 40_000
    for stop in range(1024, len(parts), 1024):
        counts = np.bincount(parts[:stop], minlength=3)
        assert np.all(abs(counts - stop * np.array([0.7, 0.2, 0.1])) <= 1)
    assert abs(len(indices) - 40_000 / 0.7) < 3
    first_parts = parts[:1024].tolist()
    assert max(len(run) for run in "".join(map(str, first_parts)).split("0")) > 3  # random turns, not a pattern


def test_the_first_that_is_exhausted_ends_it():
    source = make_mix(30, 500, weights=[1, 3])
    first, second = split(source, read(source))
    assert first == list(range(30))
    assert second == list(range(len(second)))
    assert 86 <= len(second) <= 92


def test_all_are_read_to_their_end_and_short_ones_begin_again():
    source = make_mix(30, 500, weights=[1, 3], until="all_exhausted")
    first, second = split(source, read(source))
    assert second == list(range(500))
    assert first == [number % 30 for number in range(len(first))]
    assert 164 <= len(first) <= 168


def test_each_pass_of_a_shuffled_part_has_another_order():
    source = make_mix(30, 500, weights=[1, 3], until="all_exhausted", shuffle=True)
    first, second = split(source, read(source))
    assert sorted(second) == list(range(500))
    passes = [first[start : start + 30] for start in range(0, 150, 30)]
    assert all(sorted(one) == list(range(30)) for one in passes)
    assert len({tuple(one) for one in passes}) == 5


def test_each_item_comes_once():
    source = make_mix(30, 500, 10, 70, weights=[1, 3, 0.1, 2], until="each_once")
    assert len(make_phases([30, 500, 10, 70], source._weights, "each_once")) == 4
    for shuffle in (False, True):
        source.shuffle = shuffle
        parts = split(source, read(source))
        assert [sorted(part) for part in parts] == [list(range(count)) for count in (30, 500, 10, 70)]


@pytest.mark.parametrize("until", ["first_exhausted", "all_exhausted", "each_once"])
def test_any_position_is_found_without_those_before(until: StopMode):
    source = make_mix(300, 5000, 40, weights=[1, 3, 0.2], until=until, shuffle=True)
    indices = read(source, epoch=2)
    rnd = random.Random(1)
    order = source.make_order(True)
    for position in rnd.sample(range(len(indices)), 20):
        order.begin(2, 3)
        assert order[position] == indices[position]


def test_epochs_and_seeds_differ_in_turns_but_not_in_length():
    source = make_mix(300, 5000, weights=[1, 3])
    readings = [read(source, epoch, seed) for epoch in range(2) for seed in range(2)]
    assert len({tuple(one) for one in readings}) == 4
    assert len({len(one) for one in readings}) == 1
    assert read(source, 1, 1) == readings[3]


def test_a_rare_source_gets_its_share():
    phases = make_phases([10**9, 10**9], [Fraction(1), Fraction("1e-5")], "first_exhausted")
    assert phases[0].length == pytest.approx(10**9 * 1.00001, rel=1e-6)
    assert phases[0].count_all().tolist() == pytest.approx([10**9, 10**4], rel=1e-3)


def test_a_mix_of_mixes_keeps_the_inner_proportions():
    inner = make_mix(400, 400, weights=[1, 3])
    outer = MixSource([inner, range(1000)], weights=[1, 1])
    counts = Counter(min(index // 400, 2) for index in read(outer))
    assert counts[2] == pytest.approx(counts[0] + counts[1], abs=2)
    assert counts[1] == pytest.approx(3 * counts[0], abs=4)
