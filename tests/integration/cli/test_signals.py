"""The command on a terminal: Ctrl-C, a closed window, SIGTERM, Ctrl-Z, and the output of its workers."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes import list_run_processes
from tests.support.terminal import COMMAND, Terminal

pytestmark = pytest.mark.timeout(60)

ENDLESS = """
name: endless
source: {uses: stagepipe.sources.numbers, with: {count: 1000000}}
stages:
  - {name: slow, uses: tests.support.stages.nap, with: {seconds: 0.02}, workers: 2}
"""
TALKING = """
name: talking
source: {uses: stagepipe.sources.numbers, with: {count: 40}}
stages:
  - {name: talk, uses: tests.support.printing_stages.naps_and_prints, workers: 2}
"""


@pytest.fixture
def terminal(tmp_path):
    """Starts a command on a terminal."""
    started = []

    def start(config: str, *command: str) -> Terminal:
        started.append(Terminal(tmp_path, config, *(command or (COMMAND, "run", "c.yaml", "--report", "r.json"))))
        return started[-1]

    yield start
    for running in started:
        running.kill()


def status(folder: Path) -> str:
    return json.loads((folder / "r.json").read_text())["run"]["status"]


def test_ctrl_c_ends_cleanly_with_the_table_the_report_and_130(terminal, tmp_path):
    shown = terminal(ENDLESS)
    shown.shows(r"\d of 1,000,000 items")
    shown.type(b"\x03")
    assert shown.ends() == 130
    assert status(tmp_path) == "interrupted"
    assert json.loads((tmp_path / "r.json").read_text())["series"]["times_ns"]
    shown.shows("endless interrupted")
    assert "Traceback" not in shown.text
    assert "\x1b[?25l" not in shown.raw.rpartition("\x1b[?25h")[2], "the cursor is visible"


def test_ctrl_c_twice_ends_at_once_even_if_the_sink_is_slow_to_close(terminal):
    shown = terminal(ENDLESS + "sink: {uses: tests.support.printing_stages.SlowToClose}\n")
    shown.shows(r"\d of 1,000,000 items")
    shown.type(b"\x03")
    shown.shows("closing")
    began = time.monotonic()
    shown.type(b"\x03")
    assert shown.ends() == 130
    assert time.monotonic() - began < 5
    assert "Traceback" not in shown.text


def test_sigterm_ends_cleanly_with_143(terminal, tmp_path):
    shown = terminal(ENDLESS)
    shown.shows(r"\d of 1,000,000 items")
    os.kill(shown.pid, signal.SIGTERM)
    assert shown.ends() == 143
    assert status(tmp_path) == "interrupted"


def test_closing_the_terminal_ends_the_run_and_the_report_is_written(terminal, tmp_path):
    shown = terminal(ENDLESS)
    shown.shows(r"\d of 1,000,000 items")
    shown.close()
    assert shown.ends() == 129
    assert status(tmp_path) == "interrupted"


def test_after_ctrl_z_and_fg_the_progress_continues(terminal, tmp_path):
    shown = terminal(
        TALKING, "bash", "--norc", "-mc", f"{COMMAND} run c.yaml --report r.json; echo 'it is stopped'; sleep 1; fg"
    )
    shown.shows(r"\d of 40 items")
    shown.type(b"\x1a")
    shown.shows("it is stopped")
    stopped_at = len(shown.text)
    shown.shows("talk/.: item number 39", behind=stopped_at)
    shown.shows("40 of 40 items .*talking finished", behind=stopped_at)
    assert shown.ends() == 0
    assert status(tmp_path) == "finished"
    assert json.loads((tmp_path / "r.json").read_text())["run"]["items_out"] == 40


def test_workers_lines_appear_above_the_progress(terminal):
    shown = terminal(TALKING)
    assert shown.ends(40) == 0
    lines = [line.strip("\r") for line in shown.text.split("\n") if "item number" in line]
    assert len(lines) == 40
    for line in lines:  # a line that replaces the progress begins with a carriage return
        assert re.fullmatch(r"talk/[01]: item number \d+", line.rpartition("\r")[2]), line


def test_a_worker_that_is_paused_continues(terminal, tmp_path):
    shown = terminal(TALKING)
    shown.shows(r"[1-9]\d* of 40 items")  # an item has come out, so every worker has its name
    workers = list_run_processes(shown.pid)
    pid = next(worker.pid for worker in workers if Path(f"/proc/{worker.pid}/comm").read_text() == "sp:talk\n")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    os.kill(pid, signal.SIGCONT)
    assert shown.ends(40) == 0
    run = json.loads((tmp_path / "r.json").read_text())["run"]
    assert (run["status"], run["items_out"]) == ("finished", 40)


@pytest.mark.slow
def test_two_runs_of_one_config_at_the_same_time(tmp_path):
    (tmp_path / "c.yaml").write_text(TALKING)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    # Neither finds cached curves, so both also measure and save them at the same time.
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    both = [
        subprocess.Popen(
            [COMMAND, "run", "c.yaml", "-q", "--report", f"{number}.json"],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for number, process in enumerate(both):
        _, err = process.communicate(timeout=50)
        assert process.returncode == 0, err
        assert sorted(map(int, re.findall(r"item number (\d+)", err))) == list(range(40))
        assert json.loads((tmp_path / f"{number}.json").read_text())["run"]["items_out"] == 40
