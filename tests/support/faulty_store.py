"""A file store on loopback that makes faults: of its own files over HTTP, or between a client and a real store."""

from __future__ import annotations

import contextlib
import http.client
import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

FAULTS = ("slow down", "error", "drop", "cut", "whole", "stall")
"""503 and 500 answers; a connection that ends in mid-body; a body that ends early and says so nowhere; the whole file
instead of a range; an answer that stops in mid-body."""
STALL_S = 30.0
"""How long a stalled answer is held, at most."""

Answer = tuple[int, dict[str, str], bytes]


class FaultyStore(AbstractContextManager["FaultyStore"]):
    """Serves files by GET and HEAD, with ranges, and makes faults.

    Args:
        files: the content of each path, such as `"/a.jsonl"`. None with `upstream`.
        upstream: `host:port` of a server to which all requests are forwarded instead.
        share: of the GET requests, how many have a fault: 0 to 1.
        seed: of the faults. The n-th request of a run has the same fault each time.
        faults: the kinds to choose from.
        choose: decides instead of `share`: takes the request's number and its path, returns a fault or None.
    """

    def __init__(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        upstream: str | None = None,
        share: float = 0.0,
        seed: int = 0,
        faults: tuple[str, ...] = FAULTS,
        choose: Callable[[int, str], str | None] | None = None,
    ) -> None:
        self.files = dict(files or {})
        self.upstream = upstream
        self.requests: list[str] = []
        """The paths of all GETs."""
        self.sent_bytes = 0
        self.faults: Counter[str] = Counter()
        self.stopping = threading.Event()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._share = share
        self._kinds = faults
        self._choose = choose
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.store = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def draw(self, path: str) -> str | None:
        """Return the fault of the next GET."""
        with self._lock:
            self.requests.append(path)
            if self._choose is not None:
                fault = self._choose(len(self.requests), path)
            else:
                fault = self._random.choice(self._kinds) if self._random.random() < self._share else None
            if fault is not None:
                self.faults[fault] += 1
            return fault

    def count_sent(self, count: int) -> None:
        """Count the bytes of a body."""
        with self._lock:
            self.sent_bytes += count

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return the right answer."""
        if self.upstream is not None:
            return _forward(self.upstream, method, path, headers, body)
        content = self.files.get(unquote(urlsplit(path).path))
        if content is None:
            return 404, {}, b"no such file"
        shared = {"Accept-Ranges": "bytes", "ETag": f'"{hash(content)}"'}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range", ""))
        if wanted is None:
            return 200, shared, content
        start, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
        return 206, shared | {"Content-Range": f"bytes {start}-{last}/{len(content)}"}, content[start : last + 1]


def _forward(upstream: str, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
    connection = http.client.HTTPConnection(upstream, timeout=STALL_S)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        content = response.read()
        dropped = {"transfer-encoding", "connection", "server", "date"} | ({"content-length"} if content else set())
        return response.status, {k: v for k, v in response.getheaders() if k.lower() not in dropped}, content
    finally:
        connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        store: FaultyStore = self.server.store  # type: ignore[attr-defined]
        fault = store.draw(self.path)
        headers = {name.title(): value for name, value in self.headers.items()}
        if fault == "whole":
            headers.pop("Range", None)
        status, answer_headers, body = store.answer("GET", self.path, headers, b"")
        if fault == "slow down":
            self._send(503, {"Content-Type": "application/xml"}, _describe("SlowDown"))
        elif fault == "error":
            self._send(500, {"Content-Type": "application/xml"}, _describe("InternalError"))
        elif fault == "cut":
            self._send(status, _without_checksums(answer_headers), body[: len(body) // 2])
        elif fault in ("drop", "stall"):
            self._send(status, answer_headers, body[: len(body) // 2], length=len(body))
            if fault == "stall":
                store.stopping.wait(STALL_S)
            self.close_connection = True
            with contextlib.suppress(OSError):  # the client was first
                self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._send(status, answer_headers, body)
        store.count_sent(len(body))

    def do_HEAD(self) -> None:
        self._relay("HEAD")

    def do_PUT(self) -> None:
        self._relay("PUT")

    def do_POST(self) -> None:
        self._relay("POST")

    def do_DELETE(self) -> None:
        self._relay("DELETE")

    def _relay(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        store: FaultyStore = self.server.store  # type: ignore[attr-defined]
        self._send(*store.answer(method, self.path, dict(self.headers), body))

    def _send(self, status: int, headers: Mapping[str, str], body: bytes, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "content-length" not in {name.lower() for name in headers}:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(ConnectionError):  # the client has read enough
                self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _without_checksums(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if "checksum" not in name.lower()}


def _describe(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a fault of the test</Message></Error>".encode()
