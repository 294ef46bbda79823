"""Nothing is left behind: no process, descriptor, file or thread, however a run ends."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from stagepipe import Pipeline, RunError
from tests.zoo.pipelines import BAD, batch, pipeline, stage, with_workers

ROOT = Path(__file__).parents[2]
GONE_S = 1.0
CONFIG = """
name: endless
source: {uses: stagepipe.sources.numbers, with: {count: 1000000}}
stages:
  - {name: make, uses: tests.zoo.stages.megabyte, workers: 2}
  - {name: touch, uses: tests.zoo.stages.touched}
"""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a name a descriptor is all that is wanted


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files of this test's runs alone: others are going on on this machine."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def traces() -> set[str]:
    shared = Path("/dev/shm")
    found = {str(path) for path in Path(tempfile.gettempdir()).iterdir()}
    return found | {str(path) for path in (shared.glob("*stagepipe*") if shared.is_dir() else ())}


def marked(marker: str) -> list[int]:
    """The processes that have `marker` in their environment: all that a run started, whoever their parent is now."""
    found = []
    for pid in psutil.pids():
        try:
            if (
                marker.encode() in Path(f"/proc/{pid}/environ").read_bytes()
                and psutil.Process(pid).status() != "zombie"
            ):
                found.append(pid)
        except (OSError, psutil.Error):
            continue
    return found


def whole(config: dict[str, Any]) -> None:
    with Pipeline(config) as running:
        list(running)


def broken_off(config: dict[str, Any]) -> None:
    with Pipeline(config) as running:
        next(iter(running))


def forgotten(config: dict[str, Any]) -> None:
    running = Pipeline(config)
    next(iter(running))
    del running


def by_an_exception(config: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError), Pipeline(config) as running:  # noqa: PT012 - iterating raises
        for _ in running:
            raise ZeroDivisionError


def by_a_stages_exception(config: dict[str, Any]) -> None:
    config = {**config, "stages": [*config["stages"], stage(f"{BAD}.raises", name="bad")]}
    with pytest.raises(RunError), Pipeline(config) as running:
        list(running)


def by_a_death(config: dict[str, Any]) -> None:
    config = {**config, "stages": [*config["stages"], stage(f"{BAD}.kills_itself", name="bad")]}
    with pytest.raises(RunError), Pipeline(config) as running:
        list(running)


def without_being_used(config: dict[str, Any]) -> None:
    with Pipeline(config):
        pass


ENDS = [whole, broken_off, forgotten, by_an_exception, by_a_stages_exception, by_a_death, without_being_used]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.timeout(90)
def test_nothing_is_left_in_the_calling_process(end):
    config = with_workers(pipeline(stage("megabyte"), stage("touched"), source=30), 2)
    end(config)  # what is loaded once is loaded now
    files, fds, threads, before = traces(), descriptors(), set(threading.enumerate()), children()
    for _ in range(2):
        end(config)
    assert descriptors() <= fds
    assert set(threading.enumerate()) <= threads
    assert set(children()) <= set(before)  # multiprocessing's resource tracker stays, where a test has used it
    assert traces() <= files


def test_children_that_a_stage_started_are_ended_too():
    marker = f"STAGEPIPE_TEST={os.getpid()}.{time.time_ns()}"
    name, value = marker.split("=")
    stages = [stage(f"{BAD}.leaves_children", env={name: value})]
    whole(pipeline(*stages))
    assert all_gone(marker)


@pytest.fixture
def endless(tmp_path):
    """A run of the command that would go on for long, its report's path, and a marker of all its processes."""
    config = tmp_path / "endless.yaml"
    config.write_text(CONFIG)
    marker = f"STAGEPIPE_TEST={os.getpid()}.{time.time_ns()}"
    name, value = marker.split("=")
    environment = {**os.environ, name: value}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    command = [
        str(Path(sys.executable).parent / "stagepipe"),
        "run",
        str(config),
        "--report",
        str(tmp_path / "r.json"),
        "--quiet",
    ]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 30
        while len(marked(marker)) < 5 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        yield process, marker, tmp_path
        process.kill()


def all_gone(marker: str, within_s: float = GONE_S) -> bool:
    deadline = time.monotonic() + within_s
    while marked(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not marked(marker)


def test_ctrl_c_ends_with_130_and_the_report_is_written(endless):
    process, marker, folder = endless
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert all_gone(marker)
    assert '"status":"interrupted"' in (folder / "r.json").read_text().replace(": ", ":")
    assert list((folder / "temporary").iterdir()) == []
    assert "Traceback" not in process.stderr.read()


def test_ctrl_c_of_the_whole_terminal_reaches_the_workers_too(endless):
    process, marker, folder = endless
    for pid in marked(marker):
        os.kill(pid, signal.SIGINT)
    assert process.wait(10) == 130
    assert all_gone(marker)
    assert (folder / "r.json").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_when_the_main_process_is_killed_nothing_is_left(endless, number):
    process, marker, folder = endless
    before = traces()
    process.send_signal(number)
    process.wait(10)
    assert all_gone(marker)
    assert traces() <= before
    assert list((folder / "temporary").iterdir()) == []


@pytest.mark.parametrize("after_s", [0.0, 0.03, 0.1, 0.3, 2.0])
def test_the_supervisors_death_takes_workers_that_hang_and_those_that_start(tmp_path, temporary, after_s):
    marker = f"STAGEPIPE_TEST={os.getpid()}.{time.time_ns()}"
    name, value = marker.split("=")
    script = tmp_path / "script.py"
    script.write_text(
        "from stagepipe import Pipeline\nfrom tests.zoo.pipelines import *\n"
        "running = Pipeline(pipeline(stage('tests.zoo.bad.hangs'), batch(9), window=9))\n"
        "running.plan\nprint('up', flush=True)\nlist(running.start())\n"
    )
    environment = {
        **os.environ,
        name: value,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(after_s)
        process.kill()
        process.wait(5)
    assert all_gone(marker)
    assert list(temporary.iterdir()) == []


def test_shared_memory_has_no_name():
    with Pipeline(pipeline(stage("megabyte"), batch(2), source=4)) as running:
        items = iter(running)
        next(items)
        assert traces() == set()
