"""The mechanisms of E1 that carry bytes: how a message is sent, awaited and received. A side has one of them.

Files and mapped files are waited for as the write-up has it, by looking again and again.
"""

from __future__ import annotations

import mmap
import os
import socket
from abc import abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_LENGTH_BYTES = 8
_STEP_BYTES = 1 << 30
"""Linux moves 2 GiB at most in a call (read(2))."""


class Channel(Protocol):
    """Messages of bytes, both ways."""

    @abstractmethod
    def send(self, message: bytes) -> None:
        """All of it."""

    @abstractmethod
    def wait(self) -> int:
        """Until a message begins to arrive; its length. EOFError when the other side has gone."""

    @abstractmethod
    def receive(self, length: int) -> bytes | bytearray:
        """The message that has been waited for."""


class Stream(Channel):
    """Two descriptors of bytes, each message behind its length: stdio pipes, named pipes, sockets."""

    def __init__(self, reader: int, writer: int) -> None:
        """To read from and to write to."""
        self._reader, self._writer = reader, writer

    def send(self, message: bytes) -> None:
        """All of it."""
        os.write(self._writer, len(message).to_bytes(_LENGTH_BYTES, "little"))
        left = memoryview(message)
        while left:
            left = left[os.write(self._writer, left[:_STEP_BYTES]) :]

    def wait(self) -> int:
        """Until the length is there."""
        return int.from_bytes(self.receive(_LENGTH_BYTES), "little")

    def receive(self, length: int) -> bytearray:
        """Into a new buffer."""
        received = bytearray(length)
        left = memoryview(received)
        while left:
            count = os.readv(self._reader, [left[:_STEP_BYTES]])
            if not count:
                raise EOFError
            left = left[count:]
        return received


def named_pipes(folder: str, *, slave: bool) -> Stream:
    """One for each direction, opened in the same order on both sides; the master makes them."""
    there, back = Path(folder) / "there", Path(folder) / "back"
    if slave:
        return Stream(os.open(there, os.O_RDONLY), os.open(back, os.O_WRONLY))
    writer = os.open(there, os.O_WRONLY)
    return Stream(os.open(back, os.O_RDONLY), writer)


def tcp(connected: socket.socket) -> Stream:
    """A TCP connection on the loopback, which stays open."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    descriptor = connected.detach()
    return Stream(descriptor, descriptor)


class MappedFiles(Channel):
    """A mapped file for each direction; its first bytes are the flag, which is the message's length."""

    def __init__(self, folder: str, capacity: int, *, slave: bool) -> None:
        """The master makes the files."""
        maps = [self._map(Path(folder) / name, capacity, make=not slave) for name in ("there", "back")]
        self._out, self._in = maps[::-1] if slave else maps

    @staticmethod
    def _map(path: Path, capacity: int, *, make: bool) -> mmap.mmap:
        if make:
            with path.open("wb") as file:
                file.truncate(_LENGTH_BYTES + capacity)
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), 0)

    def send(self, message: bytes) -> None:
        """Write it, then raise the flag."""
        while any(self._out[:_LENGTH_BYTES]):  # the one before is still being read
            os.sched_yield()
        self._out[_LENGTH_BYTES : _LENGTH_BYTES + len(message)] = message
        self._out[:_LENGTH_BYTES] = len(message).to_bytes(_LENGTH_BYTES, "little")

    def wait(self) -> int:
        """Until the flag is up."""
        while not any(self._in[:_LENGTH_BYTES]):
            os.sched_yield()
        return int.from_bytes(self._in[:_LENGTH_BYTES], "little")

    def receive(self, length: int) -> bytes:
        """Copied out of the file; the flag goes down."""
        received = self._in[_LENGTH_BYTES : _LENGTH_BYTES + length]
        self._in[:_LENGTH_BYTES] = bytes(_LENGTH_BYTES)
        return received


class Files(Channel):
    """A new file for each message, under its name once it is whole."""

    def __init__(self, folder: str, *, slave: bool) -> None:
        """In this folder."""
        names = [Path(folder) / name for name in ("there", "back")]
        self._out, self._in = names[::-1] if slave else names

    def send(self, message: bytes) -> None:
        """Write it; not to the disk's platters, as nobody asked for that."""
        fresh = self._out.with_suffix(".new")
        fresh.write_bytes(message)
        while self._out.exists():  # the one before is still being read
            os.sched_yield()
        fresh.rename(self._out)

    def wait(self) -> int:
        """Until it is there."""
        while True:
            with suppress(FileNotFoundError):
                return self._in.stat().st_size
            os.sched_yield()

    def receive(self, length: int) -> bytes:  # noqa: ARG002 - a file knows its length
        """Read and removed."""
        received = self._in.read_bytes()
        self._in.unlink()
        return received
