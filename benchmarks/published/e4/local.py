"""Bytes and memory on one machine: Listener and Client, a Unix socket, memfds sent over one, and iceoryx2.

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
from math import prod
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published.e4 import Array, Maker, Served, start_maker
from benchmarks.published.model import Payload, turn_prefix

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
    """A memfd that all arrays of a size are written to, valid until the next request. Its descriptor goes once."""

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
