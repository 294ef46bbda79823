"""Downloads end as their docstring says, against a server on loopback that misbehaves."""

import socket
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stagepipe.core import TargetError
from stagepipe.stages import http

BODY = bytes(range(256)) * 1000


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.counts[self.path] += 1
        getattr(self, f"answer_{self.path[1:]}")(self.server.counts[self.path])

    def send(self, status, body=b"", headers=(), missing_bytes=0):
        self.send_response(status)
        for name, value in (("Content-Length", str(len(body) + missing_bytes)), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = bool(missing_bytes)

    def answer_whole(self, _):
        self.send(200, BODY)

    def answer_empty(self, _):
        self.send(200)

    def answer_missing(self, _):
        self.send(404)

    def answer_broken(self, _):
        self.send(500)

    def answer_again(self, count):
        self.send(503, headers=[("Retry-After", "0")]) if count < 3 else self.send(200, BODY)

    def answer_moved(self, _):
        self.send(302, headers=[("Location", "/whole")])

    def answer_loop(self, _):
        self.send(302, headers=[("Location", "/loop")])

    def answer_cut(self, _):
        self.send(200, BODY, missing_bytes=5)

    def answer_cut_once(self, count):
        self.send(200, BODY, missing_bytes=5 * (count == 1))

    def answer_silent_once(self, count):
        self.answer_silent(count) if count == 1 else self.send(200, BODY)

    def answer_busy_once(self, count):
        self.send(429, headers=[("Retry-After", "1")]) if count == 1 else self.send(200, BODY)

    def answer_silent(self, _):
        self.server.ended.wait(20)

    def answer_drips(self, _):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        while not self.server.ended.wait(0.05):
            self.wfile.write(b".")
        self.close_connection = True

    def answer_agent(self, _):
        self.send(200, self.headers["User-Agent"].encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.counts = Counter()
        server.ended = threading.Event()
        server.handle_error = lambda *_: None
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.ended.set()
        server.shutdown()
        thread.join()


def download(server, path, **options):
    return http.Download(**options)(f"http://127.0.0.1:{server.server_port}/{path}")


@pytest.mark.parametrize("path, requests", [("whole", 1), ("moved", 1), ("again", 3), ("cut_once", 2)])
def test_temporary_failures_are_retried(server, path, requests):
    assert download(server, path) == BODY
    assert server.counts[f"/{path}"] == requests


@pytest.mark.parametrize("path", ["silent_once", "busy_once"])
def test_a_repetition_has_the_whole_timeout(server, path):
    """What the attempt before it has waited for, and the pause between the two, does not count."""
    assert download(server, path, retries=1, timeout=0.5) == BODY
    assert server.counts[f"/{path}"] == 2


def test_an_empty_body_is_no_error(server):
    assert download(server, "empty") == b""


@pytest.mark.parametrize(
    "path, options, requests, error, message",
    [
        ("missing", {}, 1, OSError, "/missing: HTTP 404 Not Found"),
        ("broken", {"retries": 1}, 2, OSError, "/broken: HTTP 500 Internal Server Error"),
        ("broken", {"retries": 0}, 1, OSError, "/broken: HTTP 500"),
        ("loop", {"redirects": 3}, 4, OSError, "/loop: too many redirects"),
        ("cut", {"retries": 1}, 2, ConnectionError, "/cut: .*5 more expected"),
        ("silent", {"retries": 1, "timeout": 0.2}, 2, TimeoutError, "/silent: no whole answer within 0.2 s"),
        ("drips", {"retries": 1, "timeout": 0.2}, 2, TimeoutError, "/drips: no whole answer within 0.2 s"),
        ("whole", {"max_bytes": 1000}, 1, OSError, r"/whole: the body is longer than 1,000 bytes \(`max_bytes`\)"),
    ],
)
def test_the_error_says_what_happened(  # noqa: PLR0917 - the cases' columns
    server, path, options, requests, error, message
):
    begin_s = time.monotonic()
    with pytest.raises(error, match=rf"^http\.Download: http://127.*{message}") as raised:
        download(server, path, **options)
    assert raised.type is error
    assert server.counts[f"/{path}"] == requests
    assert time.monotonic() - begin_s < 10


def test_errors_name_a_closed_port_and_a_value_that_is_no_url():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionError, match="Connection refused"):
            http.Download(retries=0)(f"http://127.0.0.1:{unused.getsockname()[1]}/")
    for value, error in (("http://[::1", ValueError), ("ftp://a/b", ValueError), (b"http://a/", TypeError)):
        with pytest.raises(error, match=r"http\.Download"):
            http.Download(retries=0)(value)


def test_one_object_serves_many_threads(server):
    stage = http.Download(headers={"User-Agent": "me/1"})
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(stage(f"http://127.0.0.1:{server.server_port}/agent")))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"me/1"] * 16


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="timeout is 0"):
        http.Download(timeout=0)
    with pytest.raises(ValueError, match="max_bytes is 0"):
        http.Download(max_bytes=0)


def test_the_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(TargetError, match="requires the package urllib3"):
        http.Download()
