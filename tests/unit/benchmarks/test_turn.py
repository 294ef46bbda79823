"""The order of turns: every contestant comes first equally often, forwards and backwards."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.common.turn import order, take_rounds

NAMES = ("Pipe", "ours")


@pytest.mark.parametrize("count", range(1, 13))
def test_each_contestant_comes_first_equally_often(count: int) -> None:
    names = [str(number) for number in range(count)]
    orders = [order(names, number) for number in range(2 * count)]
    assert all(sorted(one) == sorted(names) for one in orders)
    assert Counter(one[0] for one in orders[1::2]) == dict.fromkeys(names, 1)
    assert Counter(one[-1] for one in orders[0::2]) == dict.fromkeys(names, 1)


def test_each_contestant_has_a_turn_in_each_round_in_an_order_that_changes():
    turns: list[str] = []

    def take(name: str) -> dict[str, float]:
        turns.append(name)
        return {"us": len(turns)}

    found = take_rounds(NAMES, 4, take)
    assert [len(found[name]["us"]) for name in NAMES] == [4, 4]
    assert {tuple(turns[start : start + 2]) for start in range(0, 8, 2)} == {("Pipe", "ours"), ("ours", "Pipe")}
