"""A child that the caller forks cannot touch its parent's run, and does not keep its workers alive."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.processes import is_alive

pytestmark = pytest.mark.timeout(90)
INERT = ("close", "leave", "exit", "state", "dead letters", "collect", "own pipeline")
REFUSED = ("next", "iter", "len", "progress", "report")


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.forking_parent", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def lives(pid: int) -> bool:
    """Whether a process runs; one that has exited may wait for its new parent, on a busy machine for long."""
    try:
        return is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def test_nothing_that_a_child_does_changes_the_parents_run():
    process = start(",".join((*INERT, *REFUSED)))
    output = process.communicate(timeout=80)[0]
    for action in INERT:
        assert f"{action}: {'[0, -1, -2] ' * (action == 'own pipeline')}{'inert' * (action != 'exit')}" in output
    for action in REFUSED:
        assert f"belongs to process {process.pid}, which forked this one; make a new one in the child" in next(
            line for line in output.splitlines() if line.startswith(f"{action}: ")
        )
    assert output.count("exit code 3") == len(INERT) + len(REFUSED), output
    assert output.endswith("items True\nrestarts 0\n"), output


def test_workers_in_native_code_end_with_the_parent_although_its_child_lives():
    process = start("outlive")
    child, *workers = map(int, process.stdout.readline().split())
    try:
        process.kill()
        process.wait()
        deadline = time.monotonic() + 60
        while any(map(lives, workers)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert lives(child)
        assert not any(map(lives, workers)), [psutil.Process(pid).status() for pid in workers]
    finally:
        for pid in (child, *workers):
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
        process.stdout.close()
