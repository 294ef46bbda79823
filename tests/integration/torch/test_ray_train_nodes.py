"""Ray Train on a cluster of two nodes, which are two addresses of the loopback device."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.rank_jobs import epochs
from tests.support.ray_training import CONFIG, TAKEN, check_resumed, fit, read_items

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

ADDRESSES = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[None]:
    """A cluster with half a CPU for a worker on each node. Nothing of it is left."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with (
        tempfile.TemporaryDirectory(prefix="sp-ray-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_TMPDIR", folder)  # Ray writes the address of the cluster there, for `address="auto"`
        cluster = Cluster(shutdown_at_exit=False)
        try:
            for address in ADDRESSES:
                cluster.add_node(
                    num_cpus=1,
                    object_store_memory=100 << 20,
                    node_ip_address=address,
                    include_dashboard=False,
                    temp_dir=folder,
                )
            ray.init(address=cluster.address, logging_level="WARNING", _node_ip_address=ADDRESSES[0])
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


def read_addresses(folder: Path) -> list[str]:
    """Return the addresses of the nodes on which the workers ran."""
    return sorted(path.read_text() for path in folder.glob("started-rank*.address"))


def test_workers_on_two_nodes_stop_and_three_take_their_place(two_epochs, tmp_path):
    fit(tmp_path, 2, {"rank": "auto"}, stops=True)
    assert read_addresses(tmp_path) == [*ADDRESSES]
    started = read_items(tmp_path, "started", 2)
    assert started == [[[0, item] for item in two_epochs[0][rank::2][:TAKEN]] for rank in range(2)]
    fit(tmp_path, 3, {"rank": "auto"})
    check_resumed(started, read_items(tmp_path, "resumed", 3), two_epochs)


def test_the_workers_of_each_node_share_a_pipeline(two_epochs, tmp_path):
    fit(tmp_path, 4, {"share": "node"})
    assert read_addresses(tmp_path) == [address for address in ADDRESSES for _ in range(2)]
    for rank, received in enumerate(read_items(tmp_path, "started", 4)):
        of_node = two_epochs[0][rank // 2 :: 2]
        assert received == [[0, item] for item in of_node[rank % 2 :: 2]]
