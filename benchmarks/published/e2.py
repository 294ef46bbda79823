"""E2: one large list of integers goes to another process, in several sizes.

The list is list(range(n)) with the number of the transfer as its first element. Each mechanism has a call of the sender
and a call of the receiver, and both sides have a copy of it. A child has the list and sends it; the process of the turn
receives it.
"""

from __future__ import annotations

import pickle
import socket
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

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
)

Integers = npt.NDArray[np.int32]
_INTEGER_BYTES = 36
"""Size of an integer in a list: a pointer and an object."""
_CHUNK = 1_000_000


def payload(power: int) -> Payload:
    """Return the payload of 10 to the power of `power` integers."""
    return Payload(f"10^{power}", 10**power * _INTEGER_BYTES, {"n": 10**power})


def numbers(n: int) -> list[int]:
    """Return the list, without the number of a transfer."""
    return list(range(n))


def check(data: Any, sent: Payload, number: int) -> None:
    """Check every integer of a list, or of an array of 32-bit integers."""
    n = sent.values["n"]
    assert isinstance(data, list | np.ndarray), f"received a {type(data).__name__}, expected a list or an array"
    assert len(data) == n, f"received {len(data):,} of {n:,} integers"
    wrong = sum(_wrong(data[start : start + _CHUNK], start, number) for start in range(0, n, _CHUNK))
    assert not wrong, f"transfer {number} has {wrong:,} of {n:,} integers wrong"


def _wrong(chunk: Any, start: int, number: int) -> int:
    expected = list(range(start, start + len(chunk)))
    if not start:
        expected[0] = number
    if isinstance(chunk, np.ndarray):
        assert chunk.dtype == np.int32, f"received integers of {chunk.dtype}, expected int32"
        return int(np.count_nonzero(chunk != np.array(expected)))
    return 0 if chunk == expected else sum(a is not b and a != b for a, b in zip(chunk, expected, strict=True))


def spoil(data: Any) -> Any:
    """Change one of the integers."""
    data = data.copy()
    data[len(data) // 2] += 1
    return data


_SENDING, _PIPELINE = "benchmarks.published.e2:MechanismPeer", "benchmarks.published.e2:ListPeer"


def _peer(name: str, mechanism: str, memory_factor: float = 3.5) -> Contestant:
    return Contestant(name, _SENDING, {"mechanism": mechanism}, memory_factor=memory_factor)


EXPERIMENT = Experiment(
    name="E2",
    contestants=(
        Contestant("stagepipe, list", _PIPELINE, {"form": "list"}, memory_factor=3.5),
        Contestant("stagepipe, array", _PIPELINE, {"form": "array"}, memory_factor=2.5),
        Contestant("stagepipe, array ready", _PIPELINE, {"form": "ready"}, memory_factor=2.5, is_addition=True),
        _peer("Queue", "Queue"),
        _peer("Pipe", "Pipe"),
        _peer("Array", "Array"),
        _peer("Manager list", "ManagerList", memory_factor=5.0),
        _peer("RawArray through NumPy", "RawArray", memory_factor=2.5),
        _peer("File", "File"),
        _peer("Socket", "Socket"),
    ),
    payloads={
        "small": tuple(map(payload, (1, 4))),
        "default": tuple(map(payload, (1, 5, 6, 7))),
        "full": tuple(map(payload, (1, 5, 6, 7, 8))),
    },
    check=check,
    spoil=spoil,
)


_LENGTH_BYTES = 8


class Mechanism(Protocol):
    """Created by the receiver, and passed to the sender's process at its start.

    If `concurrent`, the receiver receives while the sender sends. Otherwise it starts when the sender has finished.
    """

    concurrent: bool

    def send(self, data: list[int]) -> None:
        """Called by the sender."""

    def receive(self) -> Any:
        """Called by the receiver."""


class Queue:
    """multiprocessing.Queue, which pickles in its own thread."""

    concurrent = True

    def __init__(self, n: int) -> None:  # noqa: ARG002 - it holds any number
        self._queue: Any = CONTEXT.Queue()
        self.send, self.receive = self._queue.put, self._queue.get

    def __getstate__(self) -> Any:
        return self._queue

    def __setstate__(self, queue: Any) -> None:
        self._queue, self.send, self.receive = queue, queue.put, queue.get


class Pipe:
    """multiprocessing.Pipe, which pickles."""

    concurrent = True

    def __init__(self, n: int) -> None:  # noqa: ARG002 - it holds any number
        self._ends = CONTEXT.Pipe(duplex=False)

    def send(self, data: list[int]) -> None:
        self._ends[1].send(data)

    def receive(self) -> Any:
        return self._ends[0].recv()


class Array:
    """multiprocessing.Array of 32-bit integers, converted back to a list."""

    concurrent = False

    def __init__(self, n: int) -> None:
        self._array: Any = CONTEXT.Array("i", n)

    def send(self, data: list[int]) -> None:
        self._array[:] = data

    def receive(self) -> list[int]:
        received: list[int] = self._array[:]
        return received


class ManagerList:
    """A list in the process of a manager; both sides have a proxy."""

    concurrent = False

    def __init__(self, n: int) -> None:  # noqa: ARG002 - it grows
        self._manager: Any = CONTEXT.Manager()
        self._list: Any = self._manager.list()

    def __getstate__(self) -> Any:
        return {"_list": self._list}

    def send(self, data: list[int]) -> None:
        self._list[:] = data

    def receive(self) -> list[int]:
        received: list[int] = self._list[:]
        return received

    def close(self) -> None:
        self._manager.shutdown()


class RawArray:
    """multiprocessing.RawArray through NumPy on both sides; the result is an array, not a list."""

    concurrent = False

    def __init__(self, n: int) -> None:
        self._raw: Any = CONTEXT.RawArray("i", n)

    def send(self, data: list[int]) -> None:
        np.copyto(np.frombuffer(self._raw, np.int32), np.array(data, np.int32))

    def receive(self) -> Integers:
        return np.frombuffer(self._raw, np.int32).copy()


class File:
    """A pickle in a file in the temporary folder."""

    concurrent = False

    def __init__(self, n: int) -> None:  # noqa: ARG002 - it grows
        self._path = Path(tempfile.mkdtemp()) / "list.pickle"

    def send(self, data: list[int]) -> None:
        with self._path.open("wb") as file:
            pickle.dump(data, file, pickle.HIGHEST_PROTOCOL)

    def receive(self) -> Any:
        with self._path.open("rb") as file:
            return pickle.load(file)


class Socket:
    """A pickle over a pair of sockets; it follows its length."""

    concurrent = True

    def __init__(self, n: int) -> None:  # noqa: ARG002 - it holds any number
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._sending = socket.create_connection(listening.getsockname())
            self._receiving, _ = listening.accept()

    def __getstate__(self) -> Any:
        from multiprocessing.reduction import DupFd

        return DupFd(self._sending.fileno())

    def __setstate__(self, end: Any) -> None:
        self._sending = socket.socket(fileno=end.detach())

    def send(self, data: list[int]) -> None:
        message = pickle.dumps(data, pickle.HIGHEST_PROTOCOL)
        self._sending.sendall(len(message).to_bytes(_LENGTH_BYTES, "little"))
        self._sending.sendall(message)

    def receive(self) -> Any:
        return pickle.loads(self._exactly(int.from_bytes(self._exactly(_LENGTH_BYTES), "little")))

    def _exactly(self, length: int) -> bytearray:
        received = bytearray(length)
        remaining = memoryview(received)
        while remaining:
            remaining = remaining[self._receiving.recv_into(remaining) :]
        return received


# ---------------------------------------------------------------------------------------------- the two sides

_MECHANISMS: dict[str, Callable[[int], Mechanism]] = {
    mechanism.__name__: mechanism for mechanism in (Queue, Pipe, Array, ManagerList, RawArray, File, Socket)
}


def _send(connection: Connection, mechanism: Mechanism, n: int) -> None:
    data = numbers(n)
    connection.send(None)
    while True:
        data[0] = connection.recv()
        begin = perf_counter_ns()
        mechanism.send(data)
        connection.send((begin, perf_counter_ns()))


class MechanismPeer:
    """A mechanism and its sender, both created for each payload."""

    def __init__(self, mechanism: str) -> None:
        self._make = _MECHANISMS[mechanism]
        self._mechanism: Mechanism | None = None
        self._sender: Child

    def prepare(self, payload: Payload) -> None:
        self.close()
        self._mechanism = self._make(payload.values["n"])
        self._sender = Child(_send, self._mechanism, payload.values["n"])

    def transfer(self, number: int) -> Received:
        """Request the list and receive it. As for every contestant, the total runs from the request to the data."""
        assert self._mechanism is not None
        requested = perf_counter_ns()
        self._sender.connection.send(number)
        sent = None if self._mechanism.concurrent else self._sender.answer()
        begin = perf_counter_ns()
        data = self._mechanism.receive()
        end = perf_counter_ns()
        send_begin, send_end = sent or self._sender.answer()
        parts = {"send": send_end - send_begin, "receive": end - max(begin, send_begin), TOTAL: end - requested}
        return Received(data, parts)

    def close(self) -> None:
        if self._mechanism is None:
            return
        self._sender.close()
        getattr(self._mechanism, "close", lambda: None)()
        self._mechanism = None


# ---------------------------------------------------------------------------------------------- stagepipe


class Lists(Answering):
    """The list of a payload.

    `form` is `list`, `array` (an array created from the list for each request) or `ready` (an array created once).
    """

    def __init__(self, requests_from: str, n: int, form: str) -> None:
        super().__init__(requests_from)
        self._data, self._form = numbers(n), form
        self._array = np.array(self._data if form == "ready" else [], np.int32)

    def answer(self, number: int) -> Any:
        if self._form == "ready":
            self._array[0] = number
            return self._array
        self._data[0] = number
        return self._data if self._form == "list" else np.array(self._data, np.int32)


class ListPeer(RequestPeer):
    """Two processes. `form` is the form of `Lists`."""

    def __init__(self, form: str) -> None:
        super().__init__("benchmarks.published.e2.Lists", form=form)
        self.report_figures["parts_ns"] = {}

    def _record(self, payload: str, hops: list[HopParts]) -> None:
        (hop,) = hops
        parts = {"send": hop.encode_ns + hop.send_ns, "receive": hop.receive_ns + hop.decode_ns}
        self.report_figures["parts_ns"][payload] = parts
