"""Targets and their verdicts, ratios within a round, and the check that all contestants delivered the same."""

from __future__ import annotations

from itertools import count

import pytest

from benchmarks.common.figures import Estimate, Target, estimate, format_figures, is_met, require_same
from benchmarks.common.turn import take_rounds


@pytest.mark.parametrize(
    "low, high, at_most, at_least",
    [(1.2, 1.4, True, False), (1.4, 1.6, None, None), (1.6, 1.8, False, True), (1.5, 1.5, True, True)],
)
def test_the_whole_interval_decides(low, high, at_most, at_least):
    found = Estimate((low + high) / 2, low, high, 0.97)
    assert is_met(found, at_most=1.5) is at_most
    assert is_met(found, at_least=1.5) is at_least


def test_five_rounds_decide_nothing():
    assert is_met(estimate([1.0] * 5), at_most=1.5) is None
    assert is_met(estimate([1.0] * 6), at_most=1.5) is True


@pytest.mark.parametrize(
    "target, line",
    [
        (Target("fast", "1.2", True), "PASS  fast: 1.2"),
        (Target("fast", "1.8", False), "MISS  fast: 1.8"),
        (Target("fast", "1.5"), "undecided  fast: 1.5"),
        (Target("fast"), "  --  fast: not measured in this run"),
    ],
)
def test_a_line_names_the_verdict(target, line):
    assert target.line() == line


NAMES = ("Pipe", "ours")


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
