"""`inside: local` on a Ray cluster of two nodes on this machine: the local engine's rows, also after a lost node."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.ray_nodes import RayNodes
from tests.support.sink_output import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COMMAND = str(Path(sys.executable).parent / "stagepipe")
ISLANDS = "engine={ray: {inside: local}}"


@pytest.fixture(scope="module")
def nodes():
    """A cluster for the tests that leave it as it is."""
    with RayNodes(2, 2) as cluster:
        yield cluster


def write_config(folder: Path, count: int, extract: str = "extract", **sink: Any) -> None:
    config = {
        "name": "features",
        "source": {"uses": "tests.support.sink_stages.Numbers", "with": {"count": count}},
        "stages": [{"name": "extract", "uses": f"tests.support.sink_stages.{extract}"}],
        "sink": {"uses": "stagepipe.sinks.jsonl", "with": {"path": "out", "part_items": 5, "shard_items": 20}, **sink},
    }
    (folder / "features.yaml").write_text(yaml.safe_dump(config))


def start(cluster: RayNodes, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, "run", "features.yaml", *arguments],
        cwd=folder,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(cluster: RayNodes, folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = start(cluster, folder, *arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def run_locally(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([COMMAND, "run", "features.yaml", "--quiet", *arguments], cwd=folder, env=environment, check=True)


def read(folder: Path) -> list[Any]:
    return read_rows(folder, "jsonl")


def read_islands(folder: Path) -> list[Any]:
    """The rows of both islands, in the order of the source: item i went to island i % 2."""
    rows = [read(folder / f"island-{rank}-of-2") for rank in (0, 1)]
    assert len(rows[0]) - len(rows[1]) in (0, 1)
    merged = [row for pair in zip(*rows, strict=False) for row in pair]
    return merged + rows[0][len(rows[1]) :]


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def count_committed(folder: Path) -> int:
    """How many shards have their last name: what an island has committed."""
    return len(list(folder.glob("*.jsonl")))


def test_rows_reports_and_table_of_two_islands(nodes, tmp_path):
    write_config(tmp_path, 101, workers=2)
    run_locally(tmp_path, "sink.with.path=local")
    code, out, err = run(nodes, tmp_path, ISLANDS, "--report", "islands.json")
    assert code == 0, err
    assert read_islands(tmp_path / "out") == read(tmp_path / "local")
    document = json.loads((tmp_path / "islands.json").read_text())
    assert document["schema"] == "stagepipe.islands/1"
    assert [island["report"]["run"]["items_in"] for island in document["islands"]] == [51, 50]
    assert len({island["node"] for island in document["islands"]}) == 2
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines[:4]] == ["island", "0", "1", "all"]
    assert lines[3][1:3] == ["101", "101"], out
    assert "was the last to finish." in out


def test_a_second_run_is_refused_and_a_resume_of_a_finished_one_says_so(nodes, tmp_path):
    write_config(tmp_path, 40)
    assert run(nodes, tmp_path, ISLANDS)[0] == 0
    rows = read_islands(tmp_path / "out")
    code, _, err = run(nodes, tmp_path, ISLANDS)
    assert code == 2, err
    assert "add --resume" in err
    code, out, err = run(nodes, tmp_path, ISLANDS, "--resume")
    assert code == 0, err
    assert out.count("done before") == 2, out
    assert read_islands(tmp_path / "out") == rows


def test_a_failing_stage_ends_all_islands_and_is_named(nodes, tmp_path):
    write_config(tmp_path, 4000, "extract_slowly")
    config = yaml.safe_load((tmp_path / "features.yaml").read_text())
    config["stages"].insert(0, {"name": "raises", "uses": "tests.support.bad_stages.raises"})  # item 5: island 1
    (tmp_path / "features.yaml").write_text(yaml.safe_dump(config))
    code, out, err = run(nodes, tmp_path, ISLANDS)
    assert code == 1, err
    assert re.search(r"island 1 on node 127\.0\.0\.1:\d+: stage raises.* item 5", err), err
    assert err.count("Traceback") == 1, "only that of the user's stage"
    statuses = {line.split()[0]: line.split()[2] for line in out.splitlines() if line[:1] in {"0", "1"}}
    assert statuses == {"0": "stopped", "1": "failed"}


def test_an_interrupt_ends_the_islands_and_a_resume_goes_on(nodes, tmp_path):
    write_config(tmp_path, 3000, "extract_slowly")
    run_locally(tmp_path, "sink.with.path=local", "stages.extract.uses=tests.support.sink_stages.extract")
    process = start(nodes, tmp_path, ISLANDS)
    wait_for(lambda: all(count_committed(tmp_path / f"out/island-{rank}-of-2") for rank in (0, 1)), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    code, _, err = run(nodes, tmp_path, ISLANDS, "--resume")
    assert code == 0, err
    assert read_islands(tmp_path / "out") == read(tmp_path / "local")


def test_a_killed_command_takes_its_islands_along_and_a_resume_goes_on(nodes, tmp_path):
    write_config(tmp_path, 3000, "extract_slowly")
    run_locally(tmp_path, "sink.with.path=local", "stages.extract.uses=tests.support.sink_stages.extract")
    process = start(nodes, tmp_path, ISLANDS)
    wait_for(lambda: all(count_committed(tmp_path / f"out/island-{rank}-of-2") for rank in (0, 1)), process)
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 120
    while True:  # refused until Ray has found out, and has ended the islands
        code, _, err = run(nodes, tmp_path, ISLANDS, "--resume")
        if not re.search("CPUs are free|another run writes", err):
            break
        assert time.monotonic() < deadline, err
    assert code == 0, err
    assert read_islands(tmp_path / "out") == read(tmp_path / "local")


def test_a_lost_node_fails_by_name_and_a_resume_completes_its_share(tmp_path):
    write_config(tmp_path, 3000, "extract_slowly")
    run_locally(tmp_path, "sink.with.path=local", "stages.extract.uses=tests.support.sink_stages.extract")
    with RayNodes(2, 2) as cluster:
        process = start(cluster, tmp_path, ISLANDS)
        wait_for(lambda: all(count_committed(tmp_path / f"out/island-{rank}-of-2") for rank in (0, 1)), process)
        cluster.kill(1)
        out, err = process.communicate(timeout=300)
        assert process.returncode == 1, err
        assert re.search(r"was lost: .*\n.*--resume continues", err), err
        assert "Traceback" not in err
        statuses = sorted(line.split()[2] for line in out.splitlines() if line[:1] in {"0", "1"})
        assert statuses == ["finished", "lost"], out
        code, out, err = run(cluster, tmp_path, ISLANDS, "--resume")
        assert code == 0, err
        assert "done before" in out, "the share of the node that lived is not run again"
    assert read_islands(tmp_path / "out") == read(tmp_path / "local"), "nothing is lost, and nothing is there twice"
