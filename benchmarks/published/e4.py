"""E4: a client requests one array from another process and waits until it has arrived.

There are four shapes (float64). Each is timed including the creation of the array, as published, and with an array that
was created beforehand ("ready"). The number of the request is the seed of the array; a ready array is stamped with it.
This module has the arrays, their check, the base of the contestants with a server, the list of contestants, and the
contestants without third-party servers: Listener and Client, a Unix socket, memfds sent over one, and iceoryx2. The
rest is in e4_servers.

iceoryx2's server writes into a loaned slice of shared memory, and the client reads it in place. Both sides wait for an
event. Polling would be faster, but would occupy a processor on each side.
"""

from __future__ import annotations

import array as arrays
import ctypes
import mmap
import os
import socket
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import stagepipe
from benchmarks.published import (
    Answering,
    Child,
    Contestant,
    Experiment,
    Payload,
    Received,
    RequestPeer,
    serve_commands_in_thread,
    turn_prefix,
)

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
"""The packages that uvicorn's extra `standard` installs for speed."""


def _published(name: str, target: str, packages: tuple[str, ...] = (), /, **more: Any) -> Contestant:
    keys = {key: more.pop(key) for key in ("programs", "max_bytes", "limit", "memory_factor", "launch") if key in more}
    return Contestant(name, f"benchmarks.published.{target}", more, packages, **keys)


def _added(*arguments: Any, **more: Any) -> Contestant:
    return replace(_published(*arguments, **more), is_addition=True)


_PUBLISHED = (
    # a float takes an object of 24 bytes, a pointer of 8 and about 20 characters, on both sides
    _published("HTTP + JSON", "e4_servers:Http", _WEB, encoding="json", memory_factor=22.0),
    _published("HTTP + base64", "e4_servers:Http", _WEB, encoding="base64"),
    _published("WebSocket + bytes", "e4_servers:WebSocket", (*_WEB, "websockets"), encoding="bytes"),
    _published("HTTP + shared memory", "e4_servers:Http", _WEB, encoding="segment"),
    _published("WebSocket + shared memory", "e4_servers:WebSocket", (*_WEB, "websockets"), encoding="segment"),
    _published("Listener/Client", "e4:ListenerClient"),
    _published("gRPC + bytes", "e4_servers:Grpc", ("grpc",)),
    _published(
        "RabbitMQ + bytes",
        "e4_servers:RabbitMq",
        ("pika",),
        programs=("rabbitmq-server", "epmd"),
        max_bytes=512 << 20,
        limit="exceeds RabbitMQ's largest message size, 512 MiB",
    ),
)
_ADDITIONS = (
    _added("ZeroMQ ipc", "e4_servers:ZeroMq", transport="ipc", copy=True),
    _added("ZeroMQ ipc, no copy", "e4_servers:ZeroMq", transport="ipc", copy=False),
    _added("ZeroMQ tcp", "e4_servers:ZeroMq", transport="tcp", copy=True),
    _added("ZeroMQ tcp, no copy", "e4_servers:ZeroMq", transport="tcp", copy=False),
    _added("Redis lists", "e4_servers:Redis", ("redis", "hiredis"), programs=("redis-server",)),
    _added("Unix socket", "e4:UnixSocket"),
    _added("memfd over SCM_RIGHTS", "e4:Memfd"),
    _added("memfd, reused", "e4:ReusedMemfd"),
    _added("Arrow Flight", "e4_servers:Flight", ("pyarrow.flight",)),
    _added("Ray object store", "e4_servers:Ray", ("ray",)),
    _added("iceoryx2", "e4:Iceoryx", ("iceoryx2",), in_place=False),
    _added("iceoryx2, made in place", "e4:Iceoryx", ("iceoryx2",), in_place=True),
    _added("dora", "e4_servers:Dora", ("dora", "dora_cli", "pyarrow"), launch="benchmarks.published.e4_servers:launch"),
)
_PIPELINE = "benchmarks.published.e4:ArrayPeer"
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


_NUMBER_BYTES = 8


def _serve_listener(connection: Connection) -> None:
    with Listener(("127.0.0.1", 0)) as listener:
        maker = start_maker(connection, listener.address)
        with listener.accept() as client:
            while True:
                client.send(maker.array(client.recv()))


class ListenerClient(Served):
    """multiprocessing.connection, which pickles."""

    def __init__(self) -> None:
        super().__init__(_serve_listener)
        self._connection = Client(self.address)

    def ask(self, number: int) -> Array:
        self._connection.send(number)
        received: Array = self._connection.recv()
        return received


# ---------------------------------------------------------------------------------------------- Unix socket


def _accept_unix(connection: Connection) -> tuple[Maker, socket.socket]:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(Path(tempfile.mkdtemp()) / "socket"))
    listening.listen()
    maker = start_maker(connection, listening.getsockname())
    return maker, listening.accept()[0]


def _serve_unix(connection: Connection) -> None:
    maker, client = _accept_unix(connection)
    while request := client.recv(_NUMBER_BYTES):
        client.sendall(maker.array(int.from_bytes(request, "little")).data)


class UnixSocket(Served):
    """The bytes of the array, received into a new array."""

    serve = staticmethod(_serve_unix)

    def __init__(self) -> None:
        super().__init__(self.serve)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(self.address)

    def ask(self, number: int) -> Array:
        self._socket.sendall(number.to_bytes(_NUMBER_BYTES, "little"))
        received = np.empty(self._shape)
        remaining = received.data.cast("B")
        while remaining:
            remaining = remaining[self._socket.recv_into(remaining) :]
        return received

    def close(self) -> None:
        self._socket.close()
        super().close()


def _serve_memfds(connection: Connection) -> None:
    maker, client = _accept_unix(connection)
    while request := client.recv(_NUMBER_BYTES):
        array = maker.array(int.from_bytes(request, "little"))
        memory = os.memfd_create("array")
        os.ftruncate(memory, array.nbytes)
        with mmap.mmap(memory, array.nbytes) as mapped:
            np.copyto(np.ndarray(array.shape, array.dtype, mapped), array)
        socket.send_fds(client, [b"."], [memory])
        os.close(memory)


class Memfd(UnixSocket):
    """A memfd for each array; the socket carries its descriptor (SCM_RIGHTS)."""

    serve = staticmethod(_serve_memfds)

    def ask(self, number: int) -> Array:
        """Request the array, which lies in the memory that the server wrote to."""
        self._socket.sendall(number.to_bytes(_NUMBER_BYTES, "little"))
        message_bytes = arrays.array("i").itemsize
        _, (memory,), _, _ = socket.recv_fds(self._socket, 1, message_bytes)
        mapped = mmap.mmap(memory, 0)
        os.close(memory)
        return np.frombuffer(mapped)


def _serve_reused_memfd(connection: Connection) -> None:
    maker, client = _accept_unix(connection)
    mapped, descriptors = np.empty(0), []
    while request := client.recv(_NUMBER_BYTES):
        array = maker.array(int.from_bytes(request, "little"))
        if mapped.nbytes != array.nbytes:
            descriptors = [os.memfd_create("array")]
            os.ftruncate(descriptors[0], array.nbytes)
            mapped = np.ndarray(array.size, array.dtype, mmap.mmap(descriptors[0], array.nbytes))
        np.copyto(mapped, array.reshape(-1))
        socket.send_fds(client, [b"."], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        descriptors = []


class ReusedMemfd(UnixSocket):
    """A memfd that all arrays of a size are written to, valid until the next request. Its descriptor is sent once."""

    serve = staticmethod(_serve_reused_memfd)

    def __init__(self) -> None:
        super().__init__()
        self._mapped: Array = np.empty(0)

    def ask(self, number: int) -> Array:
        """Request the array, which lies in the memory that the server wrote to."""
        self._socket.sendall(number.to_bytes(_NUMBER_BYTES, "little"))
        _, descriptors, _, _ = socket.recv_fds(self._socket, 1, arrays.array("i").itemsize)
        for descriptor in descriptors:
            self._mapped = np.frombuffer(mmap.mmap(descriptor, 0))
            os.close(descriptor)
        return self._mapped


# ---------------------------------------------------------------------------------------------- iceoryx2

_ALIGNMENT_BYTES = 64
_FIRST_BYTES = 4096
"""The first size of a loan; it grows by powers of two."""


class _Side:
    """A node with an event and a slice for each direction."""

    def __init__(self, prefix: str, folder: str) -> None:
        import iceoryx2

        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        config = iceoryx2.config.default()
        config.global_cfg.prefix = iceoryx2.FileName.new(prefix)
        config.global_cfg.root_path = iceoryx2.Path.new(folder)
        self._iceoryx2 = iceoryx2
        self._node = iceoryx2.NodeBuilder.new().config(config).create(iceoryx2.ServiceType.Ipc)

    def service(self, name: str) -> Any:
        return self._node.service_builder(self._iceoryx2.ServiceName.new(name))

    def event(self, name: str) -> Any:
        return self.service(name).event().open_or_create()

    def slices(self, name: str) -> Any:
        builder = self.service(name).publish_subscribe(self._iceoryx2.Slice[ctypes.c_uint8])
        return builder.payload_alignment(self._iceoryx2.Alignment.new(_ALIGNMENT_BYTES)).open_or_create()

    def publisher(self, name: str) -> Any:
        growing = self._iceoryx2.AllocationStrategy.PowerOfTwo
        builder = self.slices(name).publisher_builder()
        return builder.initial_max_slice_len(_FIRST_BYTES).allocation_strategy(growing).create()


def _serve_iceoryx(connection: Connection, prefix: str, folder: str, in_place: bool) -> None:  # noqa: FBT001 - arguments of a process
    side = _Side(prefix, folder)
    asked, answered = (
        side.event("asked").listener_builder().create(),
        side.event("answered").notifier_builder().create(),
    )
    requests = side.slices("requests").subscriber_builder().create()
    answers = side.publisher("answers")
    maker = start_maker(connection, None)
    while True:
        asked.blocking_wait()
        while (request := requests.receive()) is not None:
            number = int.from_bytes(bytes(request.payload().as_memory_view()), "little")
            _publish(answers, maker, number, in_place=in_place)
            request.delete()
            answered.notify()


def _publish(answers: Any, maker: Maker, number: int, *, in_place: bool) -> None:
    nbytes = prod(maker.shape) * np.dtype(np.float64).itemsize
    array = None if in_place else maker.array(number)
    sample = answers.loan_slice_uninit(nbytes)
    buffer = (ctypes.c_uint8 * nbytes).from_address(sample.payload().as_ptr())
    loan = np.frombuffer(memoryview(buffer), np.float64)
    if array is None:
        maker.fill(loan.reshape(maker.shape), number)
    else:
        np.copyto(loan.reshape(array.shape), array)
    sample.assume_init().send()


class Iceoryx(Served):
    """Publish and subscribe, a service for each direction. If `in_place`, the server creates the array in its loan."""

    def __init__(self, *, in_place: bool) -> None:
        names = (f"{turn_prefix()}_", tempfile.gettempdir())  # both are short, because sockets have them in their names
        self._side = _Side(*names)
        self._answered = self._side.event("answered").listener_builder().create()
        self._answers = self._side.slices("answers").subscriber_builder().create()
        super().__init__(_serve_iceoryx, *names, in_place)
        self._asked = self._side.event("asked").notifier_builder().create()
        self._requests = self._side.publisher("requests")
        self._held: Any = None

    def prepare(self, payload: Payload) -> None:
        self._release()
        super().prepare(payload)

    def _release(self) -> None:
        if self._held is not None:
            self._held.delete()
            self._held = None

    def ask(self, number: int) -> Array:
        """Request the array. It lies in the memory that the server wrote to, and is valid until the next request."""
        self._release()
        request = self._requests.loan_slice_uninit(8)
        ctypes.memmove(request.payload().as_ptr(), number.to_bytes(8, "little"), 8)
        request.assume_init().send()
        self._asked.notify()
        while (sample := self._answers.receive()) is None:
            self._answered.blocking_wait()
        self._held = sample
        received = sample.payload()
        return np.frombuffer((ctypes.c_uint8 * received.len()).from_address(received.as_ptr()), np.float64)

    def close(self) -> None:
        self._release()
        super().close()


# ---------------------------------------------------------------------------------------------- stagepipe


class Answers(Answering):
    """An array for each request. If `loaned`, it draws the random numbers into the memory that is sent."""

    def __init__(self, requests_from: str, shape: list[int], *, ready: bool, loaned: bool) -> None:
        super().__init__(requests_from)
        self._shape, self._loaned = tuple(shape), loaned
        self._maker = Maker()
        self._maker.prepare(self._shape, ready)

    def answer(self, number: int) -> Array:
        if not self._loaned:
            return self._maker.array(number)
        array: Array = stagepipe.empty(self._shape, np.float64)
        self._maker.fill(array, number)
        return array


class ArrayPeer(RequestPeer):
    """Two processes."""

    def __init__(self, *, loaned: bool = False) -> None:
        super().__init__("benchmarks.published.e4.Answers", loaned=loaned)
