"""A hop to another process and back, on which a message's cost is measured. The other process is `calibration.echo`."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any, Self

import numpy as np

from stagepipe.core import RunError
from stagepipe.plan.learning import Seen, seen_of
from stagepipe.timing import LEDGER_WORDS, RECEIVE_PHASES, SEND_PHASES, WORDS, Histogram, Ledger, Recorder, Way
from stagepipe.transport import (
    FORCED_PIPE,
    Arena,
    Bell,
    Kind,
    Lease,
    Memory,
    Policy,
    Receiver,
    Sender,
    make_arena,
    make_byte_pipe,
    make_pipe,
)

LIMIT_BYTES = 1 << 30
"""Of each arena: room for some blocks of 64 MB each; what is not touched takes nothing."""
_UNDER_WAY = 4
DEADLINE_S = 10.0
OWN_BYTES = 2 << 20
"""What a process touches between two messages besides: as large as the cache of its own that a core has."""
WORK_BYTES = 16 << 20
"""The most that it touches."""
SIDES = 4
"""Ledgers on the shared page: of sending there, receiving there, sending back, receiving back."""


def rest(work: np.ndarray[Any, Any], nbytes: int = 0) -> None:
    """What a process does between two messages of `nbytes`: work of its own, the longer the more it carries."""
    work[: OWN_BYTES + 2 * nbytes] += 1


class Process:
    """One side: its memory, and how it sends and receives. `ledgers` are its (sending, receiving) ones."""

    def __init__(self, memory: Memory, ledgers: tuple[Ledger, Ledger], stack: contextlib.ExitStack) -> None:
        """What it opens is closed by `stack`."""
        self._memory, self._stack = memory, stack
        self._bell = Bell()
        stack.callback(self._bell.close)
        phases = (SEND_PHASES, RECEIVE_PHASES)
        self._words = [np.zeros(len(each) * WORDS, np.uint64) for each in phases]
        self.sending, self.receiving = (
            Recorder(words, len(each), ledger) for words, each, ledger in zip(self._words, phases, ledgers, strict=True)
        )

    def sender(self, fd: int, policy: Policy) -> Sender:
        """A sender on the pipe `fd`."""
        sender = Sender(fd, self._memory, policy, self._bell, bool, self.sending)
        self._stack.callback(sender.close)
        return sender

    def receiver(self, fd: int) -> Receiver:
        """A receiver on the pipe `fd`."""
        receiver = Receiver(fd, self._memory, self._bell, bool, self.receiving)
        self._stack.callback(receiver.close)
        return receiver

    def flush(self) -> None:
        """Bring everything to the ledgers."""
        self.sending.flush()
        self.receiving.flush()

    def phase_ns(self, name: str) -> int:
        """The median of a phase over all messages that this side sent or received."""
        side = name not in SEND_PHASES
        at = (SEND_PHASES, RECEIVE_PHASES)[side].index(name)
        return Histogram.from_words(self._words[side][at * WORDS :][:WORDS]).percentile_ns(50)


def ledgers_at(page_fd: int) -> list[Ledger]:
    """The `SIDES` ledgers on the shared page."""
    words = np.frombuffer(mmap.mmap(page_fd, SIDES * LEDGER_WORDS * 8), np.uint64)
    return [Ledger(part) for part in words.reshape(SIDES, LEDGER_WORDS)]


class Trip:
    """Messages to the other process and back. A context manager.

    >>> with Trip() as trip:
    ...     for _ in range(20):
    ...         for size in (64, 4096):
    ...             trip.send(Way.COPIED, {"data": np.zeros(size, np.uint8)})
    ...     trip.finish()
    ...     there, back = trip.seen()
    >>> sum(each.count for each in there)
    40

    RunError if the other process cannot be started or does not answer.
    """

    def __init__(self) -> None:
        self._stack = stack = contextlib.ExitStack()
        arenas = {number: self._own(make_arena(LIMIT_BYTES)) for number in range(2)}
        returns = {number: tuple(map(self._own, make_byte_pipe())) for number in range(2)}
        there, back = make_pipe(256), make_pipe(256)
        stack.callback(there.close)
        stack.callback(back.close)
        page = self._own(os.memfd_create("stagepipe-ledgers", os.MFD_CLOEXEC))
        os.ftruncate(page, SIDES * LEDGER_WORDS * 8)
        fds = (there.read_fd, back.write_fd, arenas[0], arenas[1], returns[0][1], returns[1][0], page)
        self._other = _start(fds)
        stack.callback(self._end)
        self._arena = Arena(0, arenas[0], LIMIT_BYTES)
        self._memory = Memory(self._arena, arenas, {0: returns[0][0], 1: returns[1][1]})
        ledgers = ledgers_at(page)
        self._there, self._back = ledgers[:2], ledgers[2:]
        self._process = process = Process(self._memory, (ledgers[0], ledgers[3]), stack)
        self._by = {
            Way.PIPE: process.sender(there.write_fd, Policy(FORCED_PIPE, large_in_pipe=True)),
            Way.COPIED: process.sender(there.write_fd, Policy(1)),
        }
        self._receiver = process.receiver(back.read_fd)
        self._work = np.zeros(WORK_BYTES, np.uint8)
        self._under_way, self._most = 0, min(_UNDER_WAY, back.capacity)  # else both sides might wait for room
        self._received_ns: list[int] = []

    def _own(self, fd: int) -> int:
        self._stack.callback(os.close, fd)
        return fd

    def __enter__(self) -> Self:
        """The trip itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the other process and close what was opened."""
        self._stack.close()

    def _end(self) -> None:
        self._other.kill()
        self._other.wait()

    def send(self, way: Way, item: Any) -> None:
        """Send an item, which the caller may hold; one that goes by the pipe comes back as an empty one."""
        rest(self._work, sum(array.nbytes for array in item.values()))
        samples = 2 if way is Way.PIPE else 1
        self._by[way].send([item], 1, (0,), samples, b"")
        self._under_way += 1
        while self._under_way >= self._most:
            self._await()

    def loan(self, nbytes: int) -> None:
        """Send an item that lies in a block already."""
        rest(self._work, nbytes)
        self._by[Way.COPIED].send([{"data": np.asarray(self._memory.loan(nbytes))}], 1, (0,), 1, b"")
        self._under_way += 1
        self._await()

    def cold(self, nbytes: int, item: Any) -> None:
        """Send an item through a block that nobody has touched: those that were are taken first."""
        allocator = self._arena.allocator
        taken: list[Lease] = []
        while not taken or not allocator.fresh:
            taken.append(self._memory.loan(nbytes))
        self.send(Way.COPIED, item)

    def drain(self) -> None:
        """Wait for all that is under way."""
        while self._under_way:
            self._await()

    def finish(self) -> None:
        """Wait for all, and for the other process to end."""
        self.drain()
        self._by[Way.PIPE].tell(Kind.END, 1, (0,))
        self._other.wait(DEADLINE_S)
        self._process.flush()

    def _await(self) -> None:
        starved_ns, begin = self._receiver.starved_ns, perf_counter_ns()
        received = self._receiver.receive(1, DEADLINE_S)
        if self._receiver.starved_ns == starved_ns:
            self._received_ns.append(perf_counter_ns() - begin)
        if received is None or received.kind != Kind.ITEM:
            raise RunError(
                "cannot measure this machine: the process at the other end of the hop does not answer "
                f"(exit code {self._other.poll()}); is there memory and are there processes left?"
            )
        received.value = None
        self._under_way -= 1

    @property
    def besides_ns(self) -> int:
        """What a message costs besides being carried, in the median: pickling, reading it, unpickling. After `finish`.

        It is the same in all ways, so that no ledger and no curve holds it.
        """
        reading_ns = int(median(self._received_ns or [0])) - self._process.phase_ns("receive_ns")
        return self._process.phase_ns("encode_ns") + max(reading_ns, 0)

    def seen(self) -> tuple[list[Seen], list[Seen]]:
        """What messages cost on the way there and on the way back. After `finish`."""
        return seen_of(self._there[:1], self._there[1:]), seen_of(self._back[:1], self._back[1:])


def _start(fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """The other process, with the descriptors that `calibration.echo` names."""
    package = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "stagepipe.plan.calibration.echo", *map(str, fds)],
            pass_fds=fds,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the caller, who ends it
        )
    except OSError as error:
        raise RunError(f"cannot measure this machine: no process can be started: {error}") from error
