"""`stagepipe top` as a process of its own, beside a script that iterates over a pipeline."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.terminal import COMMAND, Terminal

pytestmark = pytest.mark.timeout(120)
SCRIPT = """
import os, time
from functools import partial
import stagepipe
from tests.support.stages import nap

pipeline = stagepipe.from_source(range(1_000_000)).map(partial(nap, seconds=0.01)).with_options(name="training").open()
items = iter(pipeline)
next(items)
child = os.fork()
if not child:
    time.sleep(1000)
    os._exit(0)
print(child, flush=True)
for _ in items:
    pass
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def script(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def call_top(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, "top", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_it_watches_a_script_until_it_is_killed_although_its_child_lives(script, environment, tmp_path):
    assert script.stdout is not None
    child = int(script.stdout.readline())
    try:
        watched = call_top(environment, str(script.pid), "--once", "--json")
        assert watched.returncode == 0, watched.stderr
        run = json.loads(watched.stdout)
        assert (run["name"], run["pid"], run["state"]) == ("training", script.pid, "running")
        assert run["items_out"] > 0
        assert [entry.name for entry in (tmp_path / "stagepipe").iterdir()] == [f"{script.pid}-1"]
        script.send_signal(signal.SIGKILL)
        script.wait()
        assert psutil.pid_exists(child)
        missing = call_top(environment, str(script.pid), "--once")
        assert (missing.returncode, missing.stdout) == (2, "")
        assert "Traceback" not in missing.stderr
        assert not (tmp_path / "stagepipe").exists()
    finally:
        os.kill(child, signal.SIGKILL)


def test_on_a_terminal_it_draws_in_one_place_and_ctrl_c_leaves_the_run(script, environment, tmp_path):
    assert script.stdout is not None
    child = int(script.stdout.readline())
    (tmp_path / "screen").mkdir()
    variables = {"XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "150", "LINES": "40"}
    screen = Terminal(tmp_path / "screen", "", COMMAND, "top", "training", "--interval", "0.2", **variables)
    try:
        screen.shows(r"training +running.*nap limits the run.*> nap.*training +running", within_s=40)
        assert "\x1b[1A" in screen.raw, "the cursor goes up again"
        screen.type(b"\x03")
        assert screen.ends() == 0
        assert "Traceback" not in screen.text
        assert script.poll() is None
    finally:
        screen.kill()
        os.kill(child, signal.SIGKILL)


def test_a_link_in_place_of_the_folder_is_refused_with_the_fix(environment, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "stagepipe").symlink_to("elsewhere")
    called = call_top(environment, "no-such-run", "--once")
    assert called.returncode == 2
    assert (
        f"{tmp_path}/stagepipe, where runs listen for `stagepipe top`, is a link or a file; remove it" in called.stderr
    )
