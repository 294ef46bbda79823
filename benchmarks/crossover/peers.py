"""The write-up's two contestants behind one interface: `repetition` requests the arrays and yields them one by one.

Each contestant has a child process, forked from a server that has no threads. The child sends `TRANSFERS` arrays on
each request and exits when the other side closes. A receiver that waits for a dead child gets EOFError.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from benchmarks.common.turns import end_process
from benchmarks.crossover.payload import TRANSFERS, Array, make_array, stamp

_SIGNAL = b""
"""Requests a repetition, and raises a flag."""
_CLOSED = (EOFError, OSError)
_CONTEXT = multiprocessing.get_context("forkserver")


class Contestant(Protocol):
    """A mechanism that receives arrays from another process."""

    repetition: Callable[[], Any]
    """Returns an iterator over the arrays of one repetition; its first step sends the request."""

    def close(self) -> None:
        """End the child."""


class _Child:
    """A child process and the connection that carries the requests to it, and for some contestants its answers."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.connection, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=target, args=(other, *arguments), daemon=True)
        self._process.start()
        other.close()

    def close(self) -> None:
        """Close the connection, which ends the child; kill a child that does not exit in time."""
        self.connection.close()
        end_process(self._process)


# ---------------------------------------------------------------------------------------------- Pipe


def _send_arrays(requests: Connection, writer: Connection, d: int) -> None:
    array = make_array(d)
    with contextlib.suppress(*_CLOSED):
        while True:
            requests.recv()
            for transfer in range(TRANSFERS):
                stamp(array, transfer)
                writer.send(array)


class PipePeer:
    """`multiprocessing.Pipe(duplex=False)` carries the array, pickled."""

    def __init__(self, d: int) -> None:
        self._reader, writer = _CONTEXT.Pipe(duplex=False)
        self._child = _Child(_send_arrays, writer, d)
        writer.close()
        self.repetition: Callable[[], Iterator[Array]] = self._repetition

    def _repetition(self) -> Iterator[Array]:
        self._child.connection.send(_SIGNAL)
        for _ in range(TRANSFERS):
            yield self._reader.recv()

    def close(self) -> None:
        self._reader.close()
        self._child.close()


# ---------------------------------------------------------------------------------------------- RawArray


def _write_arrays(flag: Connection, shared: Any, d: int) -> None:
    array, shared_array = make_array(d), np.frombuffer(shared, np.float32).reshape(d, d)
    with contextlib.suppress(*_CLOSED):
        while True:
            flag.recv()
            for transfer in range(TRANSFERS):
                stamp(array, transfer)
                np.copyto(shared_array, array)
                flag.send(_SIGNAL)
                flag.recv()


class RawArrayPeer:
    """`multiprocessing.RawArray` holds the array and a Pipe is the flag: one side writes, the other copies out."""

    def __init__(self, d: int) -> None:
        shared = _CONTEXT.RawArray("f", d * d)
        self._shared_array = np.frombuffer(shared, np.float32).reshape(d, d)
        self._child = _Child(_write_arrays, shared, d)
        self.repetition: Callable[[], Iterator[Array]] = self._repetition

    def _repetition(self) -> Iterator[Array]:
        connection = self._child.connection
        connection.send(_SIGNAL)
        for _ in range(TRANSFERS):
            connection.recv()
            array = self._shared_array.copy()
            connection.send(_SIGNAL)
            yield array

    def close(self) -> None:
        self._child.close()
