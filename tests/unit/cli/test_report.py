"""`stagepipe report`: prints, draws and compares; a file that is no report ends with exit code 2 and its name."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from stagepipe.cli.app import app
from stagepipe.report import from_json, to_json
from tests.support.reports import make_report


def call(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(to_json(make_report()))
    return path


def test_report_is_printed_drawn_and_copied(saved, tmp_path):
    assert "decode limits the run" in call(saved).output
    page, copy = tmp_path / "new" / "a.html", tmp_path / "b.json"
    assert call(saved, "--report", page, "--report", copy).exit_code == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert from_json(copy.read_bytes()) == from_json(saved.read_bytes())


def test_two_reports_are_compared(saved):
    result = call(saved, saved)
    assert result.exit_code == 0
    assert "within" in result.output


@pytest.mark.parametrize("content", [None, b"", b"no json", b"{}", b'{"schema": "stagepipe.report/1"}', b"\xff"])
def test_wrong_file_is_named(content, saved, tmp_path):
    path = tmp_path / "wrong.json"
    if content is not None:
        path.write_bytes(content)
    for result in (call(path), call(saved, path)):
        assert result.exit_code == 2
        assert str(path) in result.stderr


def test_wrong_calls(saved, tmp_path):
    assert call(saved, "--report", tmp_path / "a.txt").exit_code == 2
    assert call(saved, saved, "--report", tmp_path / "a.html").exit_code == 2
