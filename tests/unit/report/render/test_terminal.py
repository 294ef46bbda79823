"""The tables fit the terminal, show every number whole, and list what went wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from stagepipe.report import (
    MessageCounts,
    WorkerRestartReport,
    build_report,
    from_json,
    print_to_stdout,
    render_brief,
    render_report,
    render_summary,
    to_json,
)
from tests.support.reports import make_report


def drawn(report, width, encoding="utf-8"):
    target = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    Console(file=target, width=width, force_terminal=False).print(render_report(report))
    return target.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160, 240])
def test_no_line_is_wider_than_the_terminal(rich_record, width):
    assert max(cell_len(line) for line in drawn(build_report(rich_record), width).splitlines()) <= width


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_brief_report_fits_and_counts_what_went_wrong(rich_record, width):
    target = io.StringIO()
    Console(file=target, width=width).print(render_brief(build_report(rich_record)))
    text = target.getvalue()
    assert max(cell_len(line) for line in text.splitlines()) <= width
    words = " ".join(text.split())
    assert "dead letters: 10, such as item" in words
    assert "restarts: 1, such as detect worker 0: killed by SIGKILL" in words


@pytest.mark.parametrize("width", [40, 80, 120])
def test_estimates_are_only_in_the_full_report(width):
    report = make_report()
    text = drawn(report, width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    words = " ".join(text.split())
    assert "What if (estimates)" in words
    assert "+50 %" in words
    assert "stages.decode.workers=3" in text
    target = io.StringIO()
    Console(file=target, width=width).print(render_brief(report))
    assert "What if" not in target.getvalue()
    plain = json.loads(to_json(report))
    del plain["what_if"]
    old = from_json(json.dumps(plain))
    assert old.what_if == ()
    assert "What if" not in drawn(old, width)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_number_is_cut_or_wrapped_at_any_width(rich_record, width):
    text = drawn(build_report(rich_record), width)
    for number in ("75 %", "17 %", "80 %", "14 ms", "500 µs", "150 MB", "2,000", "2.4 GB", "20 µs", "4.1 s", "24 s"):
        assert number in text
    for heading in ("busy", "overhead", "blocked", "starved", "starting", "p99", "CPU", "copy", "decode", "saved"):
        assert heading in text


def test_output_to_a_file_has_each_sentence_on_one_line(rich_record, monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    report = build_report(rich_record)
    print_to_stdout(render_report(report))
    lines = capsys.readouterr().out.splitlines()
    assert f"  {report.verdict.sentence}" in lines
    assert f"  {report.verdict.advice}" in lines
    assert any(line.endswith(report.hops[0].transport.reason) for line in lines)
    assert not any(line.endswith(" ") or "│" in line for line in lines)
    monkeypatch.setenv("COLUMNS", "60")
    print_to_stdout(render_report(report))
    assert max(map(cell_len, capsys.readouterr().out.splitlines())) <= 60


def test_a_wide_terminal_has_all_shares_in_one_row(rich_record):
    header = next(line for line in drawn(build_report(rich_record), 160).splitlines() if line.startswith("stage "))
    headings = "stage workers time busy overhead blocked starved starting items out per item run p50 p99 CPU memory"
    assert header.split() == headings.split()


def test_the_verdict_and_its_fix_are_shown(make):
    record = make.record(make.stage("source", busy=0.1, blocked=0.8), make.stage("decode", busy=0.95, cpu=0.9))
    text = drawn(build_report(record), 100)
    assert "Verdict (confidence" in text
    assert "try: stages.decode.workers=" in text


def test_a_training_loop_sees_how_long_it_waited_for_input(make):
    times = {"wait_ns": 3 * 10**9, "first_wait_ns": 10**9, "busy_ns": 6 * 10**9, "outside_loop_ns": 2 * 10**9}
    record = make.record(make.stage("source"), consumer={"name": "training step", **times})
    text = " ".join(drawn(build_report(record), 100).split())
    assert "training step: waited 2.0 s for input (25 % of its time), 1.0 s for the first item" in text
    assert "1.0 s for the first item, 2.0 s outside the loop" in text


def test_messages_of_a_foreign_transport_are_counted_below_its_name(make):
    built_in = make.hop("a", "b", messages=20)
    transport = msgspec.structs.replace(built_in.transport, mode="file")
    foreign = msgspec.structs.replace(
        built_in, source="source", target="a", transport=transport, messages=MessageCounts(pipe=3, shared_memory=7)
    )
    report = build_report(make.record(make.stage("a"), make.stage("b"), hops=(foreign, built_in)))
    header, _, *rows = drawn(report, 160).split("Hops\n")[1].splitlines()
    assert header.split()[:6] == ["hop", "mode", "pipe", "file", "memory", "bytes"]
    assert [row.split()[3:6] for row in rows[:2]] == [["file", "3", "7"], ["shared", "memory", "20"]]


def test_a_failed_run_shows_its_status_and_the_first_line_of_its_error(make):
    text = drawn(build_report(make.record(make.stage(), status="failed", error="\nValueError: bad\n  File x")), 80)
    assert "thumbnails failed: ValueError: bad\n" in text
    assert "File x" not in text


def test_the_summary_of_a_failed_run_has_two_lines(make):
    record = make.record(make.stage(), status="failed", error="ValueError: bad")
    target = io.StringIO()
    Console(file=target, width=200).print(render_summary(build_report(record)))
    status, facts = target.getvalue().splitlines()
    assert status == "thumbnails failed"
    assert facts.startswith("1,000 items in, 1,000 out, ")
    assert "10 s in total" in facts


@pytest.mark.parametrize("width", range(40, 130))
def test_a_number_is_not_separated_from_its_percent_sign(make, width):
    record = make.record(make.stage("source", busy=0.1, blocked=0.8), make.stage("decode", busy=0.95, cpu=0.9))
    panel = drawn(build_report(record), width).partition("Verdict")[2]
    assert not any(line.strip("\u2502 ").startswith("%") for line in panel.splitlines())
    assert "\u00a0" not in panel
    assert max(cell_len(line) for line in panel.splitlines()[1:]) <= width


def test_a_run_that_never_started_is_drawn(make):
    record = make.record(status="failed", error="", items_in=0, wall_ns=0, delivery_points=(), hops=())
    assert "thumbnails failed" in drawn(build_report(record), 80)


def test_failures_are_listed_a_few_of_each(rich_record):
    text = drawn(build_report(rich_record), 120)
    assert "Restarts\n  detect worker 0: killed by SIGKILL, item 17" in text
    assert "Dead letters (5 of 10)" in text
    assert "ValueError: bad [bold]box[/bold]" in text  # square brackets in an error message are not markup
    assert "Failures" in text


def test_a_restart_after_a_stall_names_no_worker(make):
    cause = "no item has moved for 30 s: no worker is busy"
    restart = WorkerRestartReport(stage="", worker=-1, cause=cause, item="", lost_ns=31 * 10**9, kind="stall")
    text = drawn(build_report(make.record(make.stage(), restarts=(restart,))), 120)
    assert f"Restarts\n  stall: {cause}\n" in text


def test_a_terminal_without_utf8_gets_ascii(rich_record):
    text = drawn(build_report(rich_record), 100, encoding="ascii")
    assert "source -> decode" in text
    assert "# busy" in text


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.integers(70, 200))
@settings(max_examples=20, deadline=None)
def test_the_bar_has_the_same_length_for_any_shares(make, parts, width):
    parts = [part / max(sum(parts), 1) for part in parts]
    stage = make.stage(**dict(zip(("busy", "starved", "blocked", "starting"), parts, strict=True)))
    lines = drawn(build_report(make.record(stage)), width).splitlines()
    row = next(line for line in lines if line.startswith("decode ") and "%" in line)
    assert sum(row.count(character) for character in "█▓▒░·") == 12


def test_the_interface_does_not_import_rich():
    code = "import sys, stagepipe.report; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
