"""A fork server for one test, where a test needs one that others cannot use; and a Ray for the tests of a module."""

import shutil
import sys
import tempfile
from types import SimpleNamespace

import pytest

from stagepipe.engine.ray.cluster import keep_on_loopback
from stagepipe.runtime.fork_server import client


@pytest.fixture
def own_servers(monkeypatch: pytest.MonkeyPatch):
    """The fork servers of this test are its own, and import torch only if it asks for that: it takes seconds.

    A test that makes another server necessary would replace the one of the tests that follow as well.
    """
    monkeypatch.setattr(client, "_servers", {})
    sys_without_torch = SimpleNamespace(platform=sys.platform, executable=sys.executable, modules={})
    monkeypatch.setattr(client, "sys", sys_without_torch)
    yield
    for server in client._servers.values():
        server.retire()


@pytest.fixture(scope="module")
def local_ray():
    """A Ray of two CPUs on this machine, without a dashboard. Nothing of it is left."""
    ray = pytest.importorskip("ray")
    folder = tempfile.mkdtemp(prefix="sp-ray-")  # short: the paths of sockets have 107 characters
    for attempt in range(3):
        try:
            with keep_on_loopback():
                ray.init(
                    address="local",
                    num_cpus=2,
                    include_dashboard=False,
                    object_store_memory=100 << 20,
                    logging_level="WARNING",
                    _node_ip_address="127.0.0.1",
                    _temp_dir=folder,
                )
            break
        except Exception:  # Ray gives its processes 30 s to start, which a busy machine exceeds
            ray.shutdown()
            if attempt == 2:
                raise
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
