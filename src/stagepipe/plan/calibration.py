"""Measuring this machine: what a message costs through the pipe and through shared memory, by size.

Sender and receiver run in one thread, so that the figures hold no waking up and no waiting: they are what both sides
work for a message. Each size is tried in turns with the others and the median is kept, in well under a second. The
curves are kept in the user's cache folder under a key of cpu, kernel, Python and version.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from stagepipe.plan.curves import Curves
from stagepipe.timing import RECEIVE_PHASES, SEND_PHASES, WORDS, Recorder
from stagepipe.transport import (
    Arena,
    Bell,
    Memory,
    Policy,
    Receiver,
    Sender,
    make_arena,
    make_byte_pipe,
    make_pipe,
)

PIPE_SIZES = (64, 256, 512, 1024, 1536, 2048, 3072, 4096, 16 << 10, 64 << 10, 256 << 10)
SIZES = (*PIPE_SIZES, 1 << 20, 4 << 20)
_ROUNDS = 25
_FORMAT = 1


class _Loop:
    """A sender and a receiver on one pipe, in one thread."""

    def __init__(self, policy: Policy) -> None:
        limit = 64 << 20
        fd, pipe = make_arena(limit), make_pipe(256)
        read_fd, write_fd = make_byte_pipe()
        self._fds = [fd, pipe.read_fd, pipe.write_fd, read_fd, write_fd]
        own = Memory(Arena(0, fd, limit), {0: fd}, {0: read_fd})
        other = Memory(None, {0: fd}, {0: write_fd})
        self._bell = Bell()
        send, receive = (np.zeros(len(p) * WORDS, np.uint64) for p in (SEND_PHASES, RECEIVE_PHASES))
        never = bool
        self._sender = Sender(pipe.write_fd, own, policy, self._bell, never, Recorder(send, len(SEND_PHASES)))
        self._receiver = Receiver(pipe.read_fd, other, self._bell, never, Recorder(receive, len(RECEIVE_PHASES)))

    def once(self, item: object) -> int:
        """The cost of one message in ns."""
        box = [item]
        begin = perf_counter_ns()
        self._sender.send(box, 1, (0,), 1, b"")
        received = self._receiver.receive(1, 1.0)
        end = perf_counter_ns()
        if received is None:
            message = "calibration: a message did not arrive within a second"
            raise RuntimeError(message)
        return end - begin

    def close(self) -> None:
        """Close what was opened."""
        self._sender.close()
        self._receiver.close()
        self._bell.close()
        for fd in self._fds:
            os.close(fd)


def measure() -> Curves:
    """The curves of this machine, now."""
    loops = {
        "pipe": _Loop(Policy(1 << 62, large_in_pipe=True)),
        "shared": _Loop(Policy(1)),
    }
    items = {size: {"data": np.zeros(size, np.uint8)} for size in SIZES}
    plans = [("shared", size) for size in SIZES] + [("pipe", size) for size in PIPE_SIZES]
    costs: dict[tuple[str, int], list[int]] = {plan: [] for plan in plans}
    for turn in range(_ROUNDS):
        for name, size in plans:
            cost = loops[name].once(items[size])
            if turn > 2:  # noqa: PLR2004 - the first rounds touch fresh pages
                costs[name, size].append(cost)
    for loop in loops.values():
        loop.close()
    pipe = [int(np.median(costs["pipe", size])) for size in PIPE_SIZES]
    slope = (pipe[-1] - pipe[-2]) / (PIPE_SIZES[-1] - PIPE_SIZES[-2])
    pipe += [int(pipe[-1] + slope * (size - PIPE_SIZES[-1])) for size in SIZES[len(PIPE_SIZES) :]]
    shared = [int(np.median(costs["shared", size])) for size in SIZES]
    when = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return Curves(SIZES, tuple(pipe), tuple(shared), timing_ns_per_hop(), when)


def timing_ns_per_hop(rounds: int = 2000) -> int:
    """What the timing of one hop costs: its stamps and the recording of both sides' rows, done alone, in ns."""
    send = Recorder(np.zeros(len(SEND_PHASES) * WORDS, np.uint64), len(SEND_PHASES))
    receive = Recorder(np.zeros(len(RECEIVE_PHASES) * WORDS, np.uint64), len(RECEIVE_PHASES))
    stamps = 8  # three and the packet's on the sending side, four on the receiving one
    best = 1 << 62
    for _ in range(3):
        begin = perf_counter_ns()
        for at in range(rounds):
            for _ in range(stamps):
                perf_counter_ns()
            send.add((at, at, at, 0))
            receive.add((at, at, at, at))
        best = min(best, (perf_counter_ns() - begin) // rounds)
    return best


TIMING_HOW = "the stamps and both sides' recording of a hop, repeated alone on this machine"


def machine_key(version: str) -> str:
    """Changes with cpu, kernel, Python and stagepipe."""
    cpu = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line for line in lines if line.startswith("model name")), "")
    parts = (cpu, os.cpu_count(), platform.release(), sys.version, version, _FORMAT)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def cache_folder() -> Path:
    """The user's cache folder for stagepipe."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stagepipe"


def load(version: str) -> Curves:
    """The curves of this machine: from the cache, or measured and cached where the folder can be written."""
    path = cache_folder() / f"curves-{machine_key(version)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return Curves.from_plain(json.loads(path.read_text()))
    curves = measure()
    with contextlib.suppress(OSError):
        _write(path, curves.to_plain())
    return curves


def _write(path: Path, plain: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(fd, "w") as file:
        json.dump(plain, file)
    Path(name).replace(path)
