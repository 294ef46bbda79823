"""ZeroMQ, Arrow Flight, RabbitMQ and Redis: real servers in their own processes, in a temporary folder.

The client is in the process of the turn.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published.e4 import Array, Served, start_maker
from benchmarks.published.model import program


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
