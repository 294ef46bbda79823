"""However a run ends, it leaves no process, descriptor, file or thread behind."""

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
from stagepipe.report import from_json
from tests.support.paths import ROOT
from tests.support.pipelines import BAD, batch, pipeline, stage, with_workers
from tests.support.processes import list_run_processes
from tests.support.shared_memory import list_kept_segments, list_segments

EXIT_TIMEOUT_S = 4.0
"""As docs/reference/limits.md says. Less than any deadline of stagepipe, so none is waited for."""
START_TIMEOUT_S = 30.0
ITEM_COUNT = 30
WORKER_COUNT = 5
"""Of the pipeline in the caller's process: a source, and two stages of two workers."""
CONFIG = """
name: endless
source: {uses: stagepipe.sources.numbers, with: {count: 1000000}}
stages:
  - {name: make, uses: tests.support.stages.megabyte, workers: 2}
  - {name: touch, uses: tests.support.stages.touched}
  - {name: record, uses: tests.support.stages.recorded, fuse: true, with: {path: PATH}}
"""
THREADS = """
name: endless
source: {uses: stagepipe.sources.numbers, with: {count: 1000000}}
stages:
  - name: work
    uses: tests.support.concurrent_stages.waits_from
    with: {first: 8, seconds: SECONDS, path: PATH.waiting}
    workers: 2
    concurrency: 4
  - {name: record, uses: tests.support.stages.recorded, with: {path: PATH}}
"""


def count_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - only the number of names is needed


def count_live_workers() -> int:
    """The workers of the test's run; there is time for each to become one, and for a spare fork server to be known."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (count := len(list_run_processes())) != WORKER_COUNT and time.monotonic() < deadline:
        time.sleep(0.02)
    return count


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A temporary folder for this test alone, as other runs use the machine at the same time."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def leftover_files() -> set[str]:
    return {str(path) for path in Path(tempfile.gettempdir()).iterdir()}


@pytest.fixture(autouse=True)
def _no_segment_is_left():
    before = list_segments("stagepipe")
    yield
    assert not list_kept_segments(before, "stagepipe")


def find_processes(marker: str) -> list[int]:
    """The processes with `marker` in their environment: all that a run has started, also those with a new parent."""
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


def runs_to_its_end(config: dict[str, Any]) -> None:
    with Pipeline(config) as running:
        assert len(list(running)) == ITEM_COUNT


def breaks_after_one_item(config: dict[str, Any]) -> None:
    with Pipeline(config) as running:
        next(iter(running))
        assert count_live_workers() == WORKER_COUNT


def is_garbage_collected(config: dict[str, Any]) -> None:
    running = Pipeline(config)
    next(iter(running))
    assert count_live_workers() == WORKER_COUNT
    del running


def ends_with_an_exception_of_the_caller(config: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError), Pipeline(config) as running:  # noqa: PT012 - iterating raises
        for _ in running:
            raise ZeroDivisionError


def ends_with_an_exception_of_a_stage(config: dict[str, Any]) -> None:
    config = {**config, "stages": [*config["stages"], stage(f"{BAD}.raises", name="bad")]}
    with pytest.raises(RunError), Pipeline(config) as running:
        list(running)


def ends_with_a_worker_death(config: dict[str, Any]) -> None:
    config = {**config, "stages": [*config["stages"], stage(f"{BAD}.kills_itself", name="bad")]}
    with pytest.raises(RunError), Pipeline(config) as running:
        list(running)


def is_never_iterated(config: dict[str, Any]) -> None:
    with Pipeline(config):
        assert count_live_workers() == WORKER_COUNT


ENDS = [
    runs_to_its_end,
    breaks_after_one_item,
    is_garbage_collected,
    ends_with_an_exception_of_the_caller,
    ends_with_an_exception_of_a_stage,
    ends_with_a_worker_death,
    is_never_iterated,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.timeout(90)
def test_a_run_leaves_nothing_in_the_callers_process(end):
    config = with_workers(pipeline(stage("megabyte"), stage("touched"), source=ITEM_COUNT), 2)
    end(config)  # what is loaded only once is loaded here
    files, fds, threads, processes = leftover_files(), count_fds(), set(threading.enumerate()), list_run_processes()
    for _ in range(2):
        end(config)
    assert count_fds() <= fds
    assert set(threading.enumerate()) <= threads
    assert list_run_processes() <= processes
    assert leftover_files() <= files


def test_processes_that_a_stage_has_started_are_killed_too():
    marker = f"STAGEPIPE_TEST={os.getpid()}.{time.time_ns()}"
    name, value = marker.split("=")
    config = pipeline(stage(f"{BAD}.leaves_children", env={name: value}), source=ITEM_COUNT)
    with Pipeline(config) as running:
        assert len(list(running)) == ITEM_COUNT
        assert "sleep" in {psutil.Process(pid).name() for pid in find_processes(marker)}
    assert all_gone(marker)


@pytest.fixture
def endless(tmp_path, request):
    """A long `stagepipe run`, the marker of all its processes, and the folder of its report."""
    config = tmp_path / "endless.yaml"
    config.write_text(getattr(request, "param", CONFIG).replace("PATH", str(tmp_path / "recorded")))
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
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not (tmp_path / "recorded").exists():
                assert time.monotonic() < deadline, "no item has reached the last stage"
                time.sleep(0.1)
            wait_for_processes(marker, 6)
            assert process.poll() is None, "it must live until the test ends it"
            assert len(find_processes(marker)) == 6, "itself, the fork server, a source, and three workers"
            yield process, marker, tmp_path
        finally:
            process.kill()


def wait_for_processes(marker: str, count: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while (found := len(find_processes(marker))) < count:
        assert time.monotonic() < deadline, f"only {found} of {count} processes have started"
        time.sleep(0.1)


def all_gone(marker: str, within_s: float = EXIT_TIMEOUT_S) -> bool:
    deadline = time.monotonic() + within_s
    while find_processes(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not find_processes(marker)


def test_ctrl_c_ends_with_130_and_the_report_is_written(endless):
    process, marker, folder = endless
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert all_gone(marker)
    report = from_json((folder / "r.json").read_bytes())
    assert report.run.status == "interrupted"
    assert report.run.items_out > 0
    assert list((folder / "temporary").iterdir()) == []
    assert "Traceback" not in process.stderr.read()


def test_ctrl_c_in_a_terminal_reaches_the_workers_too_and_ends_the_run(endless):
    process, marker, folder = endless
    for pid in find_processes(marker):
        os.kill(pid, signal.SIGINT)
    assert process.wait(10) == 130
    assert all_gone(marker)
    assert from_json((folder / "r.json").read_bytes()).run.status == "interrupted"


@pytest.mark.parametrize(
    "signal_number, exit_status", [(signal.SIGKILL, -9), (signal.SIGTERM, 143)], ids=["SIGKILL", "SIGTERM"]
)
def test_a_killed_main_process_leaves_nothing_behind(endless, signal_number, exit_status):
    process, marker, folder = endless
    files_before = leftover_files()
    process.send_signal(signal_number)
    assert process.wait(10) == exit_status
    assert all_gone(marker)
    assert leftover_files() <= files_before
    assert list((folder / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    "signal_number, endless, is_quick",
    [
        (signal.SIGINT, THREADS.replace("SECONDS", "0.3"), True),
        (signal.SIGTERM, THREADS.replace("SECONDS", "1000"), False),
    ],
    indirect=["endless"],
    ids=["SIGINT, slow items", "SIGTERM, items that hang"],
)
def test_a_signal_ends_a_run_whose_threads_all_have_an_item(endless, signal_number, is_quick):
    process, marker, folder = endless
    files_before = leftover_files()
    deadline = time.monotonic() + START_TIMEOUT_S
    waiting = folder / "recorded.waiting"
    while not waiting.exists() or waiting.stat().st_size < 8:
        assert time.monotonic() < deadline, "not every thread has an item"
        time.sleep(0.05)
    process.send_signal(signal_number)
    assert process.wait(20) == 128 + signal_number
    assert all_gone(marker)
    assert leftover_files() <= files_before
    assert list((folder / "temporary").iterdir()) == []
    assert from_json((folder / "r.json").read_bytes()).run.status == "interrupted"
    output = process.stderr.read()
    assert ("did not exit within 5 s" not in output) == is_quick
    assert "Traceback" not in output


@pytest.mark.parametrize("live_count, after_s", [(1, 0.0), (1, 0.03), (1, 0.1), (1, 0.3), (4, 1.5)])
def test_the_supervisors_death_kills_workers_that_hang_or_start(tmp_path, temporary, live_count, after_s):
    """Killed during start-up, and with all four processes, after the stage began to hang."""
    marker = f"STAGEPIPE_TEST={os.getpid()}.{time.time_ns()}"
    name, value = marker.split("=")
    script = tmp_path / "script.py"
    script.write_text(
        "from stagepipe import Pipeline\nfrom tests.support.pipelines import *\n"
        "running = Pipeline(pipeline(stage('tests.support.bad_stages.hangs'), batch(9), window=9))\n"
        "running.make_plan()\nprint('up', flush=True)\nlist(running.start())\n"
    )
    environment = {
        **os.environ,
        name: value,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        wait_for_processes(marker, live_count)
        time.sleep(after_s)
        assert len(find_processes(marker)) >= live_count
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
    assert all_gone(marker)
    assert list(temporary.iterdir()) == []


def test_shared_memory_has_no_name():
    segments = list_segments("stagepipe")
    with Pipeline(pipeline(stage("megabyte"), batch(2), source=4)) as running:
        items = iter(running)
        next(items)
        deadline = time.monotonic() + START_TIMEOUT_S  # workers write their counters every 100 ms
        while running.report().memory.arena_peak_bytes < 1_000_000:
            assert time.monotonic() < deadline, "it lies in shared memory"
            time.sleep(0.02)
        assert leftover_files() == set()
        assert not list_kept_segments(segments, "stagepipe")
