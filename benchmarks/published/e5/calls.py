"""How E5's functions are called: one after another, in threads, in processes, in stages.

With w workers the function is called w times. Threads and processes are started for each call and joined, as published.
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
from benchmarks.published.child import Child, serve_commands_in_thread
from benchmarks.published.e5 import PAGE, Call
from benchmarks.published.model import Payload, Received

_FUNCTIONS = "benchmarks.published.e5"


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


class Stagepipe(_Calls):
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
        self.report_figures["start_ns"][payload] = perf_counter_ns() - begin

    def calls(self) -> list[int]:
        assert self._pipeline is not None
        return list(self._pipeline)

    def _end_workers(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
