"""ZeroMQ and Arrow Flight: a server in its own process, and the client in the process of the turn."""

from __future__ import annotations

import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from benchmarks.published.e4 import Array, Served, start_maker


def _serve_zmq(connection: Connection, address: str, copy: bool) -> None:  # noqa: FBT001 - arguments of a process
    with zmq.Context() as context, context.socket(zmq.REP) as answering:
        answering.bind(address)
        maker = start_maker(connection, answering.getsockopt_string(zmq.LAST_ENDPOINT))
        while True:
            answering.send(maker.array(int(answering.recv())).data, 0, copy=copy)


class ZeroMq(Served):
    """A request socket over `transport` ipc or tcp. Without `copy`, ZeroMQ sends from the array's own memory."""

    def __init__(self, transport: str, *, copy: bool) -> None:
        address = f"ipc://{Path(tempfile.mkdtemp()) / 'zmq'}" if transport == "ipc" else "tcp://127.0.0.1:*"
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
