"""The command on a terminal: Ctrl-C, a closed window, SIGTERM, Ctrl-Z, and what its workers print meanwhile."""

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

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).parent / "stagepipe")
pytestmark = pytest.mark.timeout(60)

ENDLESS = """
name: endless
source: {uses: stagepipe.sources.numbers, with: {count: 1000000}}
stages:
  - {name: slow, uses: tests.zoo.stages.nap, with: {seconds: 0.02}, workers: 2}
"""
TALKING = """
name: talking
source: {uses: stagepipe.sources.numbers, with: {count: 40}}
stages:
  - {name: talk, uses: tests.zoo.talking.naps_and_prints, workers: 2}
"""


class Terminal:
    """A process in a session of its own, on a pseudo-terminal that this test plays."""

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
        except OSError:  # the last one on the other side is gone
            pass

    @property
    def raw(self) -> str:
        return self._text.decode(errors="replace")

    @property
    def text(self) -> str:
        """What is read there: without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw)

    def shows(self, pattern: str, within_s: float = 25.0, *, behind: int = 0) -> None:
        """Wait until the terminal shows this."""
        deadline = time.monotonic() + within_s
        while not re.search(pattern, self.text[behind:], re.DOTALL):
            assert time.monotonic() < deadline, f"{pattern!r} not in ...{self.text[-500:]!r}"
            time.sleep(0.02)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def close(self) -> None:
        """The window is closed."""
        if self._open:
            self._open = False
            self._reader.join()
            os.close(self._fd)

    def ends(self, within_s: float = 12.0) -> int:
        """Its exit status; whatever it started must be gone a second later, without a trace."""
        processes = psutil.Process(self.pid).children(recursive=True)
        try:
            status = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it does not end; the terminal shows ...{self.text[-500:]!r}")
        deadline = time.monotonic() + 1
        while any(map(lives, processes)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not any(map(lives, processes))
        assert list((self.folder / "temporary").iterdir()) == []
        return status

    def kill(self) -> None:
        self.close()
        self._process.kill()
        self._process.wait()


def lives(process: psutil.Process) -> bool:
    """Also one that nobody has asked for its exit status yet has ended."""
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
    for each in started:
        each.kill()


def status(folder: Path) -> str:
    return json.loads((folder / "r.json").read_text())["run"]["status"]


def test_ctrl_c_ends_cleanly_with_the_table_the_report_and_130(terminal, tmp_path):
    shown = terminal(ENDLESS)
    shown.shows(r" \d+/1000000")
    shown.type(b"\x03")
    assert shown.ends() == 130
    assert status(tmp_path) == "interrupted"
    shown.shows("endless interrupted")
    assert "Traceback" not in shown.text
    assert "\x1b[?25l" not in shown.raw.rpartition("\x1b[?25h")[2], "the cursor is there"


def test_ctrl_c_twice_ends_at_once_though_the_sink_takes_its_time(terminal):
    shown = terminal(ENDLESS + "sink: {uses: tests.zoo.talking.SlowToClose}\n")
    shown.shows(r" \d+/1000000")
    shown.type(b"\x03")
    shown.shows("closing")
    began = time.monotonic()
    shown.type(b"\x03")
    assert shown.ends() == 130
    assert time.monotonic() - began < 5
    assert "Traceback" not in shown.text


def test_sigterm_ends_cleanly_with_143(terminal, tmp_path):
    shown = terminal(ENDLESS)
    shown.shows(r" \d+/1000000")
    os.kill(shown.pid, signal.SIGTERM)
    assert shown.ends() == 143
    assert status(tmp_path) == "interrupted"


def test_a_terminal_that_is_closed_ends_it_and_the_report_is_written(terminal, tmp_path):
    shown = terminal(ENDLESS)
    shown.shows(r" \d+/1000000")
    shown.close()
    assert shown.ends() == 129
    assert status(tmp_path) == "interrupted"


def test_ctrl_z_and_fg_and_the_bar_goes_on(terminal, tmp_path):
    shown = terminal(
        TALKING, "bash", "--norc", "-mc", f"{COMMAND} run c.yaml --report r.json; echo 'it is stopped'; sleep 1; fg"
    )
    shown.shows(r" \d+/40")
    shown.type(b"\x1a")
    shown.shows("it is stopped")
    at = len(shown.text)
    shown.shows("talk/.: item number 39", behind=at)
    shown.shows("━ +40/40 .*talking finished", behind=at)
    assert shown.ends() == 0
    assert status(tmp_path) == "finished"
    assert json.loads((tmp_path / "r.json").read_text())["run"]["items_out"] == 40


def test_workers_lines_stand_above_the_bar(terminal):
    shown = terminal(TALKING)
    assert shown.ends(40) == 0
    said = [line.strip("\r") for line in shown.text.split("\n") if "item number" in line]
    assert len(said) == 40
    for line in said:  # what a line is drawn over begins with a carriage return
        assert re.fullmatch(r"talk/[01]: item number \d+", line.rpartition("\r")[2]), line


def test_a_worker_that_is_stopped_for_a_while_goes_on(terminal, tmp_path):
    shown = terminal(TALKING)
    shown.shows(r" [1-9]\d*/40")  # an item has come through, so every worker is named
    workers = psutil.Process(shown.pid).children()
    pid = next(each.pid for each in workers if Path(f"/proc/{each.pid}/comm").read_text() == "sp:talk\n")
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
    # Neither finds calibrated curves, so that they measure and keep them at the same time too.
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
