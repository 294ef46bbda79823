"""benchmarks.readme draws the plot of README.md, and fills its table and the summary of docs/measured.md."""

import html
import re

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


def test_the_summary_is_that_of_the_committed_figures():
    text = readme.MEASURED.read_text()
    assert text.count("times faster |") >= 3
    assert readme.replace_summary(text) == text
    assert readme.replace_summary(text.replace("times faster |", "times |", 1)) == text


def test_the_jobs_of_readme_are_those_of_the_committed_figures():
    text = readme.README.read_text()
    assert "plain loop: 404,428 | **0.23 [" in text  # what is lost is shown
    assert readme.replace_jobs(text) == text
    assert readme.replace_jobs(text.replace("404,428", "40,428")) == text


def test_the_plot_of_readme_is_that_of_the_committed_figures(tmp_path):
    readme.draw_plot(tmp_path / "hop.svg")
    made, kept = (path.read_text() for path in (tmp_path / "hop.svg", readme.PLOT))
    assert find_markers(made) == find_markers(kept)
    assert len(find_markers(kept)) >= 25


def find_markers(svg):
    """The places of the points, to a pixel; the rest differs between versions of matplotlib."""
    points = re.findall(r'<use xlink:href="#\w+" x="([\d.]+)" y="([\d.]+)" style="fill: #\w+; stroke: #\w+', svg)
    return [(round(float(x)), round(float(y))) for x, y in points]


def test_readme_is_short():
    text = readme.README.read_text()
    assert len(text.splitlines()) <= 130
    assert len(re.findall(r"(?<!!)\[[^]]+\]\([^)]+\)", text)) <= 12


def test_the_picture_shows_a_fix_that_pays():
    svg = html.unescape((readme.ROOT / "docs" / "pictures" / "report.svg").read_text()).replace("\xa0", " ")
    assert "try: " in svg
    before, *after = (float(rate.replace(",", "")) for rate in re.findall(r"out, ([\d,.]+) items/s, ", svg))
    assert after
    assert after[-1] > 1.2 * before


def test_the_tables_of_whole_jobs_are_those_of_the_committed_figures():
    text = PAGE.read_text()
    assert "| **stagepipe** |" in text
    assert make_page(RESULTS, text) == text
