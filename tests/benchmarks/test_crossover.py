"""benchmarks/crossover.py runs every contestant, checks what arrives, judges by its figures, and draws them."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import psutil
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
CROSSOVER = ROOT / "benchmarks" / "crossover.py"
CONTESTANTS = ("Pipe", "RawArray", "stagepipe pipe", "stagepipe shared_memory", "stagepipe auto")


def run_crossover(*options):
    return subprocess.run(
        [sys.executable, str(CROSSOVER), *options], capture_output=True, text=True, timeout=110, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("crossover")


@pytest.fixture(scope="module")
def done(folder):
    plots = ("--plot", str(folder / "c.svg"), "--plot", str(folder / "c.png"))
    return run_crossover("--sizes", "2,64", "--repetitions", "2", "--json", str(folder / "c.json"), *plots)


@pytest.fixture(scope="module")
def found(done, folder):
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "c.json").read_text())


def test_every_contestant_has_a_row_at_every_size(done, found):
    assert done.stderr == ""
    rows = {(row["contestant"], row["d"]): row for row in found["rows"]}
    assert rows.keys() == {(name, d) for name in CONTESTANTS for d in (2, 64)}
    for row in rows.values():
        assert len(row["us"]) == len(row["steady_us"]) == 2
        assert min(row["us"] + row["steady_us"]) > 0
    assert found["transfers"] == 100
    assert "crossover.py" in found["command"]
    assert "crossover.py" in done.stdout
    assert not [
        child for child in psutil.Process().children(recursive=True) if "crossover" in " ".join(child.cmdline())
    ]


def test_it_prints_a_line_a_size_and_a_verdict_for_both_promises(done, found):
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[1] for line in lines if line[:1] == ["2"]] == ["16", "16"], "from the request, and from the first"
    assert [line[1] for line in lines if line[:1] == ["64"]] == ["16,384", "16,384"]
    assert len([line for line in lines if line[:1] in (["PASS"], ["MISS"])]) == 2
    assert [target["met"] is None for target in found["targets"]] == [False, False]


def test_each_mode_is_what_its_name_says(found):
    for d in ("2", "64"):
        told = found["told"][d]
        assert told["stagepipe pipe"]["messages"]["pipe"] == 600, "two repetitions, two to warm up and two checked ones"
        assert told["stagepipe shared_memory"]["messages"]["shared_memory"] == 600
        assert sum(told["stagepipe auto"]["messages"].values()) == 600
        assert told["stagepipe auto"]["mode"] == "auto"


def test_the_plot_shows_all_five(done, folder):
    root = ET.parse(folder / "c.svg").getroot()
    text = " ".join("".join(element.itertext()) for element in root.iter() if element.tag.endswith("text"))
    for label in (*CONTESTANTS, "microseconds a transfer", "16 KiB"):
        assert label in text
    with Image.open(folder / "c.png") as image:
        image.load()
        assert image.format == "PNG"


@pytest.mark.parametrize("name", CONTESTANTS)
def test_a_corrupted_transfer_is_noticed(name):
    ended = run_crossover("--sizes", "4", "--repetitions", "1", "--only", name, "--corrupt", name)
    assert ended.returncode == 1
    assert f"{name}, d = 4: transfer 0 came with 1 of 16 elements wrong" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "options, words",
    [(("--only", "Pipes"), "RawArray"), (("--plot", "a.gif"), ".svg or a .png"), (("--sizes", "0"), "d is 1 or more")],
)
def test_a_wrong_call_is_answered_with_what_is_right(options, words):
    ended = run_crossover(*options)
    assert ended.returncode == 2
    assert words in ended.stderr
