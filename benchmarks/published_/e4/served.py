"""What the contestants with a server have in common: the server's process, and a number to ask it with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from published_.child import Child, obey_aside
from published_.e4.arrays import Array, Maker
from published_.model import Payload, Received


def told(connection: Connection, hello: Any) -> Maker:
    """In the server: say that it is ready, and where; and have what it makes told in a thread from then on."""
    maker = Maker()
    connection.send(hello)
    obey_aside(connection, {"prepare": maker.prepare})
    return maker


class Served:
    """The client, and the process in which `serve(connection, *arguments)` runs for ever."""

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        """Start the server."""
        self._server = Child(serve, *arguments)
        self.address: Any = self._server.hello
        self._shape: tuple[int, ...] = ()

    def prepare(self, payload: Payload) -> None:
        """Tell the server what is asked for next."""
        self._shape = tuple(payload.values["shape"])
        self._server.ask("prepare", self._shape, payload.values["ready"])

    def transfer(self, number: int) -> Received:
        """Ask for array `number`."""
        return Received(self.ask(number).reshape(self._shape))

    @abstractmethod
    def ask(self, number: int) -> Array:
        """The array, in any shape."""

    def close(self) -> None:
        """End the server."""
        self._server.close()
