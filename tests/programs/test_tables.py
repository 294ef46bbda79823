"""The page of other people's programs says what was kept of the last runs."""

from functools import partial

import pytest

from tests.programs.__main__ import load_tables
from tests.programs.sources import MissingSourceError, Origin, check_library, find_python, find_source
from tests.programs.tables import PAGE, Table, render_page


def test_the_page_has_the_rows_that_are_kept():
    assert render_page(load_tables(), PAGE.read_text()) == PAGE.read_text()


@pytest.mark.parametrize("table", load_tables(), ids=lambda table: table.name)
def test_stored_rows_belong_to_the_table(table):
    for case, kept in table.load().items():
        assert case in table.cases
        assert all(set(row) <= set(table.headings) for row in kept["rows"])


def test_a_row_with_another_heading_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.programs.tables.RESULTS", tmp_path)
    table = Table(name="t", headings=["a"], cases={"good": lambda: [{"a": "1"}], "bad": lambda: [{"b": "1"}]})
    with pytest.raises(ValueError, match=r"bad: \['b'\] are no headings"):
        table.run("bad")
    table.run("good")
    assert next(line for line in table.render() if "1" in line) == "| 1 |"


def test_a_row_of_a_case_that_has_changed_is_marked(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.programs.tables.RESULTS", tmp_path)
    make = lambda count: Table(name="t", headings=["a", "notes"], cases={"x": partial(_make_rows, count=count)})  # noqa: E731
    make(1).run("x")
    assert "| 1 |  |" in list(make(1).render())
    assert "| 1 | measured with an earlier form of this case |" in list(make(2).render())


def _make_rows(count):
    return [{"a": str(count)}]


def test_a_missing_source_is_named_with_the_command_that_gets_it(tmp_path, monkeypatch):
    monkeypatch.setenv("STAGEPIPE_SOURCES", str(tmp_path))
    monkeypatch.setenv("STAGEPIPE_ENVIRONMENTS", str(tmp_path))
    with pytest.raises(MissingSourceError, match=r"git clone https://github.com/a/b .*checkout 123"):
        find_source(Origin.github("a/b", "123"), "train.py")
    with pytest.raises(MissingSourceError, match=r"pip download .* c==1.0"):
        find_source(Origin.pypi("c", "1.0"))
    with pytest.raises(MissingSourceError, match=r"pip install d"):
        find_python("d", ["d"])
    with pytest.raises(MissingSourceError, match=r"none of libnone.so.1, .*; get it with: apt-get install none"):
        check_library(["libnone.so.1", "libnone.so.2"], "apt-get install none")
    check_library(["libnone.so.1", "libc.so.6"], "apt-get install none")
    monkeypatch.delenv("STAGEPIPE_SOURCES")
    with pytest.raises(MissingSourceError, match="set STAGEPIPE_SOURCES"):
        find_source(Origin.pypi("c", "1.0"))
