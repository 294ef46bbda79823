"""The contestants of E1 without a responder program: the queue, which pickles by itself, and MPI."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.published.child import CONTEXT, Child, serve_commands_in_thread
from benchmarks.published.e1.channels import Channel
from benchmarks.published.e1.protocol import responder, sender
from benchmarks.published.e1.table import Table, stamp, table
from benchmarks.published.model import Payload, Received
from benchmarks.published.needs import program
from benchmarks.published.turn import TOTAL


def _give_back(connection: Connection, forward: Any, back: Any) -> None:
    connection.send(None)
    serve_commands_in_thread(connection, {})
    while True:
        array = forward.get()
        begin = perf_counter_ns()
        back.put(array)
        back.put({"responder send": perf_counter_ns() - begin})
        del array


class Queue:
    """A multiprocessing.Queue for each direction. It pickles in a thread; its `get` waits, receives and restores."""

    def __init__(self) -> None:
        """Start the responder."""
        self._forward, self._back = CONTEXT.Queue(), CONTEXT.Queue()
        self._responder = Child(_give_back, self._forward, self._back)
        self._array: Table = np.empty((0, 0), np.float32)

    def prepare(self, payload: Payload) -> None:
        """Create the table."""
        self._array = table(payload.values["rows"])

    def transfer(self, number: int) -> Received:
        """Send the table and receive it back."""
        begin = perf_counter_ns()
        self._forward.put(stamp(self._array, number))
        sent = perf_counter_ns()
        back = self._back.get()
        end = perf_counter_ns()
        parts = {"send": sent - begin, "sender wait": end - sent, **self._back.get()}
        return Received(back, {**parts, TOTAL: end - begin})

    def close(self) -> None:
        """End the responder."""
        self._responder.close()
        for queue in (self._forward, self._back):
            queue.close()
            queue.cancel_join_thread()


# ---------------------------------------------------------------------------------------------- MPI


def launch(_: Path, command: list[str]) -> list[str]:
    """Run two processes of the command under mpiexec. The turn, not mpiexec, chooses their processors."""
    mpiexec = program("mpiexec")
    assert mpiexec is not None
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader", "-n", "2"]
    return [mpiexec, *options, *command]


class _Messages(Channel):
    """Messages of bytes to the other of two MPI processes."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi, self._world = MPI, MPI.COMM_WORLD
        self.rank: int = self._world.Get_rank()
        self._other = 1 - self.rank

    def send(self, message: bytes) -> None:
        """Send the whole message."""
        self._world.Send([message, self._mpi.BYTE], self._other)

    def wait(self) -> int:
        """Wait until a message begins to arrive. An empty message means that the other side has closed."""
        status = self._mpi.Status()
        self._world.Probe(self._other, status=status)
        length: int = status.Get_count(self._mpi.BYTE)
        if not length:
            raise EOFError
        return length

    def receive(self, length: int) -> bytearray:
        """Receive into a new buffer."""
        received = bytearray(length)
        self._world.Recv([received, self._mpi.BYTE], self._other)
        return received


class Mpi:
    """Both sides run the same program; rank 1 is the responder and never returns from `__init__`."""

    def __init__(self, coding: str) -> None:
        """Start the responder's loop if this is rank 1."""
        self._channel, self._coding = _Messages(), coding
        self._array: Table = np.empty((0, 0), np.float32)
        if self._channel.rank:
            try:
                responder(self._channel, coding)
            except EOFError:
                sys.exit()

    def prepare(self, payload: Payload) -> None:
        """Create the table."""
        self._array = table(payload.values["rows"])

    def transfer(self, number: int) -> Received:
        """Send the table and receive it back."""
        return sender(self._channel, self._coding, stamp(self._array, number))

    def close(self) -> None:
        """End the responder with an empty message."""
        self._channel.send(b"")
