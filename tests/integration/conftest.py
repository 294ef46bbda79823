"""A fork server for one test, where a test needs one that others cannot use."""

import sys
from types import SimpleNamespace

import pytest

from stagepipe.runtime.fork_server import launch, registry


@pytest.fixture
def own_servers(monkeypatch: pytest.MonkeyPatch):
    """The fork servers of this test are its own, and import torch only if it asks for that: it takes seconds.

    A test that makes another server necessary would replace the one of the tests that follow as well.
    """
    monkeypatch.setattr(registry, "_servers", {})
    sys_without_torch = SimpleNamespace(platform=sys.platform, executable=sys.executable, modules={})
    monkeypatch.setattr(launch, "sys", sys_without_torch)
    yield
    for server in registry._servers.values():
        server.retire()
