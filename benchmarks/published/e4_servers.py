"""E4's servers and runtimes: ZeroMQ, Arrow Flight, RabbitMQ, Redis; dora and Ray; HTTP, WebSocket and gRPC.

Real servers in their own processes, in a temporary folder. The client is in the process of the turn.

dora is a dataflow of two nodes, one of which is the process of the turn; the outputs are Arrow arrays. `dora run`
starts both nodes. The same outputs carry the requests and the settings of the next arrays. With Ray, an actor
creates the array, the object store holds it, and the caller maps it.

HTTP and WebSocket are one FastAPI application under uvicorn, with the clients of http.client and of websockets. uvicorn
runs as its documentation advises for speed: with uvloop and httptools, which its extra `standard` installs. Handlers
return a Response, which FastAPI's documentation recommends for speed, because its encoder is skipped. Connections stay
open between requests.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.common.turn import ROOT
from benchmarks.published import Payload, Received, program
from benchmarks.published.e4 import Array, Maker, Served, start_maker


def _serve_zmq(connection: Connection, address: str, copy: bool) -> None:  # noqa: FBT001 - arguments of a process
    import zmq

    with zmq.Context() as context, context.socket(zmq.REP) as answering:
        answering.bind(address)
        maker = start_maker(connection, answering.getsockopt_string(zmq.LAST_ENDPOINT))
        while True:
            answering.send(maker.array(int(answering.recv())).data, 0, copy=copy)


class ZeroMq(Served):
    """A request socket over `transport` ipc or tcp. Without `copy`, ZeroMQ sends from the array's own memory."""

    def __init__(self, transport: str, *, copy: bool) -> None:
        address = f"ipc://{Path(tempfile.mkdtemp()) / 'zmq'}" if transport == "ipc" else "tcp://127.0.0.1:*"
        import zmq

        super().__init__(_serve_zmq, address, copy)
        self._copy = copy
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REQ)
        self._socket.connect(self.address)

    def ask(self, number: int) -> Array:
        self._socket.send_string(str(number))
        if self._copy:
            return np.frombuffer(self._socket.recv())
        return np.frombuffer(self._socket.recv(copy=False).buffer)

    def close(self) -> None:
        self._context.destroy(linger=0)
        super().close()


# ---------------------------------------------------------------------------------------------- Arrow Flight


def _serve_flight(connection: Connection) -> None:
    import pyarrow as pa
    from pyarrow import flight

    def do_get(_: Any, __: Any, ticket: Any) -> Any:
        values = pa.array(maker.array(int(ticket.ticket)).reshape(-1))
        return flight.RecordBatchStream(pa.table({"array": values}))

    server = type("Server", (flight.FlightServerBase,), {"do_get": do_get})("grpc://127.0.0.1:0")
    maker = start_maker(connection, server.port)
    server.serve()


class Flight(Served):
    """One column of a table; the number of the request is the ticket."""

    def __init__(self) -> None:
        from pyarrow import flight

        super().__init__(_serve_flight)
        self._flight = flight
        self._client = flight.connect(f"grpc://127.0.0.1:{self.address}")

    def ask(self, number: int) -> Array:
        table = self._client.do_get(self._flight.Ticket(str(number).encode())).read_all()
        received: Array = table.column("array").to_numpy()
        return received

    def close(self) -> None:
        self._client.close()
        super().close()


_DEADLINE_S = 60.0
_POLL_S = 0.05
_REQUESTS, _ANSWERS = "requests", "answers"


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(ready: Callable[[], Any], server: subprocess.Popen[bytes]) -> Any:
    """Return the result of `ready` once it does not raise. Raise RuntimeError if the server exits or takes too long."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            return ready()
        except Exception as error:
            if server.poll() is not None or time.monotonic() > deadline:
                message = f"the server did not start (exit status {server.poll()}): {error!r}"
                raise RuntimeError(message) from error
            time.sleep(_POLL_S)


def stop(*servers: subprocess.Popen[bytes]) -> None:
    """Terminate each server, and kill those that do not exit in time."""
    for server in servers:
        server.terminate()
        try:
            server.wait(_DEADLINE_S / 4)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


# ---------------------------------------------------------------------------------------------- RabbitMQ


def _channel(port: int) -> Any:
    import pika

    parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0, blocked_connection_timeout=_DEADLINE_S)
    channel = pika.BlockingConnection(parameters).channel()
    for queue in (_REQUESTS, _ANSWERS):
        channel.queue_declare(queue)
    return channel


def _serve_rabbit(connection: Connection, port: int) -> None:
    channel = _channel(port)
    maker = start_maker(connection, None)
    for _, _, request in channel.consume(_REQUESTS, auto_ack=True):
        channel.basic_publish("", _ANSWERS, maker.array(int(request)).tobytes())


class _RabbitServers:
    """RabbitMQ, and the port mapper that Erlang needs. Started here, the mapper does not stay in the background."""

    def __init__(self) -> None:
        folder, self.port, mapper_port = Path(tempfile.mkdtemp()), free_port(), free_port()
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nmax_message_size = {RabbitMq.LARGEST_BYTES}\n"
        )
        (folder / "enabled_plugins").write_text("[].\n")
        environment = {
            **os.environ,
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"stagepipe{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        command, mapper = program("rabbitmq-server"), program("epmd")
        assert command is not None
        assert mapper is not None
        self._mapper = subprocess.Popen([mapper, "-port", str(mapper_port)], env=environment)
        self._server = subprocess.Popen([command], env=environment, stdout=subprocess.DEVNULL)
        wait_until_ready(self._try_to_connect, self._server)

    def _try_to_connect(self) -> None:
        _channel(self.port).connection.close()

    def close(self) -> None:
        stop(self._server, self._mapper)


class RabbitMq(Served):
    """A queue for the requests and one for the answers, through pika."""

    LARGEST_BYTES = 536_870_912
    """The largest value of max_message_size (https://www.rabbitmq.com/docs/configure)."""

    def __init__(self) -> None:
        self._broker = _RabbitServers()
        super().__init__(_serve_rabbit, self._broker.port)
        self._channel = _channel(self._broker.port)
        self._answers = self._channel.consume(_ANSWERS, auto_ack=True)

    def ask(self, number: int) -> Array:
        self._channel.basic_publish("", _REQUESTS, str(number))
        _, _, received = next(self._answers)
        return np.frombuffer(received)

    def close(self) -> None:
        self._channel.connection.close()
        super().close()
        self._broker.close()


# ---------------------------------------------------------------------------------------------- Redis


def _redis(path: str) -> Any:
    import redis
    from redis.utils import HIREDIS_AVAILABLE

    assert HIREDIS_AVAILABLE, "redis must parse with hiredis, as its documentation advises for speed"
    return redis.Redis(unix_socket_path=path, socket_timeout=None)  # large messages take long


def _serve_redis(connection: Connection, path: str) -> None:
    client = _redis(path)
    maker = start_maker(connection, None)
    while True:
        _, request = client.brpop(_REQUESTS)
        client.lpush(_ANSWERS, maker.array(int(request)).tobytes())


class Redis(Served):
    """A list for the requests and one for the answers, over a Unix socket; the server keeps nothing on disk."""

    def __init__(self) -> None:
        path = str(Path(tempfile.mkdtemp()) / "redis")
        command = program("redis-server")
        assert command is not None
        options = ["--port", "0", "--appendonly", "no", "--proto-max-bulk-len", "2gb", "--loglevel", "warning"]
        self._broker = subprocess.Popen([command, *options, "--save", "", "--unixsocket", path])
        wait_until_ready(_redis(path).ping, self._broker)
        super().__init__(_serve_redis, path)
        self._client = _redis(path)
        self.report_figures = {"runs_with": f"redis {version('redis')}, hiredis {version('hiredis')}"}

    def ask(self, number: int) -> Array:
        self._client.lpush(_REQUESTS, number)
        _, received = self._client.brpop(_ANSWERS)
        return np.frombuffer(received)

    def close(self) -> None:
        self._client.close()
        super().close()
        stop(self._broker)


# ---------------------------------------------------------------------------------------------- dora and Ray

_DORA_DEADLINE_S = 120.0


def launch(folder: Path, command: list[str]) -> list[str]:
    """Return the command that runs `command` as one node of a dataflow, and a server as the other."""
    python, *arguments = command
    environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TMPDIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment["PYTHONPATH"]]))
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
    event = node.next(timeout=_DORA_DEADLINE_S)
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


def _serve_dora() -> None:
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


# ---------------------------------------------------------------------------------------------- web

_IDLE_TIMEOUT_S = 3600
"""How long a connection may be idle while its client checks the received data."""


def _serve_web(connection: Connection) -> None:
    import uvicorn

    listening = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only with this protocol number
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    app = _application(start_maker(connection, listening.getsockname()))
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        log_level="warning",
        timeout_keep_alive=_IDLE_TIMEOUT_S,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _application(maker: Maker) -> Any:
    import fastapi
    from fastapi.responses import JSONResponse, Response

    app = fastapi.FastAPI()

    async def as_json(number: int) -> Any:
        return JSONResponse(maker.array(number).tolist())

    async def as_base64(number: int) -> Any:
        return Response(base64.b64encode(maker.array(number).data))

    async def as_segment(number: int) -> Any:
        return Response(hand_over(maker.array(number)))

    async def web_socket(connected: Any) -> None:
        await connected.accept()
        async for request in connected.iter_text():
            encoding, _, number = request.partition(" ")
            array = maker.array(int(number))
            await connected.send_bytes(array.tobytes() if encoding == "bytes" else hand_over(array).encode())

    # FastAPI reads the annotation. It is set here because the package may be missing where this module is imported.
    web_socket.__annotations__["connected"] = fastapi.WebSocket
    for name, function in (("json", as_json), ("base64", as_base64), ("segment", as_segment)):
        app.get(f"/{name}/{{number}}")(_with_types(function))
    app.websocket("/socket")(web_socket)
    return app


def _with_types(function: Any) -> Any:
    """Annotate the argument with the type itself instead of its name."""
    function.__annotations__["number"] = int
    return function


def _runs_with() -> dict[str, str]:
    """Name the event loop and the parser that `_serve_web` asks for; without them uvicorn does not start."""
    versions = ", ".join(f"{package} {version(package)}" for package in ("uvicorn", "uvloop", "httptools"))
    return {"runs_with": versions}


class Http(Served):
    """HTTP with the array as `encoding`: json, base64 or segment."""

    def __init__(self, encoding: str) -> None:
        super().__init__(_serve_web)
        self.report_figures = _runs_with()
        self._encoding = encoding
        self._connection = http.client.HTTPConnection(*self.address)
        self._restore = {"json": _from_json, "base64": _from_base64, "segment": take}[encoding]

    def ask(self, number: int) -> Array:
        self._connection.request("GET", f"/{self._encoding}/{number}")
        response = self._connection.getresponse()
        assert response.status == http.client.OK, f"status {response.status}: {response.read()[:200]!r}"
        return self._restore(response.read())

    def close(self) -> None:
        self._connection.close()
        super().close()


class WebSocket(Served):
    """WebSocket with the array as `encoding`: bytes or segment."""

    def __init__(self, encoding: str) -> None:
        from websockets.sync.client import connect

        super().__init__(_serve_web)
        self.report_figures = _runs_with()
        self._encoding = encoding
        host, port = self.address
        self._connection = connect(
            f"ws://{host}:{port}/socket", max_size=None, compression=None, ping_interval=None, proxy=None
        )

    def ask(self, number: int) -> Array:
        self._connection.send(f"{self._encoding} {number}")
        received = self._connection.recv(decode=False)
        return np.frombuffer(received) if self._encoding == "bytes" else take(received)

    def close(self) -> None:
        self._connection.close()
        super().close()


def _from_json(body: bytes) -> Array:
    return np.array(json.loads(body))


def _from_base64(body: bytes) -> Array:
    return np.frombuffer(base64.b64decode(body))


# ---------------------------------------------------------------------------------------------- segments


def hand_over(array: Array) -> str:
    """Copy the array into a new segment, give up the segment, and return its name."""
    segment = SharedMemory(create=True, size=array.nbytes)
    np.copyto(np.ndarray(array.shape, array.dtype, segment.buf), array)
    name = segment.name
    resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]  # noqa: SLF001
    segment.close()
    return name


def take(name: bytes) -> Array:
    """Return the array in a segment without a copy. The segment is released with the array."""
    segment = SharedMemory(name.decode())
    segment.unlink()
    array: Array = np.frombuffer(cast("memoryview[int]", segment.buf))
    # The mapping is released with the array; until then it cannot be closed.
    weakref.finalize(array, _close, segment)
    return array


def _close(segment: SharedMemory) -> None:
    segment._buf = None  # type: ignore[attr-defined]  # noqa: SLF001 - otherwise its own __del__ complains about the array
    segment._mmap = None  # type: ignore[attr-defined]  # noqa: SLF001
    segment.close()


# ---------------------------------------------------------------------------------------------- gRPC

_NUMBER_BYTES = 8
_GRPC_OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def _serve_grpc(connection: Connection) -> None:
    import grpc

    server = grpc.server(ThreadPoolExecutor(1), options=_GRPC_OPTIONS)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    maker = start_maker(connection, address)

    def answer(request: bytes, _: Any) -> bytes:
        return maker.array(int.from_bytes(request, "little")).tobytes()

    handlers = {"Array": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Step", handlers),))
    server.wait_for_termination()


class Grpc(Served):
    """A unary call whose messages are bytes, without a schema."""

    def __init__(self) -> None:
        import grpc

        super().__init__(_serve_grpc)
        self._channel = grpc.insecure_channel(self.address, options=_GRPC_OPTIONS)
        self._call = self._channel.unary_unary("/Step/Array")

    def ask(self, number: int) -> Array:
        return np.frombuffer(self._call(number.to_bytes(_NUMBER_BYTES, "little"), wait_for_ready=True))

    def close(self) -> None:
        self._channel.close()
        super().close()


if __name__ == "__main__":
    _serve_dora()
