"""`Download`: fetches the content of a URL with urllib3."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

from stagepipe.stages.optional_packages import check_positive, require, require_text

_RETRIED_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of temporary failures: a timeout, too many requests, errors of the server or of a proxy."""
_FIRST_ERROR_STATUS: Final = 400
_BACKOFF_FACTOR: Final = 0.25
_MAX_PAUSE_S: Final = 30.0
_READ_BYTES: Final = 1 << 16
_OPEN_CONNECTIONS: Final = 64
"""Maximum number of hosts with open connections, and of connections per host."""


class Download:
    """Fetch a URL over HTTP or HTTPS and return the body as bytes. In YAML it is `stagepipe.stages.http.Download`.

    The stage mostly waits, so give it `concurrency: 32`. It follows redirects and retries temporary failures: no
    connection, no answer in time, a body that ends early, and the statuses 408, 429, 500, 502, 503 and 504. Other
    statuses, such as 404, are errors at once. The second retry comes after 0.5 s, and each later pause is twice as
    long, up to 30 s; the server's `Retry-After` takes precedence.

    Args:
        timeout: seconds for a request, from connecting to the end of the body, however slowly the server sends. Each
            retry has the same time; pauses do not count.
        retries: maximum retries of a request, separately for connection, answer and body, and status.
        redirects: maximum number of redirects.
        max_bytes: a longer body is an error.
        headers: request headers, such as `{User-Agent: "my-project/1.0"}`.

    >>> Download(retries=0)("http://127.0.0.1:9/0.jpg")
    Traceback (most recent call last):
    ...
    ConnectionError: http.Download: http://127.0.0.1:9/0.jpg: ...Connection refused

    Raises TargetError if urllib3 is not installed; ValueError for an invalid URL; and, after the last retry,
    TimeoutError, ConnectionError for no connection and for a body that ended early, and OSError for a status
    (`HTTP 404 Not Found`), too many redirects and a body that is too long.
    """

    def __init__(
        self,
        *,
        timeout: float = 30.0,
        retries: int = 2,
        redirects: int = 5,
        max_bytes: int = 1_000_000_000,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if timeout <= 0:
            raise ValueError(f"http.Download: timeout is {timeout!r}; give seconds, more than 0")
        self.timeout: Final = timeout
        self.max_bytes: Final = check_positive(max_bytes, "max_bytes", "http.Download")
        self._urllib3: Any = require("urllib3", "http.Download", extra="http")
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it warns about each retry
        self._retry: Final = self._urllib3.Retry(
            total=None, connect=retries, read=retries, status=retries, other=retries,
            backoff_factor=_BACKOFF_FACTOR, backoff_max=_MAX_PAUSE_S, retry_after_max=_MAX_PAUSE_S,
        )  # fmt: skip
        self._once: Final = self._urllib3.Retry(total=None, connect=0, read=0, other=0, redirect=redirects)
        self._pool: Final = self._urllib3.PoolManager(
            num_pools=_OPEN_CONNECTIONS, maxsize=_OPEN_CONNECTIONS, headers=headers,
            timeout=self._urllib3.Timeout(total=timeout),
        )  # fmt: skip

    def __call__(self, url: Any) -> bytes:
        """Return the body of the answer."""
        exceptions = self._urllib3.exceptions
        try:
            return self._fetch(require_text(url, "http.Download"))
        except exceptions.MaxRetryError as error:
            raise self._make_error(url, error.reason) from error
        except exceptions.HTTPError as error:  # failures that are not retried
            raise self._make_error(url, error) from error

    def _make_error(self, url: str, cause: Exception) -> Exception:
        exceptions = self._urllib3.exceptions
        message = f"http.Download: {url}: {cause}"
        if isinstance(cause, exceptions.LocationValueError):
            return ValueError(message)
        if isinstance(cause, exceptions.ResponseError):
            return OSError(message)
        if isinstance(cause, exceptions.TimeoutError) and not isinstance(cause, exceptions.NewConnectionError):
            return TimeoutError(f"http.Download: {url}: no whole answer within {self.timeout:g} s")
        return ConnectionError(message)

    def _fetch(self, url: str) -> bytes:
        """Return the body. urllib3 follows redirects; this method retries, so that each attempt has its deadline."""
        exceptions = self._urllib3.exceptions
        retry = self._retry
        while True:
            deadline_s = monotonic() + self.timeout
            response = cause = None
            try:
                response = self._pool.request("GET", url, retries=self._once, preload_content=False)
                if response.status < _FIRST_ERROR_STATUS:
                    return self._read_body(response, url, deadline_s)
                if response.status not in _RETRIED_STATUSES or retry.status == 0:
                    raise OSError(f"http.Download: {url}: HTTP {response.status} {response.reason}")
            except exceptions.HTTPError as error:
                cause = error.reason if isinstance(error, exceptions.MaxRetryError) else error
                if isinstance(cause, (exceptions.LocationValueError, exceptions.ResponseError)):  # not to be repeated
                    raise
            finally:
                if response is not None:
                    response.close()  # a body that was read to its end has returned its connection
            retry = retry.increment("GET", url, response=response, error=cause)
            retry.sleep(response)

    def _read_body(self, response: Any, url: str, deadline_s: float) -> bytes:
        body = bytearray()
        while data := response.read1(_READ_BYTES):
            body += data
            if len(body) > self.max_bytes:
                raise OSError(f"http.Download: {url}: the body is longer than {self.max_bytes:,} bytes (`max_bytes`)")
            if monotonic() > deadline_s:
                raise self._urllib3.exceptions.ReadTimeoutError(self._pool, url, "the body is too slow")
        return bytes(body)
