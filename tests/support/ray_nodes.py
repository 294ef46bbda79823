"""A Ray cluster of several nodes on this machine: `python -m tests.support.ray_nodes 2 2` starts two of two CPUs each.

It prints one line of JSON with the address. A line `kill K` on standard input ends
node K at once; the end of the input ends the cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.paths import ROOT

_START_TIMEOUT_S = 120.0
_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the name misleads: without it, 127.0.0.1 becomes the public address
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
}


class RayNodes:
    """The cluster, run by a process of its own. A context manager."""

    def __init__(self, *cpus: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ray_nodes", *map(str, cpus)],
            cwd=ROOT,
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = ""

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self.address = json.loads(line)["address"]
                return self
        self.__exit__(None, None, None)
        message = f"the cluster has not started: exit status {self._process.returncode}"
        raise AssertionError(message)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a program that joins the cluster."""
        return {**os.environ, **_ENVIRONMENT, "RAY_ADDRESS": self.address, "PYTHONPATH": str(ROOT)}

    def kill(self, node: int) -> None:
        """End all processes of a node with SIGKILL. Returns when they are gone."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(f"kill {node}", file=self._process.stdin, flush=True)
        assert self._process.stdout.readline().strip() == f"killed {node}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._process.stdin is not None
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


def _serve(cpus: list[int]) -> None:
    folder = tempfile.mkdtemp(prefix="sp-ray-")  # short: the paths of sockets have 107 characters
    Path(folder, "ray").mkdir()
    os.environ["RAY_TMPDIR"] = folder  # Ray writes the address of the cluster there, for `address="auto"`
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        nodes = [_add_node(cluster, count, {} if number else {"temp_dir": folder}) for number, count in enumerate(cpus)]
        cluster.wait_for_nodes(_START_TIMEOUT_S)
        _say(json.dumps({"address": cluster.address}))
        for line in sys.stdin:
            number = int(line.split()[1])
            cluster.remove_node(nodes[number], allow_graceful=False)
            _say(f"killed {number}")
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _add_node(cluster: Any, cpus: int, arguments: dict[str, Any]) -> Any:
    return cluster.add_node(
        num_cpus=cpus,
        node_ip_address="127.0.0.1",
        include_dashboard=False,
        object_store_memory=150 << 20,
        **arguments,
    )


if __name__ == "__main__":
    _serve([int(argument) for argument in sys.argv[1:]])
