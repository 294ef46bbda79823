"""`stagepipe bench --quick`, once and for real: what is printed, drawn, written and kept; and wrong calls."""

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

from stagepipe.core import VERSION
from stagepipe.plan.bench import HOP, PEERS
from stagepipe.plan.calibration import kept

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


def segments():
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("psm_")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def done(folder):
    before = segments()
    finished = call(folder, "--quick", "--plot", "b.svg", "--plot", "b.png", "--json", "b.json")
    assert segments() <= before
    return finished


@pytest.fixture(scope="module")
def found(done, folder):
    return json.loads((folder / "b.json").read_text())


def test_it_prints_a_row_a_size_and_the_crossover_in_words(done, found):
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    flat = " ".join(done.stdout.split())
    for word in ("pipe", "copied", "loaned", "cold", "Pipe", "Queue", "64 B", "4.2 MB", "CPUs", "load average"):
        assert word in flat
    assert found["crossover"][1:] in flat
    assert "shared memory" in found["crossover"]
    assert "the curves are kept for later runs" in flat


def test_the_json_holds_every_point_with_its_quartiles(found):
    assert found["schema"] == "stagepipe.bench/1"
    assert found["points"].keys() == {*HOP, *PEERS}
    for points in found["points"].values():
        sizes = [point["nbytes"] for point in points]
        assert sizes == sorted(set(sizes))
        assert (sizes[0], sizes[-1]) == (64, 16 << 20)
        assert all(0 < point["low_ns"] <= point["ns"] <= point["high_ns"] for point in points)
        assert all(point["count"] >= 2 for point in points)
    assert found["turns"] >= 2
    assert found["host"]["cpus"] >= 1


def test_a_large_message_is_cheaper_in_shared_memory(found):
    largest = {name: points[-1]["ns"] for name, points in found["points"].items()}
    assert largest["copied"] < largest["pipe"]
    assert 64 <= found["crossing_bytes"] < 16 << 20


def test_the_curves_are_kept_for_later_runs(done, found, folder, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (path,) = (folder / "cache" / "stagepipe").iterdir()
    assert json.loads(path.read_text()) == found["curves"]
    assert kept.machine_key(VERSION) in path.name
    assert max(found["curves"]["copied"]["sizes"]) > 16 << 20


def test_the_svg_is_one_and_its_labels_can_be_read(done, folder):
    root = ET.parse(folder / "b.svg").getroot()
    assert root.tag.endswith("svg")
    text = " ".join("".join(element.itertext()) for element in root.iter() if element.tag.endswith("text"))
    for label in ("hop: pipe", "shared memory, copied", "multiprocessing Queue", "size of the array", "is cheaper"):
        assert label in text


def test_the_png_is_a_picture_with_something_in_it(done, folder):
    with Image.open(folder / "b.png") as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 600
        assert len(set(image.convert("RGB").resize((200, 200)).get_flattened_data())) > 20


def test_no_process_is_left_behind(done):
    left = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert not [line for line in left if "stagepipe" in line]


def test_ctrl_c_ends_it_with_130_and_without_a_word(tmp_path):
    running = subprocess.Popen(
        [str(COMMAND), "bench", "--quick"],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 30
    while not psutil.Process(running.pid).children() and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the command and to what it has started
    assert running.communicate(timeout=30) == ("", "")
    assert running.returncode == 130


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--plot", "a.gif"], "--plot a.gif: a plot is a .svg or a .png file"),
        (["--plot", "missing/a.svg"], "--plot missing/a.svg"),
        (["--json", "missing/a.json"], "--json missing/a.json"),
        (["--sizes", "3"], "--sizes"),
    ],
)
def test_a_wrong_call_ends_with_2_before_anything_is_measured(tmp_path, arguments, words):
    ended = call(tmp_path, *arguments)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "cache").exists()


def test_without_matplotlib_a_plot_is_refused_with_what_to_install(tmp_path):
    code = (
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'matplotlib' else find(name, *rest)\n"
        "from stagepipe.cli import main\n"
        "main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "bench", "--plot", str(tmp_path / "a.svg")],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == 2
    assert "pip install 'stagepipe[bench]'" in ended.stderr
    assert "Traceback" not in ended.stderr
