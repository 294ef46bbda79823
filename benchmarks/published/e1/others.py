"""The contestants of E1 without a responder program: the queue, which pickles by itself, mappings, and MPI.

A mapping carries the array without a pickle, and is written again for each transfer. It has two parts, one for each
direction. The sender copies the table into the first. The responder either hands that part back (one copy, nobody reads
the data) or copies it into the second. The result is valid until the next transfer. A byte through a pipe says that a
part is complete.
"""

from __future__ import annotations

import mmap
import os
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.published.child import CONTEXT, Child, serve_commands_in_thread
from benchmarks.published.e1 import COLUMNS, Table, stamp, table
from benchmarks.published.e1.channels import Channel, responder, sender
from benchmarks.published.model import TOTAL, Payload, Received, program, turn_prefix


def _give_back(connection: Connection, forward: Any, back: Any) -> None:
    connection.send(None)
    serve_commands_in_thread(connection, {})
    while True:
        array = forward.get()
        begin = perf_counter_ns()
        back.put(array)
        back.put({"responder send": perf_counter_ns() - begin})
        del array


class _Holder:
    """Holds the table, which `prepare` creates."""

    _array: Table = np.empty((0, COLUMNS), np.float32)

    def prepare(self, payload: Payload) -> None:
        self._array = table(payload.values["rows"])


class Queue(_Holder):
    """A multiprocessing.Queue for each direction. It pickles in a thread; its `get` waits, receives and restores."""

    def __init__(self) -> None:
        self._forward, self._back = CONTEXT.Queue(), CONTEXT.Queue()
        self._responder = Child(_give_back, self._forward, self._back)

    def transfer(self, number: int) -> Received:
        begin = perf_counter_ns()
        self._forward.put(stamp(self._array, number))
        sent = perf_counter_ns()
        back = self._back.get()
        end = perf_counter_ns()
        parts = {"send": sent - begin, "sender wait": end - sent, **self._back.get()}
        return Received(back, {**parts, TOTAL: end - begin})

    def close(self) -> None:
        self._responder.close()
        for queue in (self._forward, self._back):
            queue.close()
            queue.cancel_join_thread()


# ---------------------------------------------------------------------------------------------- mappings

_SIGNAL = b"."


class Anonymous:
    """A memfd: memory without a name, whose descriptor the responder inherits."""

    def __init__(self, nbytes: int) -> None:
        self._descriptor = os.memfd_create("table")
        os.ftruncate(self._descriptor, nbytes)

    def __getstate__(self) -> Any:
        return DupFd(self._descriptor)

    def __setstate__(self, descriptor: Any) -> None:
        self._descriptor = descriptor.detach()

    def map(self, shape: tuple[int, ...]) -> Table:
        return np.ndarray(shape, np.float32, mmap.mmap(self._descriptor, 0))

    def close(self) -> None:
        os.close(self._descriptor)


class Named:
    """multiprocessing's SharedMemory, which the responder opens by its name."""

    def __init__(self, nbytes: int) -> None:
        self._segment = SharedMemory(f"{turn_prefix()}-table", create=True, size=nbytes)

    def map(self, shape: tuple[int, ...]) -> Table:
        return np.ndarray(shape, np.float32, self._segment.buf)

    def close(self) -> None:
        """Remove the segment; its mapping ends with this process, because the last array may still be in use."""
        self._segment.unlink()
        self._segment.close = lambda: None  # type: ignore[method-assign]


Memory = Anonymous | Named
_MEMORIES: dict[str, type[Memory]] = {"anonymous": Anonymous, "named": Named}


def _respond(connection: Connection, memory: Memory, rows: int, copies: bool, signals: Connection) -> None:  # noqa: FBT001 - arguments of a process
    forward, back = memory.map((2, rows, COLUMNS))
    connection.send(None)
    serve_commands_in_thread(connection, {})
    while True:
        signals.recv_bytes()
        if copies:
            np.copyto(back, forward)
        signals.send_bytes(_SIGNAL)


class Mapping(_Holder):
    """Holds the table, and a mapping that the responder shares. `memory` is anonymous or named."""

    def __init__(self, memory: str, *, copies: bool) -> None:
        self._make, self._copies = _MEMORIES[memory], copies
        self._memory: Memory | None = None
        self._responder: Child

    def prepare(self, payload: Payload) -> None:
        self.close()
        super().prepare(payload)
        rows, self._memory = payload.values["rows"], self._make(2 * payload.nbytes)
        self._forward, self._back = self._memory.map((2, rows, COLUMNS))
        self._signals, other = CONTEXT.Pipe()
        self._responder = Child(_respond, self._memory, rows, self._copies, other)
        other.close()

    def transfer(self, number: int) -> Received:
        begin = perf_counter_ns()
        np.copyto(self._forward, stamp(self._array, number))
        sent = perf_counter_ns()
        self._signals.send_bytes(_SIGNAL)
        self._signals.recv_bytes()
        end = perf_counter_ns()
        parts = {"send": sent - begin, "sender wait": end - sent, TOTAL: end - begin}
        return Received(self._back if self._copies else self._forward, parts)

    def close(self) -> None:
        if self._memory is not None:
            self._responder.close()
            self._memory.close()
            self._memory = None


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
        self._world.Send([message, self._mpi.BYTE], self._other)

    def wait(self) -> int:
        status = self._mpi.Status()
        self._world.Probe(self._other, status=status)
        length: int = status.Get_count(self._mpi.BYTE)
        if not length:
            raise EOFError
        return length

    def receive(self, length: int) -> bytearray:
        received = bytearray(length)
        self._world.Recv([received, self._mpi.BYTE], self._other)
        return received


class Mpi(_Holder):
    """Both sides run the same program; rank 1 is the responder and never returns from `__init__`."""

    def __init__(self, coding: str) -> None:
        self._channel, self._coding = _Messages(), coding
        if self._channel.rank:
            try:
                responder(self._channel, coding)
            except EOFError:
                sys.exit()

    def transfer(self, number: int) -> Received:
        return sender(self._channel, self._coding, stamp(self._array, number))

    def close(self) -> None:
        self._channel.send(b"")


class MpiBuffers(_Holder):
    """MPI's Send and Recv with the array's own memory, into an array that is used again. Rank 1 is the responder."""

    def __init__(self) -> None:
        """Start the responder's loop if this is rank 1, and never return."""
        from mpi4py import MPI

        self._world = MPI.COMM_WORLD
        self._other = 1 - self._world.Get_rank()
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
        super().prepare(payload)
        self._back = np.empty_like(self._array)

    def transfer(self, number: int) -> Received:
        begin = perf_counter_ns()
        self._world.Send(stamp(self._array, number), self._other)
        sent = perf_counter_ns()
        self._world.Recv(self._back, self._other)
        end = perf_counter_ns()
        return Received(self._back, {"send": sent - begin, "sender receive": end - sent, TOTAL: end - begin})

    def close(self) -> None:
        self._world.Send(self._array[:0], self._other, tag=1)
