"""The base of the contestants with a server: the server's process, and requests by number."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.published.child import Child, serve_commands_in_thread
from benchmarks.published.e4.arrays import Array, Maker
from benchmarks.published.model import Payload, Received


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
        """Start the server."""
        self._server = Child(serve, *arguments)
        self.address: Any = self._server.hello
        self._shape: tuple[int, ...] = ()

    def prepare(self, payload: Payload) -> None:
        """Tell the server which array is requested next."""
        self._shape = tuple(payload.values["shape"])
        self._server.ask("prepare", self._shape, payload.values["ready"])

    def transfer(self, number: int) -> Received:
        """Request array `number`."""
        return Received(self.ask(number).reshape(self._shape))

    @abstractmethod
    def ask(self, number: int) -> Array:
        """Request array `number` and return it in any shape."""

    def close(self) -> None:
        """End the server."""
        self._server.close()
