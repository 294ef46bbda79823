"""Bytes over sockets: Listener and Client, a Unix socket, memfds sent over one, and gRPC."""

from __future__ import annotations

import array as arrays
import mmap
import os
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published.e4 import Array, Maker, Served, start_maker

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


# ---------------------------------------------------------------------------------------------- gRPC

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
