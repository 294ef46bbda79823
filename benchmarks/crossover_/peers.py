"""The write-up's two contestants behind one interface: `repetition` asks for the arrays and gives them one by one.

Each has a child process, forked from a server that holds no thread, which sends `TRANSFERS` arrays whenever it is asked
to and ends when the other side closes. Who waits for a child that died gets EOFError.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from crossover_.payload import TRANSFERS, Array, make_array, number

_DEADLINE_S = 10.0
_GO = b""
"""What asks for a repetition, and what raises a flag."""
_CLOSED = (EOFError, OSError)
_CONTEXT = multiprocessing.get_context("forkserver")


class Contestant(Protocol):
    """Somebody who brings arrays from another process."""

    repetition: Callable[[], Any]
    """An iterator over the arrays of one repetition, which it asks for when it is first asked itself."""

    def close(self) -> None:
        """End it."""


class _Child:
    """A child process and the connection by which it is asked; what is sent by it may come back there too."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.connection, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=target, args=(other, *arguments), daemon=True)
        self._process.start()
        other.close()

    def close(self) -> None:
        """Let it meet the end of what it reads or writes, and see that it ends."""
        self.connection.close()
        self._process.join(_DEADLINE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()


# ---------------------------------------------------------------------------------------------- Pipe


def _send_arrays(asked: Connection, writer: Connection, d: int) -> None:
    array = make_array(d)
    with contextlib.suppress(*_CLOSED):
        while True:
            asked.recv()
            for at in range(TRANSFERS):
                number(array, at)
                writer.send(array)


class PipePeer:
    """`multiprocessing.Pipe(duplex=False)` carries the array, pickled."""

    def __init__(self, d: int) -> None:
        """Start the child."""
        self._reader, writer = _CONTEXT.Pipe(duplex=False)
        self._child = _Child(_send_arrays, writer, d)
        writer.close()
        self.repetition: Callable[[], Iterator[Array]] = self._repetition

    def _repetition(self) -> Iterator[Array]:
        self._child.connection.send(_GO)
        for _ in range(TRANSFERS):
            yield self._reader.recv()

    def close(self) -> None:
        """End it."""
        self._reader.close()
        self._child.close()


# ---------------------------------------------------------------------------------------------- RawArray


def _write_arrays(flag: Connection, shared: Any, d: int) -> None:
    array, room = make_array(d), np.frombuffer(shared, np.float32).reshape(d, d)
    with contextlib.suppress(*_CLOSED):
        while True:
            flag.recv()
            for at in range(TRANSFERS):
                number(array, at)
                np.copyto(room, array)
                flag.send(_GO)
                flag.recv()


class RawArrayPeer:
    """`multiprocessing.RawArray` holds the array and a Pipe is the flag: written, and copied out again."""

    def __init__(self, d: int) -> None:
        """Start the child."""
        shared = _CONTEXT.RawArray("f", d * d)
        self._room = np.frombuffer(shared, np.float32).reshape(d, d)
        self._child = _Child(_write_arrays, shared, d)
        self.repetition: Callable[[], Iterator[Array]] = self._repetition

    def _repetition(self) -> Iterator[Array]:
        connection = self._child.connection
        connection.send(_GO)
        for _ in range(TRANSFERS):
            connection.recv()
            array = self._room.copy()
            connection.send(_GO)
            yield array

    def close(self) -> None:
        """End it."""
        self._child.close()
