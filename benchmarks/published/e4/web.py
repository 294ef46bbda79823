"""HTTP, WebSocket and gRPC.

The first two are one FastAPI application under uvicorn, with the clients of http.client and of websockets. uvicorn runs
as its documentation advises for speed: with uvloop and httptools, which its extra `standard` installs. Handlers return
a Response, which FastAPI's documentation recommends for speed, because its encoder is skipped. Connections stay open
between requests.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import weakref
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, cast

import numpy as np

from benchmarks.published.e4 import Array, Maker, Served, start_maker

_IDLE_TIMEOUT_S = 3600
"""How long a connection may be idle while its client checks the received data."""


def _serve(connection: Connection) -> None:
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
    """Name the event loop and the parser that `_serve` asks for; without them uvicorn does not start."""
    versions = ", ".join(f"{package} {version(package)}" for package in ("uvicorn", "uvloop", "httptools"))
    return {"runs_with": versions}


class Http(Served):
    """HTTP with the array as `encoding`: json, base64 or segment."""

    def __init__(self, encoding: str) -> None:
        super().__init__(_serve)
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

        super().__init__(_serve)
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
