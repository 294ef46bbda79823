"""The contestants of E1 that carry the array without a pickle: a mapping that is written again, and MPI's buffers.

The mapping has two parts, one for each direction. The sender copies the table into the first. The responder either
hands that part back (one copy, nobody reads the data) or copies it into the second. The result is valid until the next
transfer. A byte through a pipe says that a part is complete.
"""

from __future__ import annotations

import mmap
import os
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from multiprocessing.shared_memory import SharedMemory
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from benchmarks.published.child import CONTEXT, Child, serve_commands_in_thread
from benchmarks.published.e1.table import COLUMNS, Table, stamp, table
from benchmarks.published.model import Payload, Received
from benchmarks.published.needs import turn_prefix
from benchmarks.published.turn import TOTAL

_SIGNAL = b"."


class Memory(Protocol):
    """Shared memory that the responder gets as an argument."""

    def map(self, shape: tuple[int, ...]) -> Table:
        """Map it as an array."""

    def close(self) -> None:
        """Give it up, in the sender."""


class Anonymous(Memory):
    """A memfd: memory without a name, whose descriptor the responder inherits."""

    def __init__(self, nbytes: int) -> None:
        """Reserve the memory."""
        self._descriptor = os.memfd_create("table")
        os.ftruncate(self._descriptor, nbytes)

    def __getstate__(self) -> Any:
        """Pickle the descriptor for the responder."""
        return DupFd(self._descriptor)

    def __setstate__(self, descriptor: Any) -> None:
        """Unpickle it in the responder."""
        self._descriptor = descriptor.detach()

    def map(self, shape: tuple[int, ...]) -> Table:
        """Map the memory."""
        return np.ndarray(shape, np.float32, mmap.mmap(self._descriptor, 0))

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


class Named(Memory):
    """multiprocessing's SharedMemory, which the responder opens by its name."""

    def __init__(self, nbytes: int) -> None:
        """Create the segment."""
        self._segment = SharedMemory(f"{turn_prefix()}-table", create=True, size=nbytes)

    def map(self, shape: tuple[int, ...]) -> Table:
        """Map the segment."""
        return np.ndarray(shape, np.float32, self._segment.buf)

    def close(self) -> None:
        """Remove the segment; its mapping ends with this process, because the last array may still be in use."""
        self._segment.unlink()
        self._segment.close = lambda: None  # type: ignore[method-assign]


_MEMORIES = {"anonymous": Anonymous, "named": Named}


def _respond(connection: Connection, memory: Memory, rows: int, copies: bool, signals: Connection) -> None:  # noqa: FBT001 - arguments of a process
    forward, back = memory.map((2, rows, COLUMNS))
    connection.send(None)
    serve_commands_in_thread(connection, {})
    while True:
        signals.recv_bytes()
        if copies:
            np.copyto(back, forward)
        signals.send_bytes(_SIGNAL)


class Mapping:
    """Holds the table, and a mapping that the responder shares. `memory` is anonymous or named."""

    def __init__(self, memory: str, *, copies: bool) -> None:
        """Start nothing until the payload is known."""
        self._make, self._copies = _MEMORIES[memory], copies
        self._memory: Memory | None = None
        self._responder: Child
        self._array: Table = np.empty((0, 0), np.float32)

    def prepare(self, payload: Payload) -> None:
        """Create the table and the mapping, and start the responder."""
        self.close()
        rows = payload.values["rows"]
        self._array, self._memory = table(rows), self._make(2 * payload.nbytes)
        self._forward, self._back = self._memory.map((2, rows, COLUMNS))
        self._signals, other = CONTEXT.Pipe()
        self._responder = Child(_respond, self._memory, rows, self._copies, other)
        other.close()

    def transfer(self, number: int) -> Received:
        """Send the table and receive it back."""
        begin = perf_counter_ns()
        np.copyto(self._forward, stamp(self._array, number))
        sent = perf_counter_ns()
        self._signals.send_bytes(_SIGNAL)
        self._signals.recv_bytes()
        end = perf_counter_ns()
        parts = {"send": sent - begin, "sender wait": end - sent, TOTAL: end - begin}
        return Received(self._back if self._copies else self._forward, parts)

    def close(self) -> None:
        """End the responder and give up the memory."""
        if self._memory is not None:
            self._responder.close()
            self._memory.close()
            self._memory = None


# ---------------------------------------------------------------------------------------------- MPI


class MpiBuffers:
    """MPI's Send and Recv with the array's own memory, into an array that is used again. Rank 1 is the responder."""

    def __init__(self) -> None:
        """Start the responder's loop if this is rank 1, and never return."""
        from mpi4py import MPI

        self._world = MPI.COMM_WORLD
        self._other = 1 - self._world.Get_rank()
        self._array: Table = np.empty((0, COLUMNS), np.float32)
        if self._world.Get_rank():
            self._respond()
            sys.exit()

    def _respond(self) -> None:
        """Receive a number of rows, then tables of so many; a table of no rows, which is tag 1, ends it."""
        from mpi4py import MPI

        status, received = MPI.Status(), self._array
        while True:
            self._world.Probe(self._other, status=status)
            if status.Get_tag():
                return
            rows = status.Get_count(MPI.FLOAT) // COLUMNS
            if rows != len(received):
                received = np.empty((rows, COLUMNS), np.float32)
            self._world.Recv(received, self._other)
            self._world.Send(received, self._other)

    def prepare(self, payload: Payload) -> None:
        """Create the table and the array to receive into."""
        self._array = table(payload.values["rows"])
        self._back = np.empty_like(self._array)

    def transfer(self, number: int) -> Received:
        """Send the table and receive it back."""
        begin = perf_counter_ns()
        self._world.Send(stamp(self._array, number), self._other)
        sent = perf_counter_ns()
        self._world.Recv(self._back, self._other)
        end = perf_counter_ns()
        return Received(self._back, {"send": sent - begin, "sender receive": end - sent, TOTAL: end - begin})

    def close(self) -> None:
        """End the responder."""
        self._world.Send(self._array[:0], self._other, tag=1)
