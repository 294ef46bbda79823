"""dora and Ray, whose runtimes start the other side.

dora: a dataflow of two nodes, one of which is the process of the turn; the outputs are Arrow arrays. `dora run` starts
both nodes. The same outputs carry the requests, and before them what the server creates next.
Ray: an actor creates the array, the object store holds it, and the caller maps it.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.published.e4 import Maker
from benchmarks.published.model import Payload, Received, program

_DEADLINE_S = 120.0


def launch(folder: Path, command: list[str]) -> list[str]:
    """Return the command that runs `command` as one node of a dataflow, and a server as the other."""
    python, *arguments = command
    environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TMPDIR": str(folder)}
    here = Path(__file__).parents[3]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(here), environment["PYTHONPATH"]]))
    nodes = [
        {"id": "client", "inputs": {"answer": "server/answer"}, "outputs": ["request"], "args": arguments},
        {"id": "server", "inputs": {"request": "client/request"}, "outputs": ["answer"], "args": ["-m", __name__]},
    ]
    flow = {"nodes": [{**n, "path": python, "args": " ".join(n["args"]), "env": environment} for n in nodes]}
    (folder / "dataflow.yml").write_text(json.dumps(flow))  # JSON is YAML
    dora = program("dora")
    assert dora is not None
    return [dora, "run", str(folder / "dataflow.yml"), "--log-level", "error"]


def _next(node: Any) -> Any:
    """Return the value of the next input. Raise EOFError if the dataflow ends."""
    event = node.next(timeout=_DEADLINE_S)
    if event is None or event["type"] != "INPUT":
        message = f"no input from the dataflow; the event was {event}"
        raise EOFError(message)
    return event["value"]


class Dora:
    """The client's node."""

    def __init__(self) -> None:
        import dora
        import pyarrow as pa

        self._array, self._node = pa.array, dora.Node()
        self._shape: tuple[int, ...] = ()

    def prepare(self, payload: Payload) -> None:
        self._shape = tuple(payload.values["shape"])
        self._node.send_output("request", self._array([int(payload.values["ready"]), *self._shape]))
        _next(self._node)

    def transfer(self, number: int) -> Received:
        self._node.send_output("request", self._array([number]))
        return Received(_next(self._node).to_numpy().reshape(self._shape))

    def close(self) -> None:
        """Do nothing: the dataflow ends with this process."""


def _serve() -> None:
    import dora
    import pyarrow as pa

    node, maker = dora.Node(), Maker()
    while True:
        try:
            number, *shape = _next(node).to_pylist()
        except EOFError:
            return
        if shape:
            maker.prepare(tuple(shape), bool(number))
            node.send_output("answer", pa.array([0]))
        else:
            node.send_output("answer", pa.array(maker.array(number).reshape(-1)))


_STORE_SHARE = 0.3
_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - the location of its object store


class Ray:
    """A cluster on this machine only, which ends with the turn."""

    def __init__(self) -> None:
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")
        os.environ["RAY_AUTH_MODE"] = "disabled"  # otherwise Ray leaves a file in the home folder
        import ray

        self._ray = ray
        free = os.statvfs(_MEMORY_FOLDER)
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=int(free.f_bavail * free.f_frsize * _STORE_SHARE),
            _temp_dir=str(Path(tempfile.gettempdir()) / "r"),
        )
        self._actor: Any = ray.remote(Maker).remote()
        self._shape: tuple[int, ...] = ()

    def prepare(self, payload: Payload) -> None:
        self._ray.get(self._actor.prepare.remote(payload.values["shape"], payload.values["ready"]))

    def transfer(self, number: int) -> Received:
        return Received(self._ray.get(self._actor.array.remote(number)))

    def close(self) -> None:
        self._ray.shutdown()


if __name__ == "__main__":
    _serve()
