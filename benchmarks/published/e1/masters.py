"""The contestants of E1 whose responder is a separate program, which gets its channel as arguments."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.published.e1 import Table, stamp, table
from benchmarks.published.e1.channels import (
    CODINGS,
    Channel,
    Files,
    MappedFiles,
    Stream,
    named_pipes,
    responder,
    sender,
    tcp,
)
from benchmarks.published.model import Payload, Received, turn_prefix

_JOIN_S = 10.0
_BASE64_FACTOR = 4 / 3
_PICKLE_BYTES = 1 << 20
"""More than pickle adds."""


class Sender:
    """Holds the table and starts a responder for each payload. `coding` is pickle or base64."""

    def __init__(self, kind: str, coding: str, memory: str | None = None) -> None:
        """`memory` is a folder in memory, for a contestant whose files must be there."""
        self._kind, self._coding, self._memory = kind, coding, memory
        self._responder: subprocess.Popen[bytes] | None = None
        self._channel: Channel
        self._array: Table = np.empty((0, 0), np.float32)

    def prepare(self, payload: Payload) -> None:
        self.close()
        self._array = table(payload.values["rows"])
        self._folder = tempfile.TemporaryDirectory(prefix=turn_prefix(), dir=self._memory)
        self._responder, self._channel = _START[self._kind](self._coding, self._folder.name, payload.nbytes)

    def transfer(self, number: int) -> Received:
        return sender(self._channel, self._coding, stamp(self._array, number))

    def close(self) -> None:
        if self._responder is None:
            return
        self._responder.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._responder.wait(_JOIN_S)
        self._responder = None
        self._folder.cleanup()


def _program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.published.e1.masters", *arguments]


def _start_stdio(coding: str, _: str, __: int) -> tuple[subprocess.Popen[bytes], Channel]:
    process = subprocess.Popen(_program("stdio", coding), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    return process, Stream(process.stdout.fileno(), process.stdin.fileno())


def _start_named_pipe(coding: str, folder: str, _: int) -> tuple[subprocess.Popen[bytes], Channel]:
    for name in ("forward", "back"):
        os.mkfifo(Path(folder) / name)
    process = subprocess.Popen(_program("named pipe", coding, folder))
    return process, named_pipes(folder, responder=False)


def _start_tcp(coding: str, _: str, __: int) -> tuple[subprocess.Popen[bytes], Channel]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = subprocess.Popen(_program("tcp", coding, str(listening.getsockname()[1])))
        return process, tcp(listening.accept()[0])


def _start_mmap(coding: str, folder: str, nbytes: int) -> tuple[subprocess.Popen[bytes], Channel]:
    channel = MappedFiles(folder, int(nbytes * _BASE64_FACTOR) + _PICKLE_BYTES, responder=False)
    return subprocess.Popen(_program("mmap", coding, folder)), channel


def _start_files(coding: str, folder: str, _: int) -> tuple[subprocess.Popen[bytes], Channel]:
    return subprocess.Popen(_program("file", coding, folder)), Files(folder, responder=False)


_START = {
    "stdio": _start_stdio,
    "named pipe": _start_named_pipe,
    "tcp": _start_tcp,
    "mmap": _start_mmap,
    "file": _start_files,
}
_RESPONDERS: dict[str, Callable[..., Channel]] = {
    "stdio": lambda: Stream(0, 1),
    "named pipe": partial(named_pipes, responder=True),
    "tcp": lambda port: tcp(socket.create_connection(("127.0.0.1", int(port)))),
    "mmap": partial(MappedFiles, capacity=0, responder=True),
    "file": partial(Files, responder=True),
}


def _main(kind: str, coding: str, *where: str) -> None:
    assert coding in CODINGS
    with suppress(EOFError):
        responder(_RESPONDERS[kind](*where), coding)


if __name__ == "__main__":
    _main(*sys.argv[1:])
