"""E5: functions called in parallel in threads and in processes, and the cost of objects through a queue.

The functions follow PEP 371's run_benchmarks.py; each returns a number, which is checked. They are called one after
another, in threads, in processes, in stages: with w workers the function is called w times. Threads and processes are
started for each call and joined, as published. The second experiment sends a thousand objects through a queue, one by
one.
"""

from __future__ import annotations

import multiprocessing
import queue
import tempfile
import urllib.request
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import repeat
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from time import perf_counter_ns
from typing import Any

import numpy as np

import stagepipe
from benchmarks.published import CONTEXT, Child, Contestant, Experiment, Payload, Received, serve_commands_in_thread

_FIBONACCI_STEPS = 20_000
_PRIMES_BELOW = 100_000
_FILE_CHUNKS, _CHUNK = 2_000, bytes(range(256)) * 4
_FETCHES = 10
PAGE = b"<html>" + b"stagepipe " * 400 + b"</html>"


def empty() -> int:
    """Do nothing."""
    return 0


def fibonacci() -> int:
    """Add long integers."""
    a, b = 0, 1
    for _ in range(_FIBONACCI_STEPS):
        a, b = b, a + b
    return b % 1_000_003


def primes() -> int:
    """Return the sum of the primes below 100,000, by trial division."""
    return sum(number for number in range(2, _PRIMES_BELOW) if _is_prime(number))


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    if not number % 2:
        return False
    return all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2))


def file_io() -> int:
    """Write 2 MB in pieces and read them."""
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(_FILE_CHUNKS):
            file.write(_CHUNK)
        file.flush()
        return zlib.crc32(Path(file.name).read_bytes())


def fetch(url: str) -> int:
    """Fetch a page from the local server ten times."""
    checksum = 0
    for _ in range(_FETCHES):
        with urllib.request.urlopen(url) as page:  # noqa: S310 - our own server on the loopback
            checksum = zlib.crc32(page.read(), checksum)
    return checksum


class Call:
    """Calls a function by its name. It is also the stage of stagepipe, in its workers."""

    def __init__(self, url: str) -> None:
        """`url` is the page for `fetch`."""
        self._url = url

    def __call__(self, name: str) -> int:
        return fetch(self._url) if name == "fetch" else FUNCTIONS[name]()


class Names:
    """A source: in each epoch it yields the name in `file` at that time, `count` times."""

    def __init__(self, file: str, count: int) -> None:
        self._file, self._count = Path(file), count

    def __iter__(self) -> Iterator[str]:
        return repeat(self._file.read_text(), self._count)


FUNCTIONS: dict[str, Callable[[], int]] = {
    "empty": empty,
    "fibonacci": fibonacci,
    "primes": primes,
    "file_io": file_io,
}
NAMES = (*FUNCTIONS, "fetch")


@cache
def expected(name: str) -> int:
    """Return the expected result of a function."""
    if name == "fetch":
        checksum = 0
        for _ in range(_FETCHES):
            checksum = zlib.crc32(PAGE, checksum)
        return checksum
    return FUNCTIONS[name]()


_MODULE = "benchmarks.published.e5"


class _Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # with the default of 5, a ninth caller is dropped and retries a second later


def _serve(connection: Connection) -> None:
    with _Server(("127.0.0.1", 0), _Page) as server:
        connection.send(f"http://127.0.0.1:{server.server_port}/")
        serve_commands_in_thread(connection, {})
        server.serve_forever()


class _Calls:
    """The base: the local server, and a way to call the function."""

    def __init__(self) -> None:
        self._server = Child(_serve)
        self._call = Call(self._server.hello)
        self._workers, self._function = 0, ""

    def prepare(self, payload: Payload) -> None:
        before, self._workers = self._workers, payload.values["workers"]
        self._function = payload.values["function"]
        self._publish_function()
        if self._workers != before:
            self._end_workers()
            self._start_workers(payload.name)

    def _publish_function(self) -> None:
        """Publish the function to workers that read it elsewhere."""

    def _start_workers(self, payload: str) -> None:
        """Start the persistent workers, if there are any."""

    def _end_workers(self) -> None:
        """End the persistent workers."""

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - every transfer is the same
        return Received(list(self.calls()))

    @abstractmethod
    def calls(self) -> list[int]:
        """Return the results of the calls."""

    def close(self) -> None:
        self._end_workers()
        self._server.close()


class Plain(_Calls):
    """One call after another."""

    def calls(self) -> list[int]:
        return [self._call(self._function) for _ in range(self._workers)]


class Threads(_Calls):
    """A thread for each call."""

    def calls(self) -> list[int]:
        results: list[int] = []
        threads = [Thread(target=lambda: results.append(self._call(self._function))) for _ in range(self._workers)]
        return _run_all(threads, results)


class Processes(_Calls):
    """A process for each call, forked as published."""

    def calls(self) -> list[int]:
        """Return the results, which each process leaves in shared memory."""
        fork = multiprocessing.get_context("fork")
        results = fork.RawArray("q", [-1] * self._workers)

        def call(index: int) -> None:
            results[index] = self._call(self._function)

        return _run_all([fork.Process(target=call, args=(index,)) for index in range(self._workers)], results)


def _run_all(runners: Any, results: Any) -> list[int]:
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join()
    return list(results)


class Pool(_Calls):
    """multiprocessing.Pool, which persists between transfers."""

    def __init__(self) -> None:
        """Start the server; `prepare` starts the pool."""
        super().__init__()
        self._pool: Any = None

    def _start_workers(self, payload: str) -> None:  # noqa: ARG002 - it serves any function
        self._pool = multiprocessing.get_context("spawn").Pool(self._workers)

    def _end_workers(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool.join()

    def calls(self) -> list[int]:
        results: list[int] = self._pool.map(self._call, [self._function] * self._workers, 1)
        return results


class StagepipeCalls(_Calls):
    """The function as a stage with `workers`, which persist; each transfer is an epoch.

    `report_figures` has the time of their start, including the first epoch.
    """

    def __init__(self) -> None:
        """Start the server; `prepare` starts the pipeline."""
        super().__init__()
        self._pipeline: stagepipe.Pipeline | None = None
        self._function_file = Path(tempfile.mkdtemp()) / "function"
        self.report_figures: dict[str, dict[str, int]] = {"start_ns": {}}

    def _publish_function(self) -> None:
        """Write the name of the function; the source reads it at the start of each epoch."""
        self._function_file.write_text(self._function)

    def _start_workers(self, payload: str) -> None:
        names = {"file": str(self._function_file), "count": self._workers}
        stage = {"name": "call", "uses": f"{_MODULE}.Call", "with": {"url": self._server.hello}}
        begin = perf_counter_ns()
        self._pipeline = stagepipe.Pipeline(
            {
                "name": "calls",
                "source": {"uses": f"{_MODULE}.Names", "with": names},
                "stages": [{**stage, "workers": self._workers}],
            }
        )
        self.calls()
        self.report_figures["start_ns"][payload] = perf_counter_ns() - begin

    def calls(self) -> list[int]:
        assert self._pipeline is not None
        return list(self._pipeline)

    def _end_workers(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()


COUNT = 1000
_OBJECTS: dict[str, Any] = {
    "None": None,
    "integer": 1_000_000,
    "100 characters": "stagepipe!" * 10,
    "list of 1,000": list(range(1000)),
    "array of 1 kB": np.arange(128.0),
    "array of 64 kB": np.arange(8192.0),
}


class Objects:
    """A source: the same object a thousand times."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __iter__(self) -> Iterator[Any]:
        for _ in range(COUNT):
            yield _OBJECTS[self._name]


class ThreadQueue:
    """queue.Queue between two threads, without a copy."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()
        self._name = ""

    def prepare(self, payload: Payload) -> None:
        self._name = payload.name

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - every transfer is the same
        producer = Thread(target=self._put)
        producer.start()
        received = [self._queue.get() for _ in range(COUNT)]
        producer.join()
        return Received(received)

    def _put(self) -> None:
        for item in Objects(self._name):
            self._queue.put(item)

    def close(self) -> None:
        """Do nothing: no thread is left."""


def _put(connection: Connection, objects_queue: Any) -> None:
    connection.send(None)
    while True:
        for item in Objects(connection.recv()):
            objects_queue.put(item)


class ProcessQueue:
    """A queue of multiprocessing between two processes. `kind` is Queue or SimpleQueue."""

    def __init__(self, kind: str) -> None:
        self._queue = getattr(CONTEXT, kind)()
        self._producer = Child(_put, self._queue)
        self._name = ""

    def prepare(self, payload: Payload) -> None:
        self._name = payload.name

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - every transfer is the same
        self._producer.connection.send(self._name)
        return Received([self._queue.get() for _ in range(COUNT)])

    def close(self) -> None:
        self._producer.close()
        self._queue.close()


class StagepipeQueue:
    """A source in its own process; each transfer is an epoch."""

    def __init__(self) -> None:
        self._pipeline: stagepipe.Pipeline | None = None

    def prepare(self, payload: Payload) -> None:
        self.close()
        source = {"uses": f"{_MODULE}.Objects", "with": {"name": payload.name}}
        self._pipeline = stagepipe.Pipeline({"name": "objects", "source": {**source, "allow_none": True}})
        self._pipeline.start()

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - every transfer is the same
        assert self._pipeline is not None
        return Received(list(self._pipeline))

    def close(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None


_WORKERS = (1, 2, 4, 8)


def _call_payloads(workers: Sequence[int], functions: Sequence[str] = NAMES) -> tuple[Payload, ...]:
    return tuple(
        Payload(f"{function} x {count}", 0, {"function": function, "workers": count})
        for count in workers  # the outer loop, so that workers that are started once serve all functions
        for function in functions
    )


def _check_calls(data: Any, payload: Payload, _: int) -> None:
    expected_value = [expected(payload.values["function"])] * payload.values["workers"]
    assert data == expected_value, f"received {data}, expected {expected_value}"


def _spoil_calls(data: list[int]) -> list[int]:
    return [*data[:-1], data[-1] + 1]


def _object_payloads() -> tuple[Payload, ...]:
    return tuple(Payload(name, 0) for name in _OBJECTS)


def _check_objects(data: list[Any], payload: Payload, _: int) -> None:
    expected_value = _OBJECTS[payload.name]
    assert len(data) == COUNT, f"received {len(data)} of {COUNT} objects"
    wrong = sum(not _same(received, expected_value) for received in data)
    assert not wrong, f"{wrong} of {COUNT} objects are wrong"


def _same(one: Any, other: Any) -> bool:
    if isinstance(other, np.ndarray):
        return isinstance(one, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


def _spoil_objects(data: list[Any]) -> list[Any]:
    return [*data[:-1], "spoiled"]


CALLS = Experiment(
    name="E5",
    contestants=(
        Contestant("stagepipe", f"{_MODULE}:StagepipeCalls"),
        Contestant("plain", f"{_MODULE}:Plain"),
        Contestant("threads", f"{_MODULE}:Threads"),
        Contestant("processes", f"{_MODULE}:Processes"),
        Contestant("pool, kept", f"{_MODULE}:Pool", is_addition=True),
    ),
    payloads={
        "small": _call_payloads((2,), ("empty", "primes", "fetch")),
        "default": _call_payloads(_WORKERS),
        "full": _call_payloads(_WORKERS),
    },
    check=_check_calls,
    spoil=_spoil_calls,
    pinned=False,
    repetitions=30,
)

QUEUES = Experiment(
    name="E5 queue",
    contestants=(
        Contestant("stagepipe", f"{_MODULE}:StagepipeQueue"),
        Contestant("queue.Queue of threads", f"{_MODULE}:ThreadQueue"),
        Contestant("multiprocessing.Queue", f"{_MODULE}:ProcessQueue", {"kind": "Queue"}),
        Contestant("multiprocessing.SimpleQueue", f"{_MODULE}:ProcessQueue", {"kind": "SimpleQueue"}, is_addition=True),
    ),
    payloads=dict.fromkeys(("small", "default", "full"), _object_payloads()),
    check=_check_objects,
    spoil=_spoil_objects,
    repetitions=20,
)
