"""benchmarks/crossover runs every contestant, checks what arrives, judges its figures and draws them."""

import json
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from benchmarks.crossover import __main__ as command
from tests.support.command import run_benchmark
from tests.support.processes import list_run_command_lines

CONTESTANTS = ("Pipe", "RawArray", "stagepipe pipe", "stagepipe shared_memory", "stagepipe auto")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("crossover")


@pytest.fixture(scope="module")
def done(folder):
    plots = ("--plot", str(folder / "c.svg"), "--plot", str(folder / "c.png"))
    return run_benchmark("crossover", "--sizes", "2,64", "--rounds", "2", "--json", str(folder / "c.json"), *plots)


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
    assert "python -m benchmarks.crossover" in found["command"]
    assert "python -m benchmarks.crossover" in done.stdout
    assert not list_run_command_lines("crossover")


def test_it_prints_a_line_per_size_and_a_verdict_for_both_targets(done, found):
    printed = done.stdout.splitlines()
    for start in ("| 2 | 16 |", "| 64 | 16,384 |"):
        assert len([line for line in printed if line.startswith(start)]) == 2, "from the request and the first array"
    lines = [line.split() for line in printed]
    assert len([line for line in lines if line[:1] in (["PASS"], ["MISS"], ["--"], ["undecided"])]) == 2
    assert all(target["met"] is not None or "undecided at d" in target["measured"] for target in found["targets"])


def test_each_mode_uses_the_transport_of_its_name(found):
    for d in ("2", "64"):
        reports = found["told"][d]
        assert reports["stagepipe pipe"]["messages"]["pipe"] == 600, "two repetitions, two to warm up, two checked ones"
        assert reports["stagepipe shared_memory"]["messages"]["shared_memory"] == 600
        assert sum(reports["stagepipe auto"]["messages"].values()) == 600
        assert reports["stagepipe auto"]["mode"] == "auto"


def test_the_plot_shows_all_five_contestants(done, folder):
    root = ET.parse(folder / "c.svg").getroot()
    text = " ".join("".join(element.itertext()) for element in root.iter() if element.tag.endswith("text"))
    for label in (*CONTESTANTS, "microseconds per transfer", "16 KiB"):
        assert label in text
    with Image.open(folder / "c.png") as image:
        image.load()
        assert image.format == "PNG"


@pytest.mark.parametrize("name", [pytest.param("RawArray", marks=pytest.mark.slow), "stagepipe auto"])
def test_a_corrupted_transfer_is_detected(name):
    ended = run_benchmark("crossover", "--sizes", "4", "--rounds", "1", "--only", name, "--corrupt", name)
    assert ended.returncode == 1
    assert f"{name}, d = 4: transfer 0 has 1 of 16 elements wrong" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "options, words",
    [
        (("--only", "Pipes"), "RawArray"),
        (("--plot", "a.gif"), ".svg or .png"),
        (("--sizes", "0"), "d must be 1 or more"),
    ],
)
def test_a_wrong_option_is_answered_with_the_valid_values(options, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(options)
    assert words in capsys.readouterr().err
