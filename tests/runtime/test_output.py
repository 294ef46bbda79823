"""What workers print, log and warn comes out at the caller, whole and named, and harms nobody."""

import logging
import os
import re
import sys
import time
from typing import Any

import psutil
import pytest

from stagepipe import Pipeline, RunError
from stagepipe.runtime.line_reader import LineReader
from tests.zoo.pipelines import outputs, pipeline, stage

pytestmark = pytest.mark.timeout(60)


def talking(uses: str, **keys: Any) -> dict[str, Any]:
    return stage(f"tests.zoo.talking.{uses}", name="talk", **keys)


@pytest.fixture
def said(capsys):
    """Runs a pipeline; the lines that came on stderr."""

    def run(config: dict[str, Any]) -> list[str]:
        outputs(config)
        out, err = capsys.readouterr()
        assert out == "", "stdout is the caller's"
        return err.splitlines()

    return run


def test_all_that_a_worker_says_comes_in_order_under_its_name(said):
    lines = said(pipeline(talking("says"), source=1))
    assert [line for line in lines if "ctypes" not in line] == [
        "talk/0: printed 0",
        "talk/0: on stderr 0",
        "talk/0: by native code",
        "talk/0: by a child",
        "talk/0: by the descriptor",
    ]


def test_a_warning_is_shown_once_though_each_worker_gives_it(caplog):
    outputs(pipeline(talking("warns", workers=3), source=12))
    found = [record for record in caplog.records if record.name == "py.warnings"]
    assert len(found) == 1
    assert re.match(r"talk/\d: .*talking.py:\d+: UserWarning: of each worker", found[0].getMessage())


def test_records_reach_the_callers_logging_with_level_logger_item_and_trace(caplog):
    outputs(pipeline(talking("logs"), source=2))
    records = [record for record in caplog.records if record.name == "talking"]
    said = ["number 0", "it broke", "number 1", "it broke"]
    assert [record.getMessage() for record in records] == [f"talk/0: {text}" for text in said]
    first, second = records[:2]
    assert (first.levelname, first.stage, first.worker, first.item) == ("WARNING", "talk", 0, "0")
    assert first.funcName == "logs"
    assert second.levelname == "ERROR"
    assert "KeyError: 'key'" in second.exc_text


def test_the_callers_level_holds_in_workers_and_a_stage_may_ask_for_another(caplog):
    with caplog.at_level(logging.INFO):
        outputs(pipeline(talking("logs"), source=1))
    assert "talk/0: not asked for" in caplog.messages
    caplog.clear()
    caplog.handler.setLevel(logging.INFO)
    logging.getLogger("talking").setLevel(logging.INFO)
    outputs(pipeline(talking("asks_for_info"), source=1))
    assert "talk/0: asked for" in caplog.messages


def test_without_any_logging_set_up_records_are_lines(said, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    lines = said(pipeline(talking("logs"), source=1))
    assert lines[0] == "talk/0: WARNING talking: number 0"
    assert lines[1] == "talk/0: ERROR talking: it broke"
    assert lines[-1] == "talk/0: KeyError: 'key'"


def test_records_that_cannot_be_formatted_are_told_and_not_raised(said, caplog):
    lines = said(pipeline(talking("logs_badly"), source=1))
    assert any("ValueError: no text" in line for line in lines)
    assert "talk/0: a lone surrogate \\udcff" in caplog.messages


def test_lines_of_several_workers_stay_whole_and_each_ones_in_order(said):
    lines = said(pipeline(talking("many_lines", workers=3), source=18))
    assert len(lines) == 18 * 50
    seen: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        worker, item, number = re.fullmatch(r"talk/(\d): item (\d+) line (\d+) x{300}", line).groups()
        seen.setdefault((worker, item), []).append(int(number))
    assert all(numbers == list(range(50)) for numbers in seen.values())


def test_half_characters_bars_and_lines_without_end(said, caplog):
    assert said(pipeline(talking("odd"), source=1)) == [
        "talk/0: café \ufffd\ufffd",
        "talk/0: 100 %",
        "talk/0: a beginning",
        "talk/0: and an end",
        "talk/0: no record",
        "talk/0: without end",
    ]
    assert "talk/0: in between" in caplog.messages


def test_a_worker_that_floods_holds_nobody_up(said):
    before = psutil.Process().memory_info().rss
    began = time.monotonic()
    lines = said(pipeline(talking("floods_for", with_={"seconds": 0.4}, workers=2), stage("same"), source=6))
    assert time.monotonic() - began < 20
    assert len(lines) < 10_000
    assert any(re.fullmatch(r"talk/\d: [\d,]+ lines not shown", line) for line in lines)
    assert sum("the last of it" in line for line in lines[-30:]) >= 1, "the end of what was not shown"
    assert psutil.Process().memory_info().rss - before < 64 << 20


def test_the_last_words_of_a_worker_that_is_killed(capsys):
    with pytest.raises(RunError, match="SIGKILL"):
        outputs(pipeline(talking("dies_speaking"), source=3))
    assert capsys.readouterr().err.splitlines()[:2] == ["talk/0: last words", "talk/0: and half a line"]


def test_a_worker_that_cannot_even_be_imported_shows_its_traceback(capsys, tmp_path):
    (tmp_path / "zmq.py").write_text("raise ImportError('a broken installation')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    with pytest.raises(RunError, match="exit code 1"):
        outputs(pipeline(talking("says", env={"PYTHONPATH": path}), source=3))
    assert "talk/0: ImportError: a broken installation" in capsys.readouterr().err.splitlines()


def test_a_child_that_outlives_its_worker_does_not_hold_up_the_end(said):
    began = time.monotonic()
    said(pipeline(talking("leaves_a_child_that_talks"), source=1))
    assert time.monotonic() - began < 6


def test_a_stderr_that_is_gone_harms_nobody(monkeypatch):
    broken = open(os.devnull, "w")  # noqa: PTH123, SIM115 - closed on the next line
    broken.close()
    monkeypatch.setattr(sys, "stderr", broken)
    assert outputs(pipeline(talking("many_lines"), source=3)) == [0, 1, 2]
    monkeypatch.setattr(sys, "stderr", None)
    assert outputs(pipeline(talking("many_lines"), source=3)) == [0, 1, 2]


def test_a_handler_of_the_callers_that_raises_harms_nobody():
    class Raising(logging.Handler):
        def emit(self, record):
            raise ZeroDivisionError

    handler = Raising()
    logging.getLogger("talking").addHandler(handler)
    try:
        assert outputs(pipeline(talking("logs"), source=3)) == [0, 1, 2]
    finally:
        logging.getLogger("talking").removeHandler(handler)


def test_the_caller_may_take_the_lines_itself():
    found = []
    running = Pipeline(pipeline(talking("says"), source=1))
    running.show_lines = found.extend
    with running:
        list(running)
    assert [line.record.message for line in found][:2] == ["printed 0", "on stderr 0"]
    assert {(line.stage, line.worker) for line in found} == {("talk", 0)}


# ---------------------------------------------------------------------- one worker's lines, without processes


def texts(lines: list[Any]) -> list[str]:
    return [line.record.message for line in lines]


def test_a_thousand_lines_a_second_and_the_others_as_a_number():
    reader = LineReader("a", 0)
    data = b"".join(b"%d\n" % number for number in range(5000))
    assert texts(reader.feed(data, 10.0)) == [str(number) for number in range(1000)]
    assert reader.feed(b"more\n", 10.5) == []
    assert texts(reader.rest(11.1)) == ["4,001 lines not shown"]
    assert texts(reader.feed(b"again\n", 11.2)) == ["again"]


def test_what_was_not_shown_last_is_shown_when_the_worker_ends():
    reader = LineReader("a", 0)
    reader.feed(b"x\n" * 5000 + b"Traceback\nKeyError\nhalf", 10.0)
    assert texts(reader.end()) == ["3,992 lines not shown", *["x"] * 8, "Traceback", "KeyError", "half"]


@pytest.mark.parametrize("piece", [b"z" * 4096, b"\rz" * 2048, b"\r" * 4096, b"\x1e" * 4096])
def test_a_line_that_never_ends_fills_no_memory(piece):
    reader, shown = LineReader("a", 0), 0
    for number in range(5000):
        shown += sum(map(len, texts(reader.feed(piece, 10 + number / 10_000))))
        assert len(reader._partial) <= (1 << 18) + len(piece)
    assert shown < 3 << 20


def test_the_beginning_of_a_line_is_shown_after_a_moment():
    reader = LineReader("a", 0)
    assert reader.feed(b"continue? [y", 10.0) == []
    assert reader.rest(10.2) == []
    assert texts(reader.rest(10.7)) == ["continue? [y"]
    assert texts(reader.feed(b"/n]\n", 12.0)) == ["/n]"]
