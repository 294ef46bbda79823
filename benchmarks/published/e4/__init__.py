"""E4: a client requests one array from another process and waits until it has arrived.

There are four shapes (float64). Each is timed including the creation of the array, as published, and with an array that
was created beforehand ("ready"). The number of the request is the seed of the array; a ready array is stamped with it.
Here: the arrays, their check, the base of the contestants with a server, and the contestants.

web          HTTP and WebSocket, with bytes and with a shared memory segment for each message; gRPC
local        Listener and Client, a Unix socket, memfds, iceoryx2
brokers      ZeroMQ, Arrow Flight, RabbitMQ and Redis
dataflow     dora and Ray
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.published.child import Child, serve_commands_in_thread
from benchmarks.published.model import Contestant, Experiment, Payload, Received

Array = npt.NDArray[np.float64]
SHAPES = {"A": (1, 3, 224, 224), "B": (2, 1024, 16, 16), "C": (2, 3, 16, 224, 224), "D": (128, 1024, 1024)}
SMALL = {"small": (1, 3, 8, 8), "64 KiB": (1, 8, 32, 32)}
_READY_SEED = 17


def payloads(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Payload, ...]:
    """Return two payloads for each shape: one that is created inside the timing, and one that is ready."""
    return tuple(
        Payload(f"{name}{suffix}", prod(shape) * 8, {"shape": list(shape), "ready": ready})
        for name, shape in shapes.items()
        for suffix, ready in (("", False), (" ready", True))
    )


class Maker:
    """Creates the array for a request, in the server."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()
        self._ready: Array | None = None

    def prepare(self, shape: tuple[int, ...], ready: bool) -> None:  # noqa: FBT001 - called with the arguments of a message
        """Create the array now if it must be `ready`."""
        self._shape = tuple(shape)
        self._ready = random_array(_READY_SEED, self._shape) if ready else None

    def array(self, number: int) -> Array:
        """Return the array of request `number`. A ready array is the same memory every time."""
        if self._ready is None:
            return random_array(number, self._shape)
        self._ready.flat[0] = number
        return self._ready

    def fill(self, array: Array, number: int) -> None:
        """Create the array of request `number` in `array`; a ready array is copied into it."""
        if self._ready is None:
            np.random.default_rng(number).random(out=array)
        else:
            np.copyto(array, self.array(number))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the arrays."""
        return self._shape


def random_array(seed: int, shape: tuple[int, ...]) -> Array:
    """Return the random array of a seed."""
    return np.random.default_rng(seed).random(shape)


def check(data: Any, payload: Payload, number: int) -> None:
    """Check every byte and the number of the request."""
    shape, ready = tuple(payload.values["shape"]), payload.values["ready"]
    assert isinstance(data, np.ndarray), f"received a {type(data).__name__}, expected an array"
    assert (data.shape, data.dtype) == (shape, np.float64), (
        f"received an array of {data.shape} {data.dtype}, expected {shape} float64"
    )
    expected = random_array(_READY_SEED if ready else number, shape)
    if ready:
        expected.flat[0] = number
    wrong = int(np.count_nonzero(data.view(np.uint64) != expected.view(np.uint64)))
    assert not wrong, f"transfer {number} has {wrong:,} of {data.size:,} elements wrong"


def spoil(data: Array) -> Array:
    """Flip one bit of one element."""
    spoiled = data.copy()
    spoiled.view(np.uint64).flat[data.size // 2] ^= np.uint64(1)
    return spoiled


# ---------------------------------------------------------------------------------------------- the server


def start_maker(connection: Connection, hello: Any) -> Maker:
    """Start the maker of the arrays, in the server.

    It sends `hello`, the server's address, to the client. From then on a thread receives which array to create next.
    """
    maker = Maker()
    connection.send(hello)
    serve_commands_in_thread(connection, {"prepare": maker.prepare})
    return maker


class Served:
    """The client, and the server's process, which runs `serve(connection, *arguments)` forever."""

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        self._server = Child(serve, *arguments)
        self.address: Any = self._server.hello
        self._shape: tuple[int, ...] = ()

    def prepare(self, payload: Payload) -> None:
        self._shape = tuple(payload.values["shape"])
        self._server.ask("prepare", self._shape, payload.values["ready"])

    def transfer(self, number: int) -> Received:
        return Received(self.ask(number).reshape(self._shape))

    @abstractmethod
    def ask(self, number: int) -> Array:
        """Request array `number` and return it in any shape."""

    def close(self) -> None:
        self._server.close()


_WEB = ("fastapi", "uvicorn", "uvloop", "httptools")
"""With what uvicorn's extra `standard` installs for speed."""


def _published(name: str, target: str, packages: tuple[str, ...] = (), /, **more: Any) -> Contestant:
    keys = {key: more.pop(key) for key in ("programs", "max_bytes", "limit", "memory_factor", "launch") if key in more}
    return Contestant(name, f"benchmarks.published.e4.{target}", more, packages, **keys)


def _added(*arguments: Any, **more: Any) -> Contestant:
    return replace(_published(*arguments, **more), is_addition=True)


_PUBLISHED = (
    # a float takes an object of 24 bytes, a pointer of 8 and about 20 characters, on both sides
    _published("HTTP + JSON", "web:Http", _WEB, encoding="json", memory_factor=22.0),
    _published("HTTP + base64", "web:Http", _WEB, encoding="base64"),
    _published("WebSocket + bytes", "web:WebSocket", (*_WEB, "websockets"), encoding="bytes"),
    _published("HTTP + shared memory", "web:Http", _WEB, encoding="segment"),
    _published("WebSocket + shared memory", "web:WebSocket", (*_WEB, "websockets"), encoding="segment"),
    _published("Listener/Client", "local:ListenerClient"),
    _published("gRPC + bytes", "web:Grpc", ("grpc",)),
    _published(
        "RabbitMQ + bytes",
        "brokers:RabbitMq",
        ("pika",),
        programs=("rabbitmq-server", "epmd"),
        max_bytes=512 << 20,
        limit="exceeds RabbitMQ's largest message size, 512 MiB",
    ),
)
_ADDITIONS = (
    _added("ZeroMQ ipc", "brokers:ZeroMq", transport="ipc", copy=True),
    _added("ZeroMQ ipc, no copy", "brokers:ZeroMq", transport="ipc", copy=False),
    _added("ZeroMQ tcp", "brokers:ZeroMq", transport="tcp", copy=True),
    _added("ZeroMQ tcp, no copy", "brokers:ZeroMq", transport="tcp", copy=False),
    _added("Redis lists", "brokers:Redis", ("redis", "hiredis"), programs=("redis-server",)),
    _added("Unix socket", "local:UnixSocket"),
    _added("memfd over SCM_RIGHTS", "local:Memfd"),
    _added("memfd, reused", "local:ReusedMemfd"),
    _added("Arrow Flight", "brokers:Flight", ("pyarrow.flight",)),
    _added("Ray object store", "dataflow:Ray", ("ray",)),
    _added("iceoryx2", "local:Iceoryx", ("iceoryx2",), in_place=False),
    _added("iceoryx2, made in place", "local:Iceoryx", ("iceoryx2",), in_place=True),
    _added("dora", "dataflow:Dora", ("dora", "dora_cli", "pyarrow"), launch="benchmarks.published.e4.dataflow:launch"),
)
_PIPELINE = "benchmarks.published.pipelines:ArrayPeer"
_STAGEPIPE = (
    Contestant("stagepipe", _PIPELINE),
    Contestant("stagepipe, made in place", _PIPELINE, {"loaned": True}, is_addition=True),
)
_DEFAULT = {name: shape for name, shape in SHAPES.items() if name != "D"}

EXPERIMENT = Experiment(
    name="E4",
    contestants=(*_STAGEPIPE, *_PUBLISHED, *_ADDITIONS),
    payloads={"small": payloads(SMALL), "default": payloads(_DEFAULT), "full": payloads(SHAPES)},
    check=check,
    spoil=spoil,
)
