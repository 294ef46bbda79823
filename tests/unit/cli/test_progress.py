"""Progress on stderr: redrawn lines on a terminal, otherwise a line every 10 s, nothing with quiet."""

from __future__ import annotations

import io
import json
import logging
import re
import sys

import pytest

from stagepipe.cli.progress import ProgressDisplay, redirect_stderr_to_json
from stagepipe.report import LiveHop, LiveRun, LiveStage, format_progress_line

SECOND = 1_000_000_000


def progress_at(seconds, items=1234, **more):
    values = {"items_total": None, "samples_per_s": 1.0, "items_per_s": 345.2, "limited_by": "decode"}
    counts = {"items_in": items + 9, "items_done": items, "items_out": items // 64, "samples_out": items}
    return LiveRun(elapsed_ns=int(seconds * SECOND), **{**counts, **values, **more})


def starting(*names):
    return tuple(LiveStage(name=name, is_starting=True) for name in names)


@pytest.mark.parametrize(
    "progress, total, expected",
    [
        (progress_at(20), 2000, "stagepipe: 20.0 s  1,234 of 2,000 items in, 19 batches out  345/s  limited by decode"),
        (progress_at(20), None, "stagepipe: 20.0 s  1,234 items in, 19 batches out  345/s  limited by decode"),
        (
            progress_at(1, 0, items_per_s=0, limited_by="", stages=starting("a", "b")),
            9,
            "stagepipe: 1.0 s  0 of 9 items in  starting a, b",
        ),
        (
            progress_at(20, 300, items_out=300, samples_out=300, files_out=1, limited_by=""),
            300,
            "stagepipe: 20.0 s  300 of 300 items in, 1 file out  345/s",
        ),
    ],
)
def test_the_plain_line(progress, total, expected):
    assert format_progress_line(progress, total) == expected


def test_without_a_terminal_there_is_a_line_every_ten_seconds(capsys):
    with ProgressDisplay(total=None, quiet=False) as display:
        for tenth in range(350):
            display.update(progress_at(tenth / 10, items_total=5000))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert [line.split()[1] for line in captured.err.splitlines()] == ["10.0", "20.0", "30.0"]
    assert "1,234 of 5,000 items in" in captured.err


def test_missed_lines_are_not_printed_later(capsys):
    with ProgressDisplay(total=None, quiet=False) as display:
        for seconds in (47, 49, 50.5):
            display.update(progress_at(seconds))
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["47.0", "50.5"]


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_there_is_a_line_for_each_stage(monkeypatch, capsys):
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    stages = (
        LiveStage(name="source", items_per_s=50),
        LiveStage(name="detect", is_starting=True),
        LiveStage(name="crop", fused=("resize",), items_per_s=45.5, busy=0.94, work=0.95, queued=12, covered_ns=1),
    )
    with ProgressDisplay(total=2000, quiet=False) as display:
        display.update(
            progress_at(
                20,
                items_done=1200,
                items_per_s=40,
                stages=stages,
                hops=(LiveHop(source="a", target="b"),) * 2,
                limited_by="crop",
            )
        )
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "1,200 of 2,000 items in, 19 batches out  60 %  40.0/s  elapsed 0:20  starting detect" in shown
    assert "crop + resize limits the run: it works 95 % of the time" in shown
    rows = [line.split() for line in re.split(r"[\r\n]+", shown)[-3:]]
    assert rows == [
        ["source", "0", "%", "50.0/s"],
        ["detect", "starting"],
        [">", "crop", "+", "resize", "█" * 13 + "▓", "94", "%", "45.5/s", "12.0"],
    ]
    assert capsys.readouterr().out == ""


def test_the_display_stops_when_the_run_fails(monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    with pytest.raises(ValueError, match="bad"), ProgressDisplay(total=None, quiet=False):
        raise ValueError("bad")
    assert terminal.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is shown again


@pytest.mark.parametrize("terminal", [io.StringIO, _Terminal])
def test_quiet_prints_nothing(monkeypatch, terminal):
    target = terminal()
    monkeypatch.setattr(sys, "stderr", target)
    with ProgressDisplay(total=10, quiet=True) as display:
        display.update(progress_at(100))
    assert target.getvalue() == ""


def test_a_change_of_workers_is_a_line_of_json_and_other_news_is_none(monkeypatch):
    target = io.StringIO()
    monkeypatch.setattr("sys.stderr", target)
    log = logging.getLogger("stagepipe.workers")
    level = log.level
    with redirect_stderr_to_json():
        log.info("decode 1 -> 2 workers: busy", extra={"stage": "decode", "workers": 2, "delta": 1})
        logging.getLogger("stagepipe").info("news")
    assert log.level == level
    [line] = [json.loads(text) for text in target.getvalue().splitlines()]
    del line["time"]
    assert line == {
        "level": "INFO",
        "stage": "decode",
        "worker": None,
        "logger": "stagepipe.workers",
        "workers": 2,
        "delta": 1,
        "message": "decode 1 -> 2 workers: busy",
    }
