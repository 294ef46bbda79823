"""`stagepipe bench --quick`, run once: what it prints, plots, writes and caches; and wrong calls."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest
from PIL import Image

from stagepipe.bench.result import HOP_MECHANISMS, PEER_MECHANISMS
from stagepipe.calibration import cache as curve_cache
from stagepipe.core import VERSION
from tests.support.command import call_here
from tests.support.processes import list_run_processes
from tests.support.shared_memory import list_kept_segments, list_segments

COMMAND = Path(sys.executable).parent / "stagepipe"


def call(folder, *arguments, **variables):
    return subprocess.run(
        [str(COMMAND), "bench", *arguments],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "100", **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def done(folder):
    before = list_segments("psm_")
    finished = call(folder, "--quick", "--plot", "b.svg", "--plot", "b.png", "--json", "b.json")
    assert not list_kept_segments(before, "psm_")
    return finished


@pytest.fixture(scope="module")
def result(done, folder):
    return json.loads((folder / "b.json").read_text())


def test_it_prints_a_row_per_size_and_the_crossover(done, result):
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    flat = " ".join(done.stdout.split())
    for word in ("pipe", "copied", "loaned", "cold", "Pipe", "Queue", "64 B", "4.2 MB", "CPUs", "load average"):
        assert word in flat
    assert result["crossover"][1:] in flat
    assert "shared memory" in result["crossover"]
    assert "saved the curves for later runs" in flat


def test_the_json_has_every_point_with_its_quartiles(result):
    assert result["schema"] == "stagepipe.bench/2"
    assert result["points"].keys() == {*HOP_MECHANISMS, *PEER_MECHANISMS}
    for points in result["points"].values():
        sizes = [point["nbytes"] for point in points]
        assert sizes == sorted(set(sizes))
        assert (sizes[0], sizes[-1]) == (64, 16 << 20)
        assert all(0 < point["low_ns"] <= point["ns"] <= point["high_ns"] for point in points)
        assert all(point["count"] >= 2 for point in points)
    assert result["rounds"] >= 3
    assert result["host"]["cpus"] >= 1


def test_a_large_message_is_cheaper_in_shared_memory(result):
    largest = {name: points[-1]["ns"] for name, points in result["points"].items()}
    assert largest["copied"] < largest["pipe"]
    assert 64 <= result["crossover_bytes"] < 16 << 20


def test_the_curves_are_cached_for_later_runs(done, result, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (path,) = (folder / "cache" / "stagepipe").iterdir()
    assert json.loads(path.read_text()) == result["curves"]
    assert curve_cache.make_cache_key(VERSION) in path.name
    assert max(result["curves"]["copied"]["sizes"]) > 16 << 20


def test_the_svg_is_well_formed_and_its_labels_are_text(done, folder):
    root = ET.parse(folder / "b.svg").getroot()
    assert root.tag.endswith("svg")
    text = " ".join("".join(element.itertext()) for element in root.iter() if element.tag.endswith("text"))
    for label in ("hop: pipe", "shared memory, copied", "multiprocessing Queue", "size of the array", "is cheaper"):
        assert label in text


def test_the_png_is_not_empty(done, folder):
    with Image.open(folder / "b.png") as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 600
        assert len(set(image.convert("RGB").resize((200, 200)).get_flattened_data())) > 20


def test_no_process_is_left_behind(done):
    left = [" ".join(process.cmdline()) for process in list_run_processes()]
    assert not [line for line in left if "stagepipe" in line]


def test_ctrl_c_exits_with_130_and_prints_nothing(tmp_path):
    running = subprocess.Popen(
        [str(COMMAND), "bench", "--quick"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline_s = time.monotonic() + 30
    while not psutil.Process(running.pid).children() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the command and to the processes it started
    assert running.communicate(timeout=30) == ("", "")
    assert running.returncode == 130


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--plot", "a.gif"], "--plot a.gif: a plot needs a .svg or .png file"),
        (["--plot", "missing/a.svg"], "--plot missing/a.svg"),
        (["--json", "missing/a.json"], "--json missing/a.json"),
        (["--sizes", "3"], "--sizes"),
    ],
)
def test_a_wrong_call_exits_with_2_before_anything_is_measured(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    finished = call_here("bench", *arguments)
    assert finished.exit_code == 2
    assert words in finished.stderr
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "cache").exists()


def test_without_matplotlib_a_plot_is_refused_with_the_install_command(tmp_path):
    code = (
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'matplotlib' else find(name, *rest)\n"
        "from stagepipe.cli import main\n"
        "main()\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, "bench", "--plot", str(tmp_path / "a.svg")],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert finished.returncode == 2
    assert "pip install 'matplotlib>=" in finished.stderr
    assert "Traceback" not in finished.stderr
