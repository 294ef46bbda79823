"""benchmarks/hop measures every contestant, checks what arrives, and leaves nothing behind."""

import json
import subprocess
import sys

import psutil
import pytest

from tests.support.paths import ROOT
from tests.support.shared_memory import list_kept_segments, list_segments

CONTESTANTS = {
    "stagepipe copied",
    "stagepipe loaned",
    "stagepipe filled",
    "stagepipe passed on",
    "memcpy",
    "memcpy to one",
    "Pipe",
    "Queue",
    "SharedMemory",
    "DataLoader NumPy",
    "DataLoader torch",
}
TINY = ("--rounds", "1", "--budget-ms", "1")


def run_hop(*options):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.hop", *TINY, *options],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=ROOT,
    )


def test_every_contestant_has_a_row_untouched_and_touched(tmp_path):
    before = list_segments("psm_", "torch_")
    done = run_hop("--sizes", "1KB", "--json", str(tmp_path / "hop.json"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads((tmp_path / "hop.json").read_text())
    rows = {(row["contestant"], row["touched"]): row for row in found["rows"]}
    assert rows.keys() == {(name, touched) for name in CONTESTANTS for touched in (False, True)}
    assert all(len(row["us"]) == 1 and row["us"][0] > 0 and row["cpu_us"][0] > 0 for row in rows.values())
    assert all(name in done.stdout for name in CONTESTANTS)
    assert "python -m benchmarks.hop" in found["command"]
    assert found["machine"]["cpus"] >= 1
    assert not list_kept_segments(before, "psm_", "torch_")
    assert not [child for child in psutil.Process().children(recursive=True) if "hop" in " ".join(child.cmdline())]


def test_large_items_arrive_unchanged():
    done = run_hop("--sizes", "1.2MB", "--only", "stagepipe copied,stagepipe filled,stagepipe passed on,SharedMemory")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["stagepipe copied", "stagepipe loaned", "Pipe"])
def test_a_corrupted_transfer_is_detected(name):
    done = run_hop("--sizes", "1KB", "--only", name, "--corrupt", name)
    assert done.returncode == 1
    assert f"{name}, 1024 bytes" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_name_is_answered_with_the_known_names():
    done = run_hop("--only", "Pipes")
    assert done.returncode == 1
    assert "'Pipes'" in done.stderr
    assert "SharedMemory" in done.stderr
