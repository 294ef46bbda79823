"""The Ray that a run starts for itself."""

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
import ipaddress
import psutil
from stagepipe.engine.ray import RayCluster

cluster = RayCluster("local")
try:
    own = psutil.Process()
    pids = {own.pid, *(child.pid for child in own.children(recursive=True))}
    sockets = [entry for entry in psutil.net_connections("tcp") if entry.pid in pids and entry.status == "LISTEN"]
    addresses = {ipaddress.ip_address(entry.laddr.ip) for entry in sockets}
finally:
    cluster.close()
assert len(sockets) > 3, sockets
unmapped = {getattr(address, "ipv4_mapped", None) or address for address in addresses}
assert all(address.is_loopback for address in unmapped), addresses
assert not own.children(recursive=True)
"""


def test_it_listens_only_on_the_loopback_address_and_leaves_no_process():
    """In a program of its own, which has not imported ray before."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
