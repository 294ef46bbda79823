"""torchrun on two nodes: a loader finds its rank's part, and a checkpoint resumes on the same or other ranks."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.pipelines import pipeline, shuffle, stage
from tests.support.rank_jobs import SCRIPT, epochs, get_found, read_results, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ITEMS = 64
TAKEN = 4  # by each of four ranks; the other 48 items are divided evenly among one, three and four ranks
CONFIG = pipeline(stage("light_draws"), stage("same", workers=2), source=ITEMS, seed=5, start="fork")
SHUFFLED = pipeline(stage("light_draws", fuse=True), shuffle(7), source=ITEMS, seed=5, start="fork")
_START_TIMEOUT_S = 300
"""For a busy machine: each rank imports torch."""


def run_nodes(folder: Path, nodes: int, ranks_of_node: int, loaders: list[dict[str, Any]]) -> tuple[list[Any], str]:
    """Start a torchrun for each node. Return what each rank found, and what all have written to stderr."""
    ranks = nodes * ranks_of_node
    job = write_job(folder, ranks, loaders, gloo=True)
    environ = {**os.environ, **json.loads(job.read_text())["environ"], "GLOO_SOCKET_IFNAME": "lo"}
    stderr = [job.parent / f"torchrun{node}" for node in range(nodes)]
    with ExitStack() as stack:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nnodes={nodes}",
            f"--nproc-per-node={ranks_of_node}",
        ]
        command += ["--master-addr=127.0.0.1", f"--master-port={find_free_port()}", "--local-addr=127.0.0.1"]
        agents = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, f"--node-rank={node}", SCRIPT, job],
                    cwd=ROOT,
                    env=environ,
                    stdout=subprocess.DEVNULL,
                    stderr=stack.enter_context(stderr[node].open("w")),
                )
            )
            for node in range(nodes)
        ]
        for agent in agents:
            stack.callback(agent.kill)
        codes = [agent.wait(_START_TIMEOUT_S) for agent in agents]
    said = "\n".join(path.read_text() for path in stderr)
    assert codes == [0] * nodes, said
    return [get_found(found) for found in read_results(job.parent, ranks)], said


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def own_part(script: list[list[Any]]) -> dict[str, Any]:
    return {"config": CONFIG, "script": script, "keywords": {"rank": "auto"}}


def shared(script: list[list[Any]]) -> dict[str, Any]:
    return {"config": SHUFFLED, "script": script, "keywords": {"share": "node", "rank": "auto"}}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], str]:
    """What four ranks on two nodes found up to their checkpoint, and what they said."""
    parts = [
        own_part([["begin"], ["take", TAKEN], ["gather"]]),
        shared([["begin"], ["take", TAKEN], ["gather"]]),
        {"config": CONFIG, "script": [["begin"], ["take", 2]]},
    ]
    return run_nodes(tmp_path_factory.mktemp("stopped"), 2, 2, parts)


@pytest.fixture(scope="module")
def two_epochs() -> list[list[Any]]:
    return epochs(CONFIG, 2)


def test_each_rank_of_both_nodes_takes_its_own_part(stopped, two_epochs):
    found, _ = stopped
    for rank in range(4):
        assert found[rank][0][0] == two_epochs[0][rank::4][:TAKEN]
        assert found[rank][0][1] == found[0][0][1], "each rank has the states of all"


def test_ranks_that_nobody_told_their_part_are_warned(stopped, two_epochs):
    found, said = stopped
    for rank in range(4):
        assert found[rank][2][0] == two_epochs[0][:2]
        assert f"this process is rank {rank} of 4, and its loader yields all items" in said


@pytest.mark.parametrize("nodes, ranks_of_node", [(2, 2), (1, 3), (1, 1)])
def test_a_checkpoint_resumes_on_any_number_of_ranks_without_loss_or_repetition(
    stopped, two_epochs, tmp_path, nodes, ranks_of_node
):
    before, _ = stopped
    ranks = nodes * ranks_of_node
    found, _ = run_nodes(
        tmp_path,
        nodes,
        ranks_of_node,
        [own_part([["load", before[0][0][1]], ["begin"], ["take"], ["begin"], ["take", 9]])],
    )
    first_left = 4 * TAKEN
    for rank in range(ranks):
        rest, following = found[rank][0]
        assert rest == [two_epochs[0][item] for item in range(first_left, ITEMS) if item % ranks == rank]
        assert following == two_epochs[1][rank::ranks][:9], "then the next epoch follows"
    received = [item for rank in before for item in rank[0][0]] + [item for rank in found for item in rank[0][0]]
    assert sorted(map(json.dumps, received)) == sorted(map(json.dumps, two_epochs[0])), "each item once, the same bits"


def test_the_pipelines_of_both_nodes_resume_with_their_ranks(stopped, tmp_path):
    before, _ = stopped
    found, _ = run_nodes(tmp_path, 2, 2, [shared([["load", before[0][1][1]], ["begin"], ["take"]])])
    whole, _ = run_nodes(tmp_path, 2, 2, [shared([["begin"], ["take"]])])
    for rank in range(4):
        assert before[rank][1][0] + found[rank][0][0] == whole[rank][0][0]
    received = [item["item"] for rank in whole for item in rank[0][0]]
    assert sorted(received) == list(range(ITEMS))
