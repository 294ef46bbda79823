"""What workers print, log and warn reaches the caller as whole lines with the worker's name."""

import logging
import os
import re
import subprocess
import sys
import time
import warnings
from typing import Any

import psutil
import pytest

from stagepipe import Pipeline, RunError
from stagepipe.runtime.logs import LineReader
from tests.support import printing_stages
from tests.support.paths import ROOT
from tests.support.pipelines import outputs, pipeline, stage

pytestmark = pytest.mark.timeout(60)


def printing(uses: str, **keys: Any) -> dict[str, Any]:
    return stage(f"tests.support.printing_stages.{uses}", name="talk", **keys)


@pytest.fixture
def stderr_lines(capsys):
    """Runs a pipeline and returns the lines that it wrote to stderr."""

    def run(config: dict[str, Any]) -> list[str]:
        outputs(config)
        out, err = capsys.readouterr()
        assert out == "", "stdout is the caller's"
        return err.splitlines()

    return run


def test_output_arrives_in_order_with_the_workers_name(stderr_lines):
    lines = stderr_lines(pipeline(printing("says"), source=1))
    assert [line for line in lines if "ctypes" not in line] == [
        "talk/0: printed 0",
        "talk/0: on stderr 0",
        "talk/0: by native code",
        "talk/0: by a child",
        "talk/0: by the descriptor",
    ]


@pytest.fixture(autouse=True)
def _warning_filters():
    """Workers have the filters of this process, and those of pytest make errors of all warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def test_a_warning_that_each_worker_gives_is_shown_once(caplog, capsys):
    first, second = printing("warns", workers=2), {**printing("warns", workers=2), "name": "talk_again"}
    outputs(pipeline(first, second, source=12))
    found = [record for record in caplog.records if record.name == "py.warnings"]
    assert len(found) == 1
    assert re.match(r"talk/\d: .*printing_stages.py:\d+: UserWarning: of each worker", found[0].getMessage())
    assert re.search(
        r"talk.*: [123] more times? in this run: .*: UserWarning: of each worker\n", capsys.readouterr().err
    )


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_callers_warning_filters_apply_in_workers(start, caplog):
    own = pipeline(printing("warns_of_itself"), source=2, start=start)
    outputs(own)
    assert "of its own category" in caplog.text
    warnings.simplefilter("error", printing_stages.OwnWarning)
    with pytest.raises(RunError, match=r"item 0: OwnWarning: of its own category"):
        outputs(own)
    caplog.clear()
    warnings.filterwarnings("ignore", "of its OWN", module=r"tests\.support")
    outputs(own)
    assert "of its own category" not in caplog.text
    outputs(pipeline(printing("warns"), source=1, start=start))
    assert "of each worker" in caplog.text


@pytest.mark.parametrize(
    "option, variable, exit_code",
    [("-Wignore", "default", 0), ("-Wdefault", "ignore", 0), ("-Xutf8", "error", 1)],
)
def test_the_interpreters_options_for_warnings_apply_in_workers(option, variable, exit_code, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from stagepipe import from_source\n"
        "with from_source(range(2)).map('tests.support.printing_stages.warns').open() as p: list(p)\n"
    )
    environment = {**os.environ, "PYTHONWARNINGS": variable, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, option, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stderr
    assert ("of each worker" in done.stderr) == (option != "-Wignore")


def test_records_reach_the_callers_logging_with_level_logger_item_and_trace(caplog):
    outputs(pipeline(printing("logs"), source=2))
    records = [record for record in caplog.records if record.name == "talking"]
    messages = ["number 0", "it broke", "number 1", "it broke"]
    assert [record.getMessage() for record in records] == [f"talk/0: {message}" for message in messages]
    first, second = records[:2]
    assert (first.levelname, first.stage, first.worker, first.item) == ("WARNING", "talk", 0, "0")
    assert first.funcName == "logs"
    assert second.levelname == "ERROR"
    assert "KeyError: 'key'" in second.exc_text


def test_the_callers_log_level_applies_in_workers_and_a_stage_may_set_another(caplog):
    with caplog.at_level(logging.INFO):
        outputs(pipeline(printing("logs"), source=1))
    assert "talk/0: not asked for" in caplog.messages
    caplog.clear()
    caplog.handler.setLevel(logging.INFO)
    logging.getLogger("talking").setLevel(logging.INFO)
    outputs(pipeline(printing("asks_for_info"), source=1))
    assert "talk/0: asked for" in caplog.messages


def test_without_logging_handlers_records_are_printed_as_lines(stderr_lines, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    lines = stderr_lines(pipeline(printing("logs"), source=1))
    assert lines[0] == "talk/0: WARNING talking: number 0"
    assert lines[1] == "talk/0: ERROR talking: it broke"
    assert lines[-1] == "talk/0: KeyError: 'key'"


def test_records_that_cannot_be_formatted_are_reported_and_not_raised(stderr_lines, caplog):
    lines = stderr_lines(pipeline(printing("logs_badly"), source=1))
    assert any("ValueError: no text" in line for line in lines)
    assert "talk/0: a lone surrogate \\udcff" in caplog.messages


def test_lines_of_several_workers_stay_whole_and_in_order_per_worker(stderr_lines):
    lines = stderr_lines(pipeline(printing("many_lines", workers=3), source=18))
    assert len(lines) == 18 * 50
    seen: dict[tuple[str, str], list[int]] = {}
    for line in lines:
        worker, item, number = re.fullmatch(r"talk/(\d): item (\d+) line (\d+) x{300}", line).groups()
        seen.setdefault((worker, item), []).append(int(number))
    assert all(numbers == list(range(50)) for numbers in seen.values())


def test_split_characters_progress_bars_and_lines_without_an_end(stderr_lines, caplog):
    assert stderr_lines(pipeline(printing("prints_odd_lines"), source=1)) == [
        "talk/0: café \ufffd\ufffd",
        "talk/0: 100 %",
        "talk/0: a beginning",
        "talk/0: and an end",
        "talk/0: no record",
        "talk/0: without end",
    ]
    assert "talk/0: in between" in caplog.messages


def test_a_worker_that_floods_its_output_does_not_slow_down_the_run(stderr_lines):
    rss_before = psutil.Process().memory_info().rss
    started_s = time.monotonic()
    lines = stderr_lines(
        pipeline(printing("floods_stdout_for", with_={"seconds": 0.4}, workers=2), stage("same"), source=6)
    )
    assert time.monotonic() - started_s < 20
    assert len(lines) < 10_000
    assert any(re.fullmatch(r"talk/\d: [\d,]+ lines not shown", line) for line in lines)
    assert sum("the last of it" in line for line in lines[-30:]) >= 1, "the last of the lines that were not shown"
    assert psutil.Process().memory_info().rss - rss_before < 64 << 20


def test_the_last_lines_of_a_killed_worker_are_shown(capsys):
    with pytest.raises(RunError, match="SIGKILL"):
        outputs(pipeline(printing("dies_while_printing"), source=3))
    assert capsys.readouterr().err.splitlines()[:2] == ["talk/0: last words", "talk/0: and half a line"]


def test_a_worker_that_fails_to_import_stagepipe_shows_its_traceback(capsys, tmp_path):
    (tmp_path / "zmq.py").write_text("raise ImportError('a broken installation')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    with pytest.raises(RunError, match="exit code 1"):
        outputs(pipeline(printing("says", env={"PYTHONPATH": path}), source=3, start="spawn"))
    assert "talk/0: ImportError: a broken installation" in capsys.readouterr().err.splitlines()


def test_a_child_that_outlives_its_worker_does_not_delay_the_end(stderr_lines):
    started_s = time.monotonic()
    stderr_lines(pipeline(printing("leaves_a_child_with_its_stdout"), source=1))
    assert time.monotonic() - started_s < 6


def test_the_first_error_of_on_output_is_logged_and_the_run_continues(caplog):
    calls = []

    def fail(lines):
        calls.append(lines)
        raise RuntimeError("the caller's function fails")

    running = Pipeline(pipeline(printing("says"), source=20))
    running.on_output = fail
    with running:
        assert len(list(running)) == 20
    (record,) = [record for record in caplog.records if record.name == "stagepipe"]
    assert record.getMessage().startswith("`on_output` raised an error, so some output of the workers is lost")
    assert "the caller's function fails" in str(record.exc_info[1])
    assert calls


def test_a_closed_stderr_does_not_break_the_run(monkeypatch):
    broken = open(os.devnull, "w")  # noqa: PTH123, SIM115 - closed on the next line
    broken.close()
    monkeypatch.setattr(sys, "stderr", broken)
    assert outputs(pipeline(printing("many_lines"), source=3)) == [0, 1, 2]
    monkeypatch.setattr(sys, "stderr", None)
    assert outputs(pipeline(printing("many_lines"), source=3)) == [0, 1, 2]


def test_a_raising_handler_of_the_caller_does_not_break_the_run():
    class Raising(logging.Handler):
        def emit(self, record):
            raise ZeroDivisionError

    handler = Raising()
    logging.getLogger("talking").addHandler(handler)
    try:
        assert outputs(pipeline(printing("logs"), source=3)) == [0, 1, 2]
    finally:
        logging.getLogger("talking").removeHandler(handler)


def test_the_caller_may_receive_the_lines_itself():
    found = []
    running = Pipeline(pipeline(printing("says"), source=1))
    running.on_output = found.extend
    with running:
        list(running)
    assert [line.record.message for line in found][:2] == ["printed 0", "on stderr 0"]
    assert {(line.stage, line.worker) for line in found} == {("talk", 0)}


# ---------------------------------------------------------------------- the line reader, without processes


def texts(lines: list[Any]) -> list[str]:
    return [line.record.message for line in lines]


def test_lines_beyond_a_thousand_a_second_are_counted():
    reader = LineReader("a", 0)
    data = b"".join(b"%d\n" % number for number in range(5000))
    assert texts(reader.feed(data, 10.0)) == [str(number) for number in range(1000)]
    assert reader.feed(b"more\n", 10.5) == []
    assert texts(reader.flush_overdue(11.1)) == ["4,001 lines not shown"]
    assert texts(reader.feed(b"again\n", 11.2)) == ["again"]


def test_the_last_dropped_lines_are_shown_when_the_worker_ends():
    reader = LineReader("a", 0)
    reader.feed(b"x\n" * 5000 + b"Traceback\nKeyError\nhalf", 10.0)
    assert texts(reader.finish()) == ["3,992 lines not shown", *["x"] * 8, "Traceback", "KeyError", "half"]


@pytest.mark.parametrize("piece", [b"z" * 4096, b"\rz" * 2048, b"\r" * 4096, b"\x1e" * 4096])
def test_an_endless_line_does_not_fill_memory(piece):
    reader, shown_chars = LineReader("a", 0), 0
    for number in range(5000):
        shown_chars += sum(map(len, texts(reader.feed(piece, 10 + number / 10_000))))
        assert len(reader._partial_line) <= (1 << 18) + len(piece)
    assert shown_chars < 3 << 20


def test_a_line_without_an_end_is_shown_after_half_a_second():
    reader = LineReader("a", 0)
    assert reader.feed(b"continue? [y", 10.0) == []
    assert reader.flush_overdue(10.2) == []
    assert texts(reader.flush_overdue(10.7)) == ["continue? [y"]
    assert texts(reader.feed(b"/n]\n", 12.0)) == ["/n]"]
