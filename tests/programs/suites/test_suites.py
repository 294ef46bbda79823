"""The lists of tests that fail or are not run agree with the table, and a difference from them is told."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.programs.sources import MissingSourceError, find_python, find_source
from tests.programs.suites import SUITES, TABLE, make_photographs
from tests.programs.suites.on_path.suite_adapters.faults import FAULT, FAULTS, spoil
from tests.programs.suites.running import (
    RAISES,
    Outcomes,
    Reason,
    find_differences,
    load_reasons,
    make_row,
    read_report,
    run_suite,
    try_faults,
)

ON_PATH = Path(__file__).parent / "on_path"


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_each_failure_of_the_table_has_its_reason(suite):
    for row in TABLE.load().get(suite.name, {"rows": ()})["rows"]:
        assert sum(reason.count for reason in load_reasons(suite.name, "Failed")) == int(row["failed"])
        not_run = sum(reason.count for reason in load_reasons(suite.name, "Not applicable"))
        assert f"{not_run} have no counterpart" in row["not applicable"] or not not_run


def test_differences_from_the_list_are_reported(monkeypatch):
    reasons = [Reason(patterns=["TestA::test_*"], count=2, text="because")]
    monkeypatch.setattr("tests.programs.suites.running.load_reasons", lambda suite, heading: reasons)
    listed = Outcomes(failed=frozenset({"test_x.py::TestA::test_a", "test_x.py::TestA::test_b"}))
    assert list(find_differences(SUITES[0], listed)) == []
    other = Outcomes(failed=frozenset({"test_x.py::TestA::test_a", "test_x.py::TestB::test_a"}))
    assert list(find_differences(SUITES[0], other)) == [
        "fails and is not listed: test_x.py::TestB::test_a",
        "1 of 2 fail: TestA::test_*",
    ]


def test_a_row_counts_only_what_reached_an_adapter(monkeypatch):
    monkeypatch.setattr("tests.programs.suites.running.load_reasons", lambda suite, heading: [])
    outcomes = Outcomes(
        passed=frozenset("ab"),
        failed=frozenset("c"),
        without_adapter=frozenset("def"),
        started=Counter(processes=5, inline=1),
    )
    tried = {"drops the last item": Outcomes(passed=frozenset("a"), failed=frozenset("bc"))}
    row = make_row(SUITES[0], outcomes, tried)
    assert (row["passed"], row["not applicable"], row["failed"]) == ("2", "3 (3 reach no adapter)", "1")
    assert row["notes"] == (
        "read 5 times in processes, 1 inline; with a fault of the adapter, of 2 tests fail 1 if it drops the last item"
    )


def test_a_report_gives_each_test_by_class_and_name(tmp_path):
    (tmp_path / "report.xml").write_text(
        '<testsuites><testsuite><testcase classname="test.test_x.TestA" name="test_a"/>'
        '<testcase classname="tests.test_x" name="test_b"><failure/></testcase>'
        '<testcase classname="test_x.TestA" name="test_c"><skipped/></testcase></testsuite></testsuites>'
    )
    found = list(read_report(tmp_path / "report.xml"))
    assert found == [
        ("test_x.py::TestA::test_a", "passed"),
        ("test_x.py::test_b", "failed"),
        ("test_x.py::TestA::test_c", "skipped"),
    ]


@pytest.mark.parametrize("broken", ["0", "1"])
def test_a_class_is_replaced_in_each_process_of_a_suite(tmp_path, broken):
    (tmp_path / "theirs.py").write_text("class Loader:\n    pass\n\nclass Other(Loader):\n    pass\n")
    (tmp_path / "ours.py").write_text("import theirs\nclass Adapter(theirs.Loader):\n    pass\n")
    script = "import theirs; print(type(theirs.Loader()).__name__, type(theirs.Other()).__name__)"
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": f"{ON_PATH}{os.pathsep}{tmp_path}",
            "STAGEPIPE_ADAPTERS": "theirs:Loader ours:Adapter",
            "STAGEPIPE_ADAPTERS_BROKEN": broken,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if broken == "1":
        assert "BrokenAdapterError: ours:Adapter" in result.stderr
    else:
        assert result.stdout == "Adapter Other\n", result.stderr


def test_the_photographs_are_those_that_the_tests_ask_for(tmp_path):
    import tarfile

    (tmp_path / "testdata").mkdir()
    make_photographs(tmp_path)
    with tarfile.open(tmp_path / "testdata/imagenet-000000.tgz") as archive:
        assert len(archive.getnames()) == 4 * 47


def skip_if_missing(suite):
    try:
        find_python(suite.environment, suite.packages)
        if not suite.is_installed:
            find_source(suite.origin, suite.parts[0].files[0])
    except MissingSourceError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_a_suite_ends_as_the_page_says(suite):
    skip_if_missing(suite)
    outcomes = run_suite(suite)
    assert list(find_differences(suite, outcomes)) == []
    broken = run_suite(suite, fault=RAISES)
    assert not outcomes.passed & (broken.passed | broken.without_adapter)
    assert all(outcomes.passed & spoiled.failed for spoiled in try_faults(suite).values())


@pytest.mark.parametrize("fault, items", list(zip(FAULTS, ([0, 1, 2], [0, 0, 1, 2, 3], [1, 0, 3, 2]), strict=True)))
def test_an_adapter_with_a_fault_yields_other_items(monkeypatch, fault, items):
    monkeypatch.setenv(FAULT, fault)
    assert list(spoil(iter(range(4)))) == items
