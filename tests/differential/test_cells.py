"""Each cell is what it says. The page of the documentation is made from the cells."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.differential.__main__ import main
from tests.differential.cell import Cell, check, find_difference
from tests.differential.cells import CELLS


def _mark(number: int, cell: Cell):
    return pytest.param(cell, id=cell.name, marks=() if number % 32 == 0 else pytest.mark.slow)


@pytest.mark.parametrize("cell", [_mark(number, cell) for number, cell in enumerate(CELLS)])
def test_each_cell_passes_its_check(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert check(cell, tmp_path) == ""


def test_no_two_cells_have_one_name():
    assert [name for name, count in Counter(cell.name for cell in CELLS).items() if count > 1] == []


def test_the_page_has_all_cells():
    assert main(["--check"]) == 0, "run python -m tests.differential"


@pytest.mark.parametrize(
    "ours, theirs",
    [(1, 2), (1, True), (1, 1.0), ("1", 1), ([1], [1, 2]), ({"a": 1}, {"b": 1}), (b"1", "1"), (None, float("nan"))],
)
def test_a_difference_is_found(ours, theirs):
    assert find_difference(ours, theirs)
    assert not find_difference(ours, ours)


def test_a_difference_must_be_the_one_that_is_expected(tmp_path: Path):
    def make_cell(value: int, expected: int) -> Cell:
        return Cell(
            group="g", case="c", library="-", outcome="different", note="is 2",
            ours=lambda _: value, theirs=lambda _: 1, expected=lambda _: expected,
        )  # fmt: skip

    results = []
    for number, cell in enumerate((make_cell(2, 2), make_cell(3, 2), make_cell(1, 1))):
        (tmp_path / str(number)).mkdir()
        results.append(check(cell, tmp_path / str(number)))
    assert results == ["", ": 3 instead of 2", "no difference"]


def test_an_error_that_is_no_refusal_is_a_fault(tmp_path: Path):
    cell = Cell(group="g", case="c", library="-", outcome="error", note="append", ours=lambda _: None.append(1))  # type: ignore[attr-defined]
    assert "says nothing to a user: AttributeError" in check(cell, tmp_path)
