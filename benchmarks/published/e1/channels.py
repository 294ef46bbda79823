"""The mechanisms of E1 that carry bytes, and the two sides of the round trip, which time each part separately.

Each side runs in its own process. Files and mapped files are polled, as in the write-up.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import pickle
import socket
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

from benchmarks.published.e1 import Table
from benchmarks.published.model import TOTAL, Received

_LENGTH_BYTES = 8
_STEP_BYTES = 1 << 30
"""Linux moves at most 2 GiB in a call (read(2))."""


class Channel(Protocol):
    """Sends and receives messages of bytes."""

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Send the whole message."""

    @abstractmethod
    def wait(self) -> int:
        """Wait until a message begins to arrive and return its length. Raise EOFError if the other side has closed."""

    @abstractmethod
    def receive(self, length: int) -> bytes | bytearray:
        """Return the message that `wait` announced."""


class Stream(Channel):
    """Two byte descriptors; each message follows its length. For stdio pipes, named pipes and sockets."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer

    def send(self, message: bytes) -> None:
        os.write(self._writer, len(message).to_bytes(_LENGTH_BYTES, "little"))
        remaining = memoryview(message)
        while remaining:
            remaining = remaining[os.write(self._writer, remaining[:_STEP_BYTES]) :]

    def wait(self) -> int:
        return int.from_bytes(self.receive(_LENGTH_BYTES), "little")

    def receive(self, length: int) -> bytearray:
        received = bytearray(length)
        remaining = memoryview(received)
        while remaining:
            count = os.readv(self._reader, [remaining[:_STEP_BYTES]])
            if not count:
                raise EOFError
            remaining = remaining[count:]
        return received


def named_pipes(folder: str, *, responder: bool) -> Stream:
    """Open one named pipe for each direction, in the same order on both sides. The sender creates them."""
    forward, back = Path(folder) / "forward", Path(folder) / "back"
    if responder:
        return Stream(os.open(forward, os.O_RDONLY), os.open(back, os.O_WRONLY))
    writer = os.open(forward, os.O_WRONLY)
    return Stream(os.open(back, os.O_RDONLY), writer)


def tcp(connected: socket.socket) -> Stream:
    """Use a TCP connection on the loopback, which stays open."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    descriptor = connected.detach()
    return Stream(descriptor, descriptor)


class MappedFiles(Channel):
    """A mapped file for each direction; its first bytes are the flag, which is the length of the message."""

    def __init__(self, folder: str, capacity: int, *, responder: bool) -> None:
        maps = [self._map(Path(folder) / name, capacity, create=not responder) for name in ("forward", "back")]
        self._out, self._in = maps[::-1] if responder else maps

    @staticmethod
    def _map(path: Path, capacity: int, *, create: bool) -> mmap.mmap:
        if create:
            with path.open("wb") as file:
                file.truncate(_LENGTH_BYTES + capacity)
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), 0)

    def send(self, message: bytes) -> None:
        """Write the message, then raise the flag."""
        while any(self._out[:_LENGTH_BYTES]):  # the previous message is still being read
            os.sched_yield()
        self._out[_LENGTH_BYTES : _LENGTH_BYTES + len(message)] = message
        self._out[:_LENGTH_BYTES] = len(message).to_bytes(_LENGTH_BYTES, "little")

    def wait(self) -> int:
        while not any(self._in[:_LENGTH_BYTES]):
            os.sched_yield()
        return int.from_bytes(self._in[:_LENGTH_BYTES], "little")

    def receive(self, length: int) -> bytes:
        received = self._in[_LENGTH_BYTES : _LENGTH_BYTES + length]
        self._in[:_LENGTH_BYTES] = bytes(_LENGTH_BYTES)
        return received


class Files(Channel):
    """A new file for each message, renamed to its final name when it is complete."""

    def __init__(self, folder: str, *, responder: bool) -> None:
        names = [Path(folder) / name for name in ("forward", "back")]
        self._out, self._in = names[::-1] if responder else names

    def send(self, message: bytes) -> None:
        """Write the file, without fsync."""
        temporary = self._out.with_suffix(".new")
        temporary.write_bytes(message)
        while self._out.exists():  # the previous message is still being read
            os.sched_yield()
        temporary.rename(self._out)

    def wait(self) -> int:
        while True:
            with suppress(FileNotFoundError):
                return self._in.stat().st_size
            os.sched_yield()

    def receive(self, length: int) -> bytes:  # noqa: ARG002 - a file knows its length
        received = self._in.read_bytes()
        self._in.unlink()
        return received


PARTS = (
    "dumps",
    "send",
    "responder receive",
    "responder restore",
    "responder dumps",
    "responder send",
    "sender wait",
    "sender receive",
    "sender decode",
)


def _dumps(array: Table) -> bytes:
    return pickle.dumps(array, pickle.HIGHEST_PROTOCOL)


def _dumps_base64(array: Table) -> bytes:
    return base64.b64encode(_dumps(array))


def _restore_base64(message: bytes) -> Any:
    return pickle.loads(base64.b64decode(message))


CODINGS: dict[str, tuple[Callable[[Table], bytes], Callable[..., Any]]] = {
    "pickle": (_dumps, pickle.loads),
    "base64": (_dumps_base64, _restore_base64),
}


class _Clock:
    """Times the parts one after another."""

    def __init__(self) -> None:
        self.parts: dict[str, int] = {}
        self._last_ns = perf_counter_ns()

    def part(self, name: str) -> None:
        now = perf_counter_ns()
        self.parts[name] = now - self._last_ns
        self._last_ns = now


def sender(channel: Channel, coding: str, array: Table) -> Received:
    """Send the table and receive it back."""
    dumps, restore = CODINGS[coding]
    clock = _Clock()
    message = dumps(array)
    clock.part("dumps")
    channel.send(message)
    del message
    clock.part("send")
    length = channel.wait()
    clock.part("sender wait")
    received = channel.receive(length)
    clock.part("sender receive")
    back = restore(received)
    clock.part("sender decode")
    del received
    total = sum(clock.parts.values())
    responder_parts = json.loads(bytes(channel.receive(channel.wait())))
    return Received(back, {**clock.parts, **responder_parts, TOTAL: total})


def responder(channel: Channel, coding: str) -> None:
    """Answer until the sender closes, which raises EOFError. The times of a message follow it as a message."""
    dumps, restore = CODINGS[coding]
    while True:
        length = channel.wait()
        clock = _Clock()
        message = channel.receive(length)
        clock.part("responder receive")
        array = restore(message)
        clock.part("responder restore")
        answer = dumps(array)
        clock.part("responder dumps")
        channel.send(answer)
        clock.part("responder send")
        channel.send(json.dumps(clock.parts).encode())
        del message, array, answer
