"""benchmarks/published and benchmarks/crossover: intervals over rounds, ratios of the figures shown, and verdicts."""

import pytest

from benchmarks.common.figures import estimate
from benchmarks.common.page import fill
from benchmarks.crossover import CONTESTANTS, lines, targets
from benchmarks.crossover import Row as CrossoverRow
from benchmarks.published import Cell, Turn
from benchmarks.published.make_page import experiment_tables, losses, reference
from benchmarks.published.make_page import targets as published_targets
from benchmarks.published.results import summarise

PAYLOAD = "70,000 x 784"
OURS = "stagepipe, responder copies"


def turns(**rounds_by_contestant):
    """Return E1's turns; each value is a list of rounds, each a list of transfers in ms."""
    return [
        Turn("E1", name, number, cells=[Cell(PAYLOAD, ns=[round(ms * 1e6) for ms in transfers])])
        for name, rounds in rounds_by_contestant.items()
        for number, transfers in enumerate(rounds)
    ]


def e1(**rounds_by_contestant):
    return summarise(turns(**rounds_by_contestant), "default")


def rows(summary):
    return {row.contestant.name: row for row in summary["E1"]}


def verdict(summary):
    return " ".join(" ".join(published_targets(summary)).split())


def test_an_interval_is_over_the_medians_of_the_rounds():
    figure = rows(e1(TCP=[[10, 11, 12], [20, 21, 22], [30, 31, 32]]))["TCP"].figures[PAYLOAD]
    assert figure.ns == estimate([11e6, 21e6, 31e6])
    assert figure.rounds == 3


def test_many_transfers_of_one_round_do_not_narrow_it():
    few = rows(e1(TCP=[[10], [30]]))["TCP"].figures[PAYLOAD].ns
    assert rows(e1(TCP=[[10] * 50, [30]]))["TCP"].figures[PAYLOAD].ns == few


def test_the_ratio_is_that_of_the_figures_shown():
    found = rows(e1(**{"TCP": [[10], [40], [90]], OURS: [[1], [20], [9]]}))
    ratio = found["TCP"].slower_than(found[OURS], PAYLOAD)
    assert ratio.value == pytest.approx(40 / 9)
    assert (ratio.low, ratio.high) == (10 / 20, 90 / 1)


@pytest.mark.parametrize(
    "other, words",
    [
        ([[20], [30]], "met in all 1"),
        ([[5], [30]], "met in 0 of 1; undecided in 1, whose intervals straddle 1: TCP"),
        ([[5], [6]], "met in 0 of 1; **missed** in 1, against TCP"),
    ],
)
def test_an_interval_that_straddles_1_is_undecided(other, words):
    summary = e1(**{"TCP": other, OURS: [[10], [11]]})
    assert words in verdict(summary)
    assert ("TCP" in "".join(losses(summary))) == ("all" not in words)


def test_a_contestant_is_compared_with_the_row_of_the_same_work():
    names = ("stagepipe", OURS, "stagepipe, responder copies in place", "TCP", "anonymous mmap, reused")
    summary = e1(**{name: [[10]] for name in (*names, "anonymous mmap, reused, responder copies")})
    found = {name: reference("E1", summary["E1"], row).contestant.name for name, row in rows(summary).items()}
    assert found["TCP"] == OURS
    assert found["anonymous mmap, reused"] == "stagepipe"
    assert found["anonymous mmap, reused, responder copies"] == "stagepipe, responder copies in place"


def test_a_table_has_the_number_of_rounds_and_their_coverage():
    table = "\n".join(experiment_tables("E1", e1(**{OURS: [[10]] * 6, "TCP": [[20]] * 3}), {}))
    assert "| 6 (97 %) |" in table
    assert "| 3 (75 %) |" in table


@pytest.mark.parametrize(
    "auto, met, words",
    [
        ([10.0] * 6, True, "the largest ratio is 1.00"),
        ([5.0, 6.0, 15.7, 16.0, 17.0, 30.0], None, "undecided at d = 2 (1.58 [0.50, 3.00])"),
        ([20.0] * 6, False, "missed at d = 2 (2.00"),
    ],
)
def test_the_crossover_is_undecided_where_the_interval_straddles_the_limit(auto, met, words):
    measured = [CrossoverRow(name, 2, auto if name == "stagepipe auto" else [10.0] * 6) for name in CONTESTANTS]
    for target in targets(lines(measured), 1):
        assert target.met is met
        assert words in target.measured


def test_a_page_without_its_markers_is_refused():
    with pytest.raises(ValueError, match="the page has no markers <!-- E1 --> and <!-- /E1 -->; add them"):
        fill("# Benchmarks", "E1", "new")
