"""benchmarks/published runs every contestant, verifies what arrives, cleans up, resumes, and makes its page."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.common.turn import FIGURES
from benchmarks.published import __main__ as command
from benchmarks.published import e1, e2, e4, e5, make_page, unmet_need
from benchmarks.published.results import EXPERIMENTS, contestant
from tests.support.paths import ROOT
from tests.support.processes import list_run_command_lines
from tests.support.shared_memory import list_kept_segments, list_segments

pytestmark = pytest.mark.timeout(300)

SEGMENTS = ("turn-", "psm_", "iox2_")  # of the kinds that contestants create
CHEAP = {
    "E1": ("stagepipe", "stdio pipe, base64"),
    "E2": ("stagepipe, array", "Pipe"),
    "E4": ("stagepipe", "Unix socket", "ZeroMQ ipc, no copy"),
    "E5": ("stagepipe", "threads"),
    "E5 queue": ("stagepipe", "multiprocessing.Queue"),
}


CONTESTANTS = {name: [one.name for one in found.contestants] for name, found in EXPERIMENTS.items()}
PAYLOADS = {name: [one.name for one in found.payloads["small"]] for name, found in EXPERIMENTS.items()}


def run_published(*options, timeout=280, **environment):
    """Run with a temporary folder that must be empty afterwards. Its name is short because sockets lie in it."""
    before = list_segments(*SEGMENTS)
    with tempfile.TemporaryDirectory(prefix="b", dir="/tmp") as temporary:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.published", "--size", "small", *options],
            env={**os.environ, "TMPDIR": temporary, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=ROOT,
        )
        assert list(Path(temporary).iterdir()) == []
    assert not list_kept_segments(before, *SEGMENTS)
    assert not list_run_command_lines("benchmarks.published")
    return done


def results(path):
    """Return the turns by experiment and contestant."""
    return {(turn["experiment"], turn["contestant"]): turn for turn in json.loads(path.read_text())["turns"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("published")


@pytest.fixture(scope="module")
def done(folder):
    only = "; ".join(dict.fromkeys(name for names in CHEAP.values() for name in names))
    return run_published("--json", str(folder / "r.json"), "--only", only, "--experiments", ",".join(CHEAP))


def test_each_chosen_contestant_has_a_figure_with_every_payload(done, folder):
    assert done.returncode == 0, done.stderr
    turns = results(folder / "r.json")
    for experiment, names in CHEAP.items():
        for name in names:
            turn = turns[experiment, name]
            assert turn["reason"] == ""
            cells = {cell["payload"]: cell for cell in turn["cells"]}
            assert list(cells) == PAYLOADS[experiment]
            for cell in cells.values():
                assert cell["reason"] == ""
                assert min(cell["ns"]) > 0
                assert cell["cpu_ns"] > 0
                assert cell["peak_bytes"] > 1_000_000


def test_the_parts_of_a_round_trip_are_recorded(done, folder):
    turns = results(folder / "r.json")
    (cell,) = turns["E1", "stdio pipe, base64"]["cells"]
    assert len(cell["parts_ns"]) == 9
    assert all(cell["parts_ns"].values())
    assert turns["E1", "stagepipe"]["told"]["parts_ns"]["responder restore"] > 0
    assert turns["E2", "Pipe"]["cells"][0]["parts_ns"].keys() == {"send", "receive"}


def test_the_results_have_the_machine_and_the_command(done, folder):
    found = json.loads((folder / "r.json").read_text())
    assert found["schema"] == "stagepipe.published/1"
    assert found["finished"]
    assert found["machine"]["versions"]["numpy"]
    assert "python -m benchmarks.published" in found["command"]
    assert found["command"] in done.stdout
    assert "MNIST" in found["sources"]["E1"]


def test_an_interrupted_run_resumes(done, folder, tmp_path):
    found = json.loads((folder / "r.json").read_text())
    kept = [turn for turn in found["turns"] if turn["contestant"] != "Unix socket"]
    (tmp_path / "r.json").write_text(json.dumps({**found, "finished": False, "turns": kept}))
    again = run_published(
        "--json", str(tmp_path / "r.json"), "--only", "; ".join(found["settings"]["only"]),
        "--experiments", ",".join(CHEAP),
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert f"{len(kept)} turns are done" in again.stdout
    turns = json.loads((tmp_path / "r.json").read_text())["turns"]
    assert turns[: len(kept)] == kept
    assert [turn["contestant"] for turn in turns[len(kept) :]] == ["Unix socket"]


def test_a_contestant_that_cannot_run_here_stays_in_the_tables_with_the_reason(tmp_path):
    only = ("--experiments", "E1,E4", "--only", "MPI; Redis lists; ZeroMQ ipc")
    ended = run_published("--json", str(tmp_path / "r.json"), *only, PATH="/nowhere")
    assert ended.returncode == 0, ended.stderr
    turns = results(tmp_path / "r.json")
    for key in (("E1", "MPI"), ("E4", "Redis lists")):
        assert turns[key]["reason"].startswith("needs ")
        assert turns[key]["reason"] in ended.stdout
    assert turns["E4", "ZeroMQ ipc"]["reason"] == ""


def test_a_corrupted_transfer_is_detected(tmp_path):
    check_corrupted("E4", "stagepipe", tmp_path)


@pytest.mark.parametrize(
    "name, make",
    [
        ("E1", lambda payload: e1.stamp(e1.table(payload.values["rows"]), 7)),
        ("E2", lambda payload: [7, *e2.numbers(payload.values["n"])[1:]]),
        ("E4", lambda payload: e4.random_array(7, tuple(payload.values["shape"]))),
        ("E5", lambda payload: [e5.expected(payload.values["function"])] * payload.values["workers"]),
        ("E5 queue", lambda _: list(e5.Objects("None"))),
    ],
)
def test_arrived_items_are_right_until_they_are_corrupted(name, make):
    experiment = EXPERIMENTS[name]
    payload = experiment.payloads["small"][0]
    data = make(payload)
    experiment.check(data, payload, 7)
    with pytest.raises(AssertionError):
        experiment.check(experiment.spoil(data), payload, 7)


def check_corrupted(experiment, name, folder):
    only = ("--experiments", experiment, "--only", name, "--corrupt", name)
    ended = run_published("--json", str(folder / "r.json"), *only)
    assert ended.returncode == 1
    assert f"{name}, {experiment}, payload {PAYLOADS[experiment][0]}: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (folder / "r.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("experiment", CONTESTANTS)
def test_every_contestant_has_figures_or_a_reason(experiment, tmp_path):
    ended = run_published("--json", str(tmp_path / "r.json"), "--experiments", experiment, timeout=390)
    assert ended.returncode == 0, ended.stderr
    turns = results(tmp_path / "r.json")
    assert [name for _, name in turns] == CONTESTANTS[experiment][::-1]  # round 0 runs backwards
    for turn in turns.values():
        if not turn["reason"].startswith("needs "):
            assert turn["reason"] == ""
            assert [cell["payload"] for cell in turn["cells"]] == PAYLOADS[experiment]
            assert [cell["reason"] for cell in turn["cells"] if not cell["ns"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("experiment, name", [(known, name) for known, names in CONTESTANTS.items() for name in names])
def test_a_corrupted_transfer_of_any_contestant_is_detected(experiment, name, tmp_path):
    if reason := unmet_need(contestant(experiment, name)):
        pytest.skip(reason)
    check_corrupted(experiment, name, tmp_path)


def test_the_page_has_all_tables_and_plots(done, folder):
    make_page.main([str(folder / "r.json"), str(folder / "page.md")])
    text = (folder / "page.md").read_text()
    for experiment, names in CHEAP.items():
        quoted = f"'{experiment}'" if " " in experiment else experiment
        assert f"python -m benchmarks.published --experiments {quoted}\n" in text
        picture = ET.parse(folder / "page" / f"{experiment.replace(' ', '_').lower()}.svg").getroot()
        labels = " ".join("".join(element.itertext()) for element in picture.iter() if element.tag.endswith("text"))
        for name in names:
            assert name in text
            assert name in labels


def test_the_page_in_docs_matches_the_results_next_to_it(tmp_path):
    make_page.main([str(FIGURES / "published.json"), str(tmp_path / "benchmarks.md")])
    assert (tmp_path / "benchmarks.md").read_text() == (ROOT / "docs" / "benchmarks.md").read_text()


@pytest.fixture
def altered(done, folder, tmp_path):
    """Return a function that writes the results with a different time for stagepipe in E4."""

    def write(name, ns):
        found = json.loads((folder / "r.json").read_text())
        for turn in found["turns"]:
            if (turn["experiment"], turn["contestant"]) == ("E4", "stagepipe"):
                turn["cells"] = [{**cell, "ns": [ns]} for cell in turn["cells"]]
        (tmp_path / name).write_text(json.dumps(found))
        return tmp_path / name

    return write


def test_the_page_says_where_another_is_faster_and_why(altered, tmp_path):
    make_page.main([str(altered("slow.json", 10_000_000_000)), str(tmp_path / "page.md")])
    targets, faster = (tmp_path / "page.md").read_text().split("## Targets")[1].split("## Where stagepipe")
    assert "in E4 at payloads of 64 KiB and more: met in 0 of 4; **missed** in 4, against" in " ".join(targets.split())
    for name in CHEAP["E4"][1:]:
        assert f"| E4 | {name} |" in faster
    assert "- E4" in faster


@pytest.mark.parametrize(
    "options, words",
    [(("--experiments", "E9"), "E5 queue"), (("--only", "Pipes"), "Listener/Client"), (("--size", "huge"), "full")],
)
def test_a_wrong_option_is_answered_with_the_valid_values(options, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(options)
    assert words in capsys.readouterr().err


def test_the_server_script_succeeds_without_apt():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "install_servers.py")],
        env={**os.environ, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0
    assert "there is no apt here" in done.stdout
