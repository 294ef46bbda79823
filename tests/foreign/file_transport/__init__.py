"""A transport that is no part of stagepipe: one file for each buffer, in a folder on a RAM disk.

A file's name says who holds it: `PID-TICKET`. A ticket is the number of the process that placed the buffer, and a
count. The process that takes a buffer over renames its file, so that what a dead process held can be found.
"""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from stagepipe.transport import Transport

RAM_DISK = Path("/dev/shm")
PREFIX = "file-transport-"
_COUNT_BITS = 32
_WRITE_NS = 30_000
_BYTES_PER_NS = 2


class FileTransport(Transport):
    """One process's end: a folder, and the files in it that belong to this process."""

    name = "file"

    @classmethod
    def prepare(cls) -> str:
        for stale in RAM_DISK.glob(f"{PREFIX}*"):  # of a caller that was killed
            if not _is_alive(int(stale.name.removeprefix(PREFIX).split("-")[0])):
                shutil.rmtree(stale, ignore_errors=True)
        return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=RAM_DISK)

    @classmethod
    def remove(cls, shared: str) -> None:
        shutil.rmtree(shared, ignore_errors=True)

    @classmethod
    def reclaim(cls, shared: str) -> None:
        for path in Path(shared).iterdir():
            if not _is_alive(int(path.name.split("-")[0])):
                path.unlink(missing_ok=True)

    @classmethod
    def estimate_ns(cls, nbytes: int) -> int:
        return _WRITE_NS + nbytes // _BYTES_PER_NS

    def __init__(self, shared: str) -> None:
        self._folder = Path(shared)
        self._count = itertools.count()
        self._pid = os.getpid()

    def place(self, data: np.ndarray) -> int:
        ticket = self._pid << _COUNT_BITS | next(self._count)
        self._path(self._pid, ticket).write_bytes(data)
        return ticket

    def take_over(self, ticket: int, nbytes: int) -> np.ndarray:
        mine = self._path(self._pid, ticket)
        if not mine.exists():
            self._find(ticket).rename(mine)
        with mine.open("r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), nbytes, mmap.MAP_PRIVATE), np.uint8)

    def release(self, ticket: int) -> None:
        self._find(ticket).unlink(missing_ok=True)

    def _find(self, ticket: int) -> Path:
        """The file of a ticket: mostly of the process that placed it, else of the one that handed it on."""
        for pid in (self._pid, ticket >> _COUNT_BITS):
            if (path := self._path(pid, ticket)).exists():
                return path
        return next(self._folder.glob(f"*-{ticket}"), self._path(0, ticket))

    def _path(self, pid: int, ticket: int) -> Path:
        return self._folder / f"{pid}-{ticket}"


def _is_alive(pid: int) -> bool:
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX"
    return False
