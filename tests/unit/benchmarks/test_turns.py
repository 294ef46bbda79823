"""The order of turns: every contestant comes first equally often, forwards and backwards."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.common.turn import order


@pytest.mark.parametrize("count", range(1, 13))
def test_each_contestant_comes_first_equally_often(count: int) -> None:
    names = [str(number) for number in range(count)]
    orders = [order(names, number) for number in range(2 * count)]
    assert all(sorted(one) == sorted(names) for one in orders)
    assert Counter(one[0] for one in orders[1::2]) == dict.fromkeys(names, 1)
    assert Counter(one[-1] for one in orders[0::2]) == dict.fromkeys(names, 1)
