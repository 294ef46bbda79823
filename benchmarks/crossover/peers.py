"""The payload, and the write-up's two contestants: `repetition` requests the arrays and yields them one by one.

A float32 array of shape (d, d) is sent; both sides make it. Each contestant has a child process, forked from a server
that has no threads. The child sends `TRANSFERS` arrays on each request and exits when the other side closes. A receiver
that waits for a dead child gets EOFError.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.turn import end_process

Array = NDArray[np.float32]
TRANSFERS = 100
"""Arrays in a repetition, as in the write-up. Their numbers are exact in float32."""


def make_array(d: int) -> Array:
    """Create an array of shape (d, d): the same random numbers between 1 and 2 on both sides."""
    return np.random.default_rng(17).random((d, d), np.float32) + np.float32(1)


def stamp(array: Array, transfer: int) -> None:
    """Write the number of the transfer into the first element, so that a mix-up shows."""
    array[0, 0] = transfer


def check(received: Any, transfer: int) -> None:
    """Raise AssertionError unless the array is number `transfer`. It reads the first element, inside the timing."""
    assert received[0, 0] == transfer, f"received transfer {received[0, 0]:g}, expected transfer {transfer}"


def check_all(received: Any, expected: Array, transfer: int) -> None:
    """Raise AssertionError unless every element of the transfer is right. Not timed."""
    assert received.dtype == np.float32, f"transfer {transfer} has dtype {received.dtype}, expected float32"
    assert received.shape == expected.shape, (
        f"transfer {transfer} has shape {received.shape}, expected {expected.shape}"
    )
    check(received, transfer)
    wrong = int(np.count_nonzero(received.ravel()[1:] != expected.ravel()[1:]))
    assert not wrong, f"transfer {transfer} has {wrong} of {expected.size} elements wrong"


def spoiled(arrays: Callable[[], Any]) -> Callable[[], Any]:
    """Corrupt the last element of each array of a repetition, for the test of the check."""

    def repetition() -> Any:
        for received in arrays():
            array = np.array(received)
            array[-1, -1] += 1
            yield array

    return repetition


class Arrays:
    """The arrays of a repetition; each iteration is one repetition. It yields one array with a new number each time."""

    def __init__(self, d: int) -> None:
        self._array = make_array(d)

    def __iter__(self) -> Iterator[Array]:
        for transfer in range(TRANSFERS):
            stamp(self._array, transfer)
            yield self._array


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
