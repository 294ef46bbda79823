"""The rounds of a small program, the table of its figures, and the check that all delivered the same."""

from __future__ import annotations

from itertools import count

import pytest

from benchmarks.common.comparison import format_figures, require_same, take_rounds

NAMES = ("Pipe", "ours")


def test_each_contestant_has_a_turn_in_each_round_in_an_order_that_changes():
    turns: list[str] = []

    def take(name: str) -> dict[str, float]:
        turns.append(name)
        return {"us": len(turns)}

    found = take_rounds(NAMES, 4, take)
    assert [len(found[name]["us"]) for name in NAMES] == [4, 4]
    assert {tuple(turns[start : start + 2]) for start in range(0, 8, 2)} == {("Pipe", "ours"), ("ours", "Pipe")}


def test_a_ratio_is_taken_within_a_round():
    rounds = count(1)
    found = take_rounds(NAMES, 1, lambda _: {"us": next(rounds)})
    found["Pipe"]["us"], found["ours"]["us"] = [1.0, 10.0, 100.0], [2.0, 20.0, 200.0]
    title, header, _, ours = format_figures("a hop", found, ["us"], "Pipe")
    assert title == "a hop: medians of 3 rounds, 75 % intervals"
    assert header.split() == ["us", "/", "Pipe"]
    assert ours.split() == ["ours", "20.00", "[2.00,", "200]", "2.00", "[2.00,", "2.00]"]


def test_contestants_that_delivered_something_else_end_the_run():
    require_same({"Pipe": {"check": [1.0, 1.0]}, "ours": {"check": [1.0]}}, "check")
    with pytest.raises(AssertionError, match="the contestants differ in check"):
        require_same({"Pipe": {"check": [1.0]}, "ours": {"check": [2.0]}}, "check")
