"""benchmarks.peers runs a job's functions by each contestant in a process of its own, and compares the samples."""

import json

import pytest

from benchmarks.peers import OURS, REFERENCE
from benchmarks.peers import __main__ as command
from benchmarks.peers.jobs import Process
from tests.support.command import run_benchmark


@pytest.mark.timeout(120)
def test_the_contestants_deliver_the_samples_of_the_plain_loop(tmp_path):
    path = tmp_path / "peers.json"
    names = f"{OURS}; {REFERENCE}; Pool.imap"
    done = run_benchmark("peers", "--jobs", "tokens", "--only", names, "--quick", "--rounds", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    section = json.loads(path.read_text())["jobs"]["tokens"]
    inspected = {turn["contestant"]: turn["figures"] for turn in section["turns"] if turn["round"] == 0}
    timed = {turn["contestant"]: turn["figures"] for turn in section["turns"] if turn["round"] == 1}
    assert len(inspected) == len(timed) == 3
    assert {figures["inspected"] for figures in inspected.values()} == {192}
    assert len({figures["batches"] for figures in inspected.values()}) == 1
    assert inspected[OURS]["pss_bytes"] > inspected[REFERENCE]["pss_bytes"] > 10_000_000
    for figures in timed.values():
        assert figures["items_per_s"] > 0 < figures["cpu_s_per_item"]
        assert figures["items"] == 64 * sum(figures["waits"].values())
    assert "of the items/s of" in done.stdout
    assert section["about"]["commit"] in done.stdout
    assert "numpy" in section["about"]["machine"]["versions"]


def test_an_unknown_name_is_answered_with_the_known_ones(capsys):
    with pytest.raises(SystemExit, match="2"):
        command.main(["--jobs", "videos"])
    assert "choose from images" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tokens", "clips"])
def test_a_job_makes_the_same_sample_every_time(name):
    first, second = (Process(name)(5) for _ in range(2))
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert (value == second[key]).all() if key != "index" else value == second[key] == 5
