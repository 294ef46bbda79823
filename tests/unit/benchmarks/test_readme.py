"""benchmarks.readme sums up the committed figures in README.md."""

import pytest

from benchmarks import readme
from benchmarks.common.figures import Estimate
from benchmarks.peers.make_page import PAGE, RESULTS, make_page


@pytest.mark.parametrize(
    "low, value, high, words",
    [
        (22.0, 30.0, 61.0, "30.0 [22.0, 61.0] times faster"),
        (0.4, 0.5, 0.8, "2.00 [1.25, 2.50] times slower"),
        (0.9, 1.1, 1.2, "undecided: 1.10 [0.90, 1.20] times as fast"),
    ],
)
def test_a_ratio_is_said_from_our_side(low, value, high, words):
    assert readme.Comparison("a hop", "1 us", "Pipe: 2 us", Estimate(value, low, high, 0.97)).say() == words


def test_the_table_of_readme_is_that_of_the_committed_figures():
    text = (readme.ROOT / "README.md").read_text()
    assert text.count("times faster |") >= 3
    assert readme.replace_summary(text) == text
    assert readme.replace_summary(text.replace("times faster |", "times |", 1)) == text


def test_the_tables_of_whole_jobs_are_those_of_the_committed_figures():
    text = PAGE.read_text()
    assert "| **stagepipe** |" in text
    assert make_page(RESULTS, text) == text
