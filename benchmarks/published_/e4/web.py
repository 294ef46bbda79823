"""HTTP and WebSocket: one FastAPI application under uvicorn, asked by the standard library's client and by websockets'.

The responses are made as FastAPI's documentation has it for speed: returned as a Response, not walked through by its
encoder. Connections stay open from one request to the next.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from published_.e4.arrays import Array, Maker
from published_.e4.segments import hand_over, take
from published_.e4.served import Served, told

_PATIENCE_S = 3600
"""How long a connection may be idle; its client looks at what it has received, meanwhile."""


def _serve(connection: Connection) -> None:
    import uvicorn

    listening = socket.socket(proto=socket.IPPROTO_TCP)  # by which asyncio knows to set TCP_NODELAY
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    app = _application(told(connection, listening.getsockname()))
    config = uvicorn.Config(
        app, log_level="warning", timeout_keep_alive=_PATIENCE_S, ws_ping_interval=None, ws_per_message_deflate=False
    )
    uvicorn.Server(config).run(sockets=[listening])


def _application(maker: Maker) -> Any:
    import fastapi
    from fastapi.responses import JSONResponse, Response

    app = fastapi.FastAPI()

    async def as_json(number: int) -> Any:
        return JSONResponse(maker.array(number).tolist())

    async def as_base64(number: int) -> Any:
        return Response(base64.b64encode(maker.array(number)))  # type: ignore[arg-type]

    async def as_segment(number: int) -> Any:
        return Response(hand_over(maker.array(number)))

    async def web_socket(connected: Any) -> None:
        await connected.accept()
        async for request in connected.iter_text():
            how, _, number = request.partition(" ")
            array = maker.array(int(number))
            await connected.send_bytes(array.tobytes() if how == "bytes" else hand_over(array).encode())

    web_socket.__annotations__["connected"] = fastapi.WebSocket  # FastAPI goes by it; the package may not be installed
    for name, function in (("json", as_json), ("base64", as_base64), ("segment", as_segment)):
        app.get(f"/{name}/{{number}}")(_with_types(function))
    app.websocket("/socket")(web_socket)
    return app


def _with_types(function: Any) -> Any:
    """With its argument's type itself, not its name."""
    function.__annotations__["number"] = int
    return function


class Http(Served):
    """`how`: json, base64 or segment."""

    def __init__(self, how: str) -> None:
        """Start the server, and connect."""
        super().__init__(_serve)
        self._how = how
        self._connection = http.client.HTTPConnection(*self.address)
        self._restore = {"json": _from_json, "base64": _from_base64, "segment": take}[how]

    def ask(self, number: int) -> Array:
        """The array."""
        self._connection.request("GET", f"/{self._how}/{number}")
        response = self._connection.getresponse()
        assert response.status == http.client.OK, f"status {response.status}: {response.read()[:200]!r}"
        return self._restore(response.read())

    def close(self) -> None:
        """Disconnect, and end the server."""
        self._connection.close()
        super().close()


class WebSocket(Served):
    """`how`: bytes or segment."""

    def __init__(self, how: str) -> None:
        """Start the server, and connect."""
        from websockets.sync.client import connect

        super().__init__(_serve)
        self._how = how
        host, port = self.address
        self._connection = connect(
            f"ws://{host}:{port}/socket", max_size=None, compression=None, ping_interval=None, proxy=None
        )

    def ask(self, number: int) -> Array:
        """The array."""
        self._connection.send(f"{self._how} {number}")
        received = self._connection.recv(decode=False)
        return np.frombuffer(received) if self._how == "bytes" else take(received)

    def close(self) -> None:
        """Disconnect, and end the server."""
        self._connection.close()
        super().close()


def _from_json(body: bytes) -> Array:
    return np.array(json.loads(body))


def _from_base64(body: bytes) -> Array:
    return np.frombuffer(base64.b64decode(body))
