"""benchmarks/hop measures every contestant, checks what arrives, and leaves nothing behind."""

import importlib.util
import json

import pytest

from benchmarks.hop import __main__ as command
from tests.support.command import run_benchmark
from tests.support.processes import list_run_command_lines
from tests.support.shared_memory import list_kept_segments, list_segments

PACKAGES = {"faster-fifo": "faster_fifo", "faster-fifo lists": "faster_fifo", "iceoryx2": "iceoryx2"}
INSTALLED = {name for name, package in PACKAGES.items() if importlib.util.find_spec(package)}
CONTESTANTS = INSTALLED | {
    "stagepipe copied",
    "stagepipe filled",
    "stagepipe passed on",
    "stagepipe header only",
    "memcpy",
    "memcpy to one",
    "Pipe",
    "Queue",
    "SharedMemory",
    "SharedMemory reused",
    "DataLoader NumPy",
    "DataLoader torch",
}
TINY = ("--rounds", "1", "--budget-ms", "1", "--loop-items", "1000")


def run_hop(*options):
    return run_benchmark("hop", *TINY, *options)


@pytest.mark.slow
def test_every_contestant_has_a_row_untouched_and_touched(tmp_path):
    before = list_segments("psm_", "hop_", "torch_")
    done = run_hop("--sizes", "1KB", "--json", str(tmp_path / "hop.json"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads((tmp_path / "hop.json").read_text())
    rows = {(row["contestant"], row["touched"]): row for row in found["rows"]}
    assert rows.keys() == {(name, touched) for name in CONTESTANTS for touched in (False, True)}
    assert all(len(row["us"]) == 1 and row["us"][0] > 0 and row["cpu_us"][0] > 0 for row in rows.values())
    assert all(name in done.stdout for name in CONTESTANTS)
    assert found["missing"] == sorted(PACKAGES.keys() - INSTALLED)
    assert "Medians of 1 rounds; brackets: 0 % interval" in done.stdout
    assert "header only: nothing is written or read" in done.stdout
    assert not any(target["met"] for target in found["targets"][:-1]), "one round decides nothing"
    assert "python -m benchmarks.hop" in found["command"]
    assert found["machine"]["cpus"] >= 1
    assert not list_kept_segments(before, "psm_", "hop_", "torch_")
    assert not list_run_command_lines("hop")


def test_empty_and_large_items_arrive_unchanged():
    before = list_segments("stagepipe_ice_")
    names = ("stagepipe copied", "stagepipe filled", "stagepipe passed on", "SharedMemory", *sorted(INSTALLED))
    done = run_hop("--sizes", "0B,1.2MB", "--only", ",".join(names))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert not list_kept_segments(before, "stagepipe_ice_")


def test_only_the_loop_over_small_dicts_is_measured(tmp_path):
    names = {"stagepipe + stage", "Pipe + stage"}
    done = run_hop("--sizes", "loop", "--only", ",".join(names), "--json", str(tmp_path / "hop.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "hop.json").read_text())
    assert found["rows"] == []
    assert set(found["loops"]) == {"two numbers", "two numbers, array of 0 B"}
    for turns in found["loops"].values():
        assert turns.keys() == names
        assert all(min(figures[0].values()) > 0 for figures in turns.values())
    assert "a loop over dicts of two numbers, stagepipe + stage: no slower than Pipe + stage" in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "stagepipe header only",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("Pipe", "faster-fifo lists", "iceoryx2")),
    ],
)
def test_a_corrupted_transfer_is_detected(name):
    if name in PACKAGES and name not in INSTALLED:
        pytest.skip(f"needs {PACKAGES[name]}")
    done = run_hop("--sizes", "1KB", "--only", name, "--corrupt", name)
    assert done.returncode == 1
    assert f"{name}, 1024 bytes" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_name_is_answered_with_the_known_names(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["--only", "Pipes"])
    error = capsys.readouterr().err
    assert "'Pipes'" in error
    assert "SharedMemory" in error
