"""The command on a terminal: Ctrl-C, a closed window, SIGTERM, Ctrl-Z, and the output of its workers."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.processes import list_run_processes

COMMAND = str(Path(sys.executable).parent / "stagepipe")
pytestmark = pytest.mark.timeout(60)
EXIT_TIMEOUT_S = 4.0
"""A second on a machine that is not busy; less than any deadline of stagepipe, so none is waited for."""

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


class Terminal:
    """A process in its own session, on a pseudo-terminal that the test controls."""

    def __init__(self, folder: Path, config: str, *command: str) -> None:
        (folder / "c.yaml").write_text(config)
        self.folder = folder
        (folder / "temporary").mkdir(exist_ok=True)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder / "temporary"), "TERM": "xterm"}
        self._fd, inner = os.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *command], stdin=inner, stdout=inner, stderr=inner, cwd=folder, env=environment
        )
        os.close(inner)
        self.pid = self._process.pid
        self._text = b""
        self._open = True
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while self._open:
                if select.select([self._fd], [], [], 0.1)[0]:
                    self._text += os.read(self._fd, 65536)
        except OSError:  # every process on the other side has ended
            pass

    @property
    def raw(self) -> str:
        return self._text.decode(errors="replace")

    @property
    def text(self) -> str:
        """The text on the terminal, without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw)

    def shows(self, pattern: str, within_s: float = 25.0, *, behind: int = 0) -> None:
        """Wait until the terminal shows `pattern`, after the first `behind` characters."""
        deadline = time.monotonic() + within_s
        while not re.search(pattern, self.text[behind:], re.DOTALL):
            assert time.monotonic() < deadline, f"{pattern!r} not in ...{self.text[-500:]!r}"
            time.sleep(0.02)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def close(self) -> None:
        """Close the window."""
        if self._open:
            self._open = False
            self._reader.join()
            os.close(self._fd)

    def ends(self, within_s: float = 12.0) -> int:
        """Wait for the exit status; then all its processes and temporary files must go by themselves."""
        processes = psutil.Process(self.pid).children(recursive=True)
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the process does not end; the terminal shows ...{self.text[-500:]!r}")
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while any(map(is_alive, processes)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(is_alive, processes))
        assert list((self.folder / "temporary").iterdir()) == []
        return status

    def kill(self) -> None:
        self.close()
        self._process.kill()
        self._process.wait()


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs. A zombie has ended."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


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
