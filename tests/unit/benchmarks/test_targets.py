"""A target is met where the whole interval keeps its limit; where a part of it does, it is undecided."""

import pytest

from benchmarks.common.figures import Estimate, Target, estimate, is_met


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
