"""How E5's functions are called: one after another, in threads, in processes, in stages.

With w workers the function is called w times. Threads and processes are started for it and joined, as published.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from abc import abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from time import perf_counter_ns
from typing import Any

import stagepipe
from published_.child import Child, obey_aside
from published_.e5.functions import PAGE, Call
from published_.model import Payload, Received

_FUNCTIONS = "published_.e5.functions"


class _Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # with the usual 5, a ninth caller is dropped, and comes again a second later


def _serve(connection: Connection) -> None:
    with _Server(("127.0.0.1", 0), _Page) as server:
        connection.send(f"http://127.0.0.1:{server.server_port}/")
        obey_aside(connection, {})
        server.serve_forever()


class _Calls:
    """The local server, and a way to call."""

    def __init__(self) -> None:
        """Start the server."""
        self._server = Child(_serve)
        self._call = Call(self._server.hello)
        self._workers, self._function = 0, ""

    def prepare(self, payload: Payload) -> None:
        """Take the function; start anew what is kept, where it is for another number of workers."""
        before, self._workers = self._workers, payload.values["workers"]
        self._function = payload.values["function"]
        self._tell()
        if self._workers != before:
            self._end()
            self._start(payload.name)

    def _tell(self) -> None:
        """Whoever looks for it elsewhere is told the function here."""

    def _start(self, payload: str) -> None:
        """What is kept from one time to the next, if anything is."""

    def _end(self) -> None:
        """The end of that."""

    def transfer(self, number: int) -> Received:  # noqa: ARG002 - each is the same
        """As many calls as workers."""
        return Received(list(self.calls()))

    @abstractmethod
    def calls(self) -> list[int]:
        """The results."""

    def close(self) -> None:
        """End what is kept, and the server."""
        self._end()
        self._server.close()


class Plain(_Calls):
    """One call after another."""

    def calls(self) -> list[int]:
        """The results."""
        return [self._call(self._function) for _ in range(self._workers)]


class Threads(_Calls):
    """A thread for each call."""

    def calls(self) -> list[int]:
        """The results."""
        results: list[int] = []
        threads = [Thread(target=lambda: results.append(self._call(self._function))) for _ in range(self._workers)]
        return _run(threads, results)


class Processes(_Calls):
    """A process for each call, forked as it was published."""

    def calls(self) -> list[int]:
        """The results, which each leaves in shared memory."""
        fork = multiprocessing.get_context("fork")
        results = fork.RawArray("q", [-1] * self._workers)

        def call(at: int) -> None:
            results[at] = self._call(self._function)

        return _run([fork.Process(target=call, args=(at,)) for at in range(self._workers)], results)


def _run(started: Any, results: Any) -> list[int]:
    for each in started:
        each.start()
    for each in started:
        each.join()
    return list(results)


class Pool(_Calls):
    """multiprocessing.Pool, which is kept from one time to the next."""

    def __init__(self) -> None:
        """Start the server; the pool comes with the payload."""
        super().__init__()
        self._pool: Any = None

    def _start(self, payload: str) -> None:  # noqa: ARG002 - whatever the function is
        self._pool = multiprocessing.get_context("spawn").Pool(self._workers)

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool.join()

    def calls(self) -> list[int]:
        """The results."""
        results: list[int] = self._pool.map(self._call, [self._function] * self._workers, 1)
        return results


class Stagepipe(_Calls):
    """The function as a stage with so many workers, which are kept; each time is an epoch.

    Their start, with the first epoch, is told.
    """

    def __init__(self) -> None:
        """Start the server; the pipeline comes with the payload."""
        super().__init__()
        self._pipeline: stagepipe.Pipeline | None = None
        self._wanted = Path(tempfile.mkdtemp()) / "function"
        self.told: dict[str, dict[str, int]] = {"start_ns": {}}

    def _tell(self) -> None:
        """Its source reads it at the beginning of each epoch."""
        self._wanted.write_text(self._function)

    def _start(self, payload: str) -> None:
        names = {"file": str(self._wanted), "count": self._workers}
        stage = {"name": "call", "uses": f"{_FUNCTIONS}.Call", "with": {"url": self._server.hello}}
        begin = perf_counter_ns()
        self._pipeline = stagepipe.Pipeline(
            {
                "name": "calls",
                "source": {"uses": f"{_FUNCTIONS}.Names", "with": names},
                "stages": [{**stage, "workers": self._workers}],
            }
        )
        self.calls()
        self.told["start_ns"][payload] = perf_counter_ns() - begin

    def calls(self) -> list[int]:
        """The results."""
        assert self._pipeline is not None
        return list(self._pipeline)

    def _end(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
