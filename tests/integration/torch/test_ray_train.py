"""Ray Train on two nodes: each worker takes its part, and a checkpoint resumes with other workers and after a kill."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.rank_jobs import epochs
from tests.support.ray_training import CONFIG, TAKEN, check_resumed, fit, read_items

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

AUTO = {"rank": "auto"}
LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[None]:
    """A cluster of two nodes with a CPU each, on this machine. Nothing of it is left.

    `ray.init(_node_ip_address="127.0.0.1")` would start one at the address that others can reach; Ray replaces it.
    """
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with (
        tempfile.TemporaryDirectory(prefix="sp-ray-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        (Path(folder) / "ray").mkdir()  # Ray writes the address of the cluster there, for `address="auto"`
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Cluster()
        try:
            for _ in range(2):
                cluster.add_node(
                    num_cpus=1,
                    object_store_memory=100 << 20,
                    node_ip_address=LOOPBACK,
                    include_dashboard=False,
                    temp_dir=folder,
                )
            ray.init(address=cluster.address, logging_level="WARNING")
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(autouse=True)
def _nodes(two_nodes):
    pass


@pytest.fixture(scope="module")
def two_epochs() -> list[list[Any]]:
    return epochs(CONFIG, 2)


@pytest.fixture(scope="module")
def stopped(two_nodes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two workers that have stopped at their checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    fit(folder, 2, AUTO, stops=True)
    return folder


def test_each_worker_takes_its_part_of_the_source_on_its_node(stopped, two_epochs):
    for rank, received in enumerate(read_items(stopped, "started", 2)):
        assert received == [[0, item] for item in two_epochs[0][rank::2][:TAKEN]]
    assert len({path.read_text() for path in stopped.glob("started-rank*.node")}) == 2


def test_the_cluster_listens_on_the_loopback_device_alone():
    sockets = [
        socket for child in psutil.Process().children(recursive=True) for socket in child.net_connections("inet")
    ]
    listening = {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}
    assert listening == {LOOPBACK}


@pytest.mark.parametrize("workers", [2, 3, 1])
def test_a_checkpoint_resumes_with_any_number_of_workers(stopped, two_epochs, tmp_path, workers):
    folder = shutil.copytree(stopped, tmp_path / "copy")
    fit(folder, workers, AUTO)
    check_resumed(read_items(folder, "started", 2), read_items(folder, "resumed", workers), two_epochs)


def test_a_killed_worker_is_replaced_and_the_run_goes_on_from_its_checkpoint(two_epochs, tmp_path):
    fit(tmp_path, 2, AUTO, failures=1, kills=True)
    started = read_items(tmp_path, "started", 2)
    assert len(started[1]) == TAKEN + 2, "it was killed after its checkpoint"
    check_resumed([received[:TAKEN] for received in started], read_items(tmp_path, "resumed", 2), two_epochs)


def test_workers_on_a_machine_share_a_pipeline_and_resume_together(two_epochs, tmp_path):
    shared = {"share": "node"}
    fit(tmp_path, 2, shared, stops=True)
    fit(tmp_path, 2, shared)
    check_resumed(read_items(tmp_path, "started", 2), read_items(tmp_path, "resumed", 2), two_epochs)
