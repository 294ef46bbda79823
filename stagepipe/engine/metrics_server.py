"""Serves the metrics of a run to Prometheus over HTTP while it goes. In the process that uses the pipeline."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from stagepipe.core import UsageError, fork_lock, register_owner

_POLL_INTERVAL_S: Final = 0.1
"""How long the end of a run waits for the server, at most."""
_REQUEST_TIMEOUT_S: Final = 10
_log = logging.getLogger("stagepipe")


class MetricsServer:
    """An HTTP server for one collector, on threads of its own; `close` ends it."""

    def __init__(self, host: str, port: int) -> None:
        """Listen, with no metrics yet. Port 0: a free one, which the log names. Raises UsageError if that fails."""
        self._registry = CollectorRegistry()
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            server_class = type("_Server", (_ThreadingServer,), {"address_family": family})
            with fork_lock:  # a child that inherits the socket must know it
                self._server: WSGIServer = make_server(
                    host, port, make_wsgi_app(self._registry), server_class, _Handler
                )
                register_owner(self)
        except OSError as error:
            fix = "name another port, or 0 for a free one"
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                fix = "name an address of this machine, such as 127.0.0.1"
            raise UsageError(
                f"report.prometheus: cannot listen on {host}:{port}: {error.strerror or error}; {fix}"
            ) from None
        self.port: int = self._server.server_port
        shown_host = f"[{host}]" if ":" in host else host
        log = _log.info if port else _log.warning  # a port that nobody has named must be seen
        log("metrics for Prometheus: http://%s:%d/metrics", shown_host, self.port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_INTERVAL_S,), name="stagepipe-metrics", daemon=True
        )
        self._thread.start()

    def serve(self, collector: Collector) -> None:
        """Answer with what `collector` collects, from now on."""
        self._registry.register(collector)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def abandon_in_child(self) -> None:
        """Close the socket: a child that kept it open would keep the port."""
        self._server.socket.close()


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True  # a client that stalls must not keep the run


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the standard library
        """Log nothing: a scrape every few seconds is no news."""
