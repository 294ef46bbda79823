"""The mechanisms of E2, each as what the sender calls and what the receiver calls. Both sides have a copy of it."""

from __future__ import annotations

import pickle
import socket
import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from published_.child import CONTEXT
from published_.e2.numbers import Integers

_LENGTH_BYTES = 8


class Mechanism(Protocol):
    """Made by the receiver, and handed over to the sender's process when that is started.

    `together`: the receiver takes while the sender sends; else it takes what the sender has left.
    """

    together: bool

    def send(self, data: list[int]) -> None:
        """Called by the sender."""

    def receive(self) -> Any:
        """Called by the receiver."""


class Queue:
    """multiprocessing.Queue, which pickles in a thread of its own."""

    together = True

    def __init__(self, n: int) -> None:  # noqa: ARG002 - it holds any number
        """Make it."""
        self._queue: Any = CONTEXT.Queue()
        self.send, self.receive = self._queue.put, self._queue.get

    def __getstate__(self) -> Any:
        """To the sender."""
        return self._queue

    def __setstate__(self, queue: Any) -> None:
        """In the sender."""
        self._queue, self.send, self.receive = queue, queue.put, queue.get


class Pipe:
    """multiprocessing.Pipe, which pickles."""

    together = True

    def __init__(self, n: int) -> None:  # noqa: ARG002 - it holds any number
        """Make it."""
        self._ends = CONTEXT.Pipe(duplex=False)

    def send(self, data: list[int]) -> None:
        """The whole list."""
        self._ends[1].send(data)

    def receive(self) -> Any:
        """The whole list."""
        return self._ends[0].recv()


class Array:
    """multiprocessing.Array of 32-bit integers, and a list again."""

    together = False

    def __init__(self, n: int) -> None:
        """Make it."""
        self._array: Any = CONTEXT.Array("i", n)

    def send(self, data: list[int]) -> None:
        """Integer by integer."""
        self._array[:] = data

    def receive(self) -> list[int]:
        """As a list."""
        received: list[int] = self._array[:]
        return received


class ManagerList:
    """A list in a manager's process; both sides have a proxy."""

    together = False

    def __init__(self, n: int) -> None:  # noqa: ARG002 - it grows
        """Start the manager."""
        self._manager: Any = CONTEXT.Manager()
        self._list: Any = self._manager.list()

    def __getstate__(self) -> Any:
        """To the sender: the proxy alone."""
        return {"_list": self._list}

    def send(self, data: list[int]) -> None:
        """In one call."""
        self._list[:] = data

    def receive(self) -> list[int]:
        """In one call."""
        received: list[int] = self._list[:]
        return received

    def close(self) -> None:
        """End the manager."""
        self._manager.shutdown()


class RawArray:
    """multiprocessing.RawArray through NumPy on both sides: an array in the end, not a list."""

    together = False

    def __init__(self, n: int) -> None:
        """Make it."""
        self._raw: Any = CONTEXT.RawArray("i", n)

    def send(self, data: list[int]) -> None:
        """Made an array of, and copied."""
        np.copyto(np.frombuffer(self._raw, np.int32), np.array(data, np.int32))

    def receive(self) -> Integers:
        """Copied out."""
        return np.frombuffer(self._raw, np.int32).copy()


class File:
    """A pickle in a file of the temporary folder."""

    together = False

    def __init__(self, n: int) -> None:  # noqa: ARG002 - it grows
        """Think of a name."""
        self._path = Path(tempfile.mkdtemp()) / "list.pickle"

    def send(self, data: list[int]) -> None:
        """Written."""
        with self._path.open("wb") as file:
            pickle.dump(data, file, pickle.HIGHEST_PROTOCOL)

    def receive(self) -> Any:
        """Read."""
        with self._path.open("rb") as file:
            return pickle.load(file)


class Socket:
    """A pickle through a pair of sockets, behind its length."""

    together = True

    def __init__(self, n: int) -> None:  # noqa: ARG002 - it holds any number
        """Connect the two by TCP on the loopback."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._sending = socket.create_connection(listening.getsockname())
            self._receiving, _ = listening.accept()

    def __getstate__(self) -> Any:
        """To the sender: its end alone."""
        from multiprocessing.reduction import DupFd

        return DupFd(self._sending.fileno())

    def __setstate__(self, end: Any) -> None:
        """In the sender."""
        self._sending = socket.socket(fileno=end.detach())

    def send(self, data: list[int]) -> None:
        """Pickled, then sent."""
        message = pickle.dumps(data, pickle.HIGHEST_PROTOCOL)
        self._sending.sendall(len(message).to_bytes(_LENGTH_BYTES, "little"))
        self._sending.sendall(message)

    def receive(self) -> Any:
        """Received, then restored."""
        return pickle.loads(self._exactly(int.from_bytes(self._exactly(_LENGTH_BYTES), "little")))

    def _exactly(self, length: int) -> bytearray:
        received = bytearray(length)
        left = memoryview(received)
        while left:
            left = left[self._receiving.recv_into(left) :]
        return received
