"""`engine: ray` on two nodes, one of which is killed in mid-run: the rows of the local engine, or an end by name."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT
from tests.support.ray_nodes import RayNodes
from tests.support.sink_output import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COMMAND = str(Path(sys.executable).parent / "stagepipe")
ITEMS = 3000


def write_config(folder: Path, **stage: Any) -> None:
    config = {
        "name": "features",
        "source": {"uses": "tests.support.sink_stages.Numbers", "with": {"count": ITEMS}},
        "stages": [
            {
                "name": "extract",
                "uses": "tests.support.ray_stages.ExtractAndNoteNode",
                "with": {"folder": str(folder / "nodes")},
                **stage,
            }
        ],
        "sink": {"uses": "stagepipe.sinks.jsonl", "with": {"path": "out", "part_items": 5, "shard_items": 20}},
    }
    (folder / "nodes").mkdir()
    (folder / "features.yaml").write_text(yaml.safe_dump(config))


def command(*arguments: str) -> list[str]:
    return [COMMAND, "run", "features.yaml", "--quiet", *arguments]


def run_locally(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command("sink.with.path=local"), cwd=folder, env=environment, check=True)


def start(cluster: RayNodes, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("engine=ray", *arguments), cwd=folder, env=cluster.environment, stderr=subprocess.PIPE, text=True
    )


def wait_for_shards(process: subprocess.Popen[str], folder: Path, nodes: int) -> None:
    """Return when so many nodes have worked for the stage, and some rows are written but not all."""
    deadline = time.monotonic() + 200
    while len(list((folder / "out").glob("*.jsonl"))) < 2 or len(list((folder / "nodes").iterdir())) < nodes:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert process.poll() is None, "it has ended before a node could be lost"


def lose_a_node(cluster: RayNodes, folder: Path, number: int, working: int) -> tuple[subprocess.Popen[str], str]:
    """Run the config, and kill a node once rows are written. Return the ended process, and what it has printed.

    `working`: how many nodes have a worker of the stage.
    """
    process = start(cluster, folder)
    wait_for_shards(process, folder, working)
    cluster.kill(number)
    return process, process.communicate(timeout=400)[1]


def test_a_lost_node_costs_no_row_and_no_row_comes_twice(tmp_path):
    write_config(tmp_path, workers=2)
    run_locally(tmp_path)
    with RayNodes(2, 2) as cluster:
        process, err = lose_a_node(cluster, tmp_path, 1, working=2)
        assert process.returncode == 0, err
    assert read_rows(tmp_path / "out", "jsonl") == read_rows(tmp_path / "local", "jsonl")


def test_a_loss_after_which_the_cpus_do_not_suffice_ends_by_name_and_a_resume_goes_on(tmp_path):
    write_config(tmp_path, resources={"cpus": 2})  # only the second node has so many
    run_locally(tmp_path)
    with RayNodes(1, 2) as cluster:
        process, err = lose_a_node(cluster, tmp_path, 1, working=1)
        assert process.returncode == 1, err
        assert re.search(
            r"engine: ray: a node was lost \(.*\), and the others, with 1 CPUs .* workers of extract", err
        ), err
        assert "--resume" in err, err
        assert "Traceback" not in err, err
        resumed = start(cluster, tmp_path, "--resume", "stages.extract.resources={cpus: 0.5}")
        _, err = resumed.communicate(timeout=400)
        assert resumed.returncode == 0, err
    assert read_rows(tmp_path / "out", "jsonl") == read_rows(tmp_path / "local", "jsonl")


def test_a_lost_head_ends_the_command_and_a_resume_on_another_cluster_goes_on(tmp_path):
    write_config(tmp_path, workers=2)
    run_locally(tmp_path)
    with RayNodes(2, 2) as cluster:
        process, _ = lose_a_node(cluster, tmp_path, 0, working=2)
        assert process.returncode not in (0, None), "Ray ends the process after a minute, with a message of its own"
    with RayNodes(2) as cluster:
        resumed = start(cluster, tmp_path, "--resume")
        _, err = resumed.communicate(timeout=400)
        assert resumed.returncode == 0, err
    assert read_rows(tmp_path / "out", "jsonl") == read_rows(tmp_path / "local", "jsonl")
