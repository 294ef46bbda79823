"""What a contest says of the rows of a program finds all that can be wrong with them."""

import numpy as np
import pytest

from tests.programs.offline.contest import (
    Output,
    Program,
    Result,
    check_undisturbed,
    describe_differences,
    describe_rows,
)

ROWS = [("a", b"1"), ("b", np.array([0.5, 1.0]))]


@pytest.mark.parametrize(
    "rows, expected",
    [
        (ROWS, "rows: equal"),
        ([("a", b"1"), ("b", np.array([0.5, 1.0 + 1e-6]))], "rows: equal"),
        (ROWS[:1], "rows: 1 lost"),
        ([*ROWS, ROWS[0]], "rows: 1 doubled"),
        ([*ROWS, ("c", b"1")], "rows: 1 new"),
        ([("a", b"2"), ("b", np.array([0.5, 1.0]))], "rows: 1 other"),
        ([("a", b"1"), ("b", np.array([0.5, 1.1]))], "rows: 1 other"),
        ([("a", b"1"), ("b", np.array([0.5]))], "rows: 1 other"),
        ([("a", b"1"), ("b", np.array([0.5, np.nan]))], "rows: 1 other"),
        ([("a", b"1"), ("b", None)], "rows: 1 other"),
        ([], "rows: 2 lost"),
    ],
)
def test_rows_are_compared_by_key_and_by_value(rows, expected):
    assert list(describe_rows(Output(rows=ROWS), Output(rows=rows))) == [expected]


def test_failures_are_told_also_where_there_were_none():
    fails, fails_otherwise = Output(rows=ROWS, failures=[("u", "404")]), Output(rows=ROWS, failures=[("u", "crash")])
    rows = "rows: equal"
    assert list(describe_rows(Output(rows=ROWS), fails)) == [rows, "reasons: 1 new"]
    assert list(describe_rows(fails, Output(rows=ROWS))) == [rows, "reasons: 1 lost"]
    assert list(describe_rows(fails, fails_otherwise)) == [rows, "reasons: 1 other"]
    assert list(describe_rows(fails, Output(rows=ROWS, unreadable=["x"])))[-1] == "1 unreadable files"


@pytest.mark.parametrize(
    "output, message",
    [
        (Output(rows=[]), "tool, undisturbed: 0 rows"),
        (Output(rows=[*ROWS, ROWS[0]]), "3 rows, 1 of them doubled"),
        (Output(rows=ROWS, unreadable=["x"]), "1 unreadable files"),
    ],
)
def test_an_undisturbed_run_has_each_row_once(output, message):
    with pytest.raises(RuntimeError, match=message):
        check_undisturbed("tool", output)
    check_undisturbed("tool", Output(rows=ROWS))
    check_undisturbed("tool", Output(rows=[*ROWS, ROWS[0]]), has_unique_keys=False)


def test_values_of_tools_are_compared_where_both_have_them():
    program = Program(name="tool", commands=[], read=lambda _: Output(rows=[]), is_worker=bool)
    first, near, none = (
        Result(program=program, output=Output(rows=rows))
        for rows in ([("a", [1.0]), ("b", [2.0])], [("a", [1.001]), ("c", [2.0])], [("d", [1.0])])
    )
    assert describe_differences(first, first, 2) == "2 of 2"
    assert describe_differences(first, near, 2) == "2 of 2, 1 of other names, the same within 1e-03"
    assert describe_differences(first, none, 2) == "1 of 2, 1 of other names"
