"""What the benchmarks share: a turn ends what it has started, and the meters count all processes."""

import ctypes
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from benchmarks.common.turn import ROOT, CpuMeter, TurnError, adopt_orphans, run_turn

TURN = """
import json, subprocess, sys, tempfile
job, result = json.load(open(sys.argv[1])), sys.argv[2]
left = subprocess.Popen(["sleep", "60"]).pid
if job["writes_first"]:
    open(result, "w").write(json.dumps({"left": left}))
if job["fails"]:
    sys.exit("the last line says why")
if job["hangs"]:
    import time; time.sleep(60)
open(result, "w").write(json.dumps({"left": left, "folder": tempfile.gettempdir()}))
"""
JOB = {"fails": False, "hangs": False, "writes_first": False}


@pytest.fixture
def turn(tmp_path, monkeypatch):
    """Return a function that runs the turn above, in this process as in a benchmark."""
    (tmp_path / "turn_of_a_test.py").write_text(TURN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    adopt_orphans()
    yield lambda limit_s=20.0, *, options=MappingProxyType({}), **job: run_turn(
        "turn_of_a_test", {**JOB, **job}, limit_s, **options
    )
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)


def test_a_turn_returns_its_result_and_leaves_no_process_and_no_file(turn):
    result = turn()
    assert not psutil.pid_exists(result["left"])
    assert not Path(result["folder"]).exists()


@pytest.mark.parametrize(
    "job, words", [({"fails": True}, "the last line says why"), ({"hangs": True}, "did not finish within 1 s")]
)
def test_a_turn_without_a_result_says_why_and_leaves_no_process(turn, job, words):
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(TurnError, match=words):
        turn(limit_s=1.0 if "hangs" in job else 20.0, **job)
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize("keeps", [False, True])
def test_the_output_of_a_failed_turn_counts_only_if_requested(turn, keeps):
    def take():
        return turn(fails=True, writes_first=True, options={"keeps_partial": keeps})

    if keeps:
        assert take().keys() == {"left"}
    else:
        with pytest.raises(TurnError, match="the last line says why"):
            take()


def test_a_launcher_makes_the_command_from_that_of_the_turn(turn):
    def launch(folder, command):
        (folder / "own").mkdir()
        return ["env", f"TMPDIR={folder / 'own'}", *command]

    folder = Path(turn(options={"launch": launch})["folder"])
    assert folder.name == "own"
    assert not folder.parent.exists()


def test_the_cpu_meter_counts_children_that_run_and_that_have_ended():
    burn = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nprint(1, flush=True)\n"
    meter = CpuMeter()
    subprocess.run([sys.executable, "-c", burn], check=True, stdout=subprocess.DEVNULL)
    ended_s = meter.measure_s()
    assert ended_s >= 0.2
    with subprocess.Popen([sys.executable, "-c", burn + "input()"], stdin=-1, stdout=-1, text=True) as child:
        child.stdout.readline()
        assert meter.measure_s() >= ended_s + 0.2
        child.communicate("\n")


FORKING = """
import os, signal, time
from benchmarks.common.turn import measure_pss_bytes

pages = b"x" * (64 << 20)
alone = measure_pss_bytes()
children = []
for _ in range(2):
    pid = os.fork()
    if not pid:
        time.sleep(20)
        os._exit(0)
    children.append(pid)
together = measure_pss_bytes()
for pid in children:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
print(alone, together)
"""


def test_shared_pages_count_once_in_the_memory_of_all_processes():
    """In a process of its own: those of other tests may have children that grow meanwhile."""
    found = subprocess.run([sys.executable, "-c", FORKING], cwd=ROOT, capture_output=True, text=True, check=True)
    alone, together = map(int, found.stdout.split())
    assert alone >= 64 << 20
    assert together < alone + (64 << 20), "with the resident size it would be twice as much more"
