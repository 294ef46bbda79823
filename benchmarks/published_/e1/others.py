"""The contestants of E1 that are no program with arguments: the queue, which pickles by itself, and MPI."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from published_.child import CONTEXT, Child, obey_aside
from published_.e1.channels import Channel
from published_.e1.protocol import master, slave
from published_.e1.table import Table, stamp, table
from published_.model import Payload, Received
from published_.needs import program
from published_.turn import TOTAL


def _give_back(connection: Connection, there: Any, back: Any) -> None:
    connection.send(None)
    obey_aside(connection, {})
    while True:
        array = there.get()
        begin = perf_counter_ns()
        back.put(array)
        back.put({"slave send": perf_counter_ns() - begin})
        del array


class Queue:
    """multiprocessing.Queue, one for each direction. It pickles in a thread; its `get` waits, receives and restores."""

    def __init__(self) -> None:
        """Start the slave."""
        self._there, self._back = CONTEXT.Queue(), CONTEXT.Queue()
        self._slave = Child(_give_back, self._there, self._back)
        self._array: Table = np.empty((0, 0), np.float32)

    def prepare(self, payload: Payload) -> None:
        """Make the table."""
        self._array = table(payload.values["rows"])

    def transfer(self, number: int) -> Received:
        """There and back."""
        begin = perf_counter_ns()
        self._there.put(stamp(self._array, number))
        sent = perf_counter_ns()
        back = self._back.get()
        end = perf_counter_ns()
        parts = {"send": sent - begin, "master wait": end - sent, **self._back.get()}
        return Received(back, {**parts, TOTAL: end - begin})

    def close(self) -> None:
        """End the slave."""
        self._slave.close()
        for queue in (self._there, self._back):
            queue.close()
            queue.cancel_join_thread()


# ---------------------------------------------------------------------------------------------- MPI


def launch(_: Path, command: list[str]) -> list[str]:
    """Two processes of the command under mpiexec; which processors they take is the turn's to say."""
    mpiexec = program("mpiexec")
    assert mpiexec is not None
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader", "-n", "2"]
    return [mpiexec, *options, *command]


class _Messages(Channel):
    """Byte messages to the other one of two processes."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi, self._world = MPI, MPI.COMM_WORLD
        self.rank: int = self._world.Get_rank()
        self._other = 1 - self.rank

    def send(self, message: bytes) -> None:
        """All of it."""
        self._world.Send([message, self._mpi.BYTE], self._other)

    def wait(self) -> int:
        """Until a message begins to arrive. One without contents says that the other side goes."""
        status = self._mpi.Status()
        self._world.Probe(self._other, status=status)
        length: int = status.Get_count(self._mpi.BYTE)
        if not length:
            raise EOFError
        return length

    def receive(self, length: int) -> bytearray:
        """Into a new buffer."""
        received = bytearray(length)
        self._world.Recv([received, self._mpi.BYTE], self._other)
        return received


class Mpi:
    """Both sides are the same program; the second one is the slave, and does not come back from here."""

    def __init__(self, coding: str) -> None:
        """Find out which one this is."""
        self._channel, self._coding = _Messages(), coding
        self._array: Table = np.empty((0, 0), np.float32)
        if self._channel.rank:
            try:
                slave(self._channel, coding)
            except EOFError:
                sys.exit()

    def prepare(self, payload: Payload) -> None:
        """Make the table."""
        self._array = table(payload.values["rows"])

    def transfer(self, number: int) -> Received:
        """There and back."""
        return master(self._channel, self._coding, stamp(self._array, number))

    def close(self) -> None:
        """Let the slave go."""
        self._channel.send(b"")
