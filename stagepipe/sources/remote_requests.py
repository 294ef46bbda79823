"""Requests to file systems of fsspec. `read_remote` and `RemoteContent` return complete ranges or raise errors.

Invariants:

- A range has exactly the requested bytes. Servers and proxies truncate bodies silently, or send the whole file instead
  of a range, and fsspec passes both on: a truncated body would look like the end of a shard.
- A temporary fault is retried, with growing pauses, for a bounded time. A permanent fault is not retried.
- A request ends: one without an answer is given up after a time that grows with its size.
- Local copies of fsspec (`simplecache::`, `filecache::`) are made by one process at a time. A copy that a kill
  truncated is made again, because fsspec itself writes copies in place and trusts what it finds.
"""

from __future__ import annotations

import hashlib
import io
import logging
import random
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from stagepipe.core import KeptFiles

_Answer = TypeVar("_Answer")

READ_REPEAT_S: Final = 120.0
"""Within a minute or two, stores scale up to the load or come back from a restart."""
LISTING_REPEAT_S: Final = 10.0
"""Shorter, because the user waits for the listing, and a wrong address must fail soon."""
ANSWER_S: Final = 60.0
"""Timeout for the first byte, as in botocore."""
_MIN_BYTES_A_SECOND: Final = 1 << 18
_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 10.0
_LOGGED_PAUSE_S: Final = 1.0
"""Shorter pauses are not logged: stores ask one request in some thousands to slow down, and one retry is enough."""
_PASSING_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_REASON_CHARS: Final = 300
_LASTING: Final = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_LASTING_NAMES: Final = frozenset({"NoCredentialsError", "PartialCredentialsError", "OfflineModeIsEnabled"})
"""Classes of botocore and huggingface_hub, by name because these packages are not imported here."""
_COPIES: Final = KeptFiles("sources")
_random: Final = random.SystemRandom()
"""A separate generator, because the module's generator is seeded for the stages."""
_log = logging.getLogger("stagepipe")


class RemoteFile(Protocol):
    """The attributes of a `StoredFile` that a request needs."""

    @property
    def name(self) -> str:
        """The URL."""

    @property
    def path(self) -> str:
        """The path in the file system."""

    @property
    def size(self) -> int:
        """The size in bytes when the file was found."""

    @property
    def file_system(self) -> Any:
        """The file system of fsspec."""

    @property
    def key(self) -> tuple[str, int, str]:
        """The identity of the file and its content."""

    def make_change_error(self) -> ValueError:
        """Return the error of a file that has changed since it was found."""


def read_remote(file: RemoteFile, start: int, stop: int) -> bytes:
    """Return all bytes of a remote file from `start` to `stop`.

    Raises OSError with the URL if they cannot be read, and ValueError if the file has changed since it was found.
    """
    if start >= stop:
        return b""

    def request() -> bytes:
        try:
            data = _request_range(file, start, stop)
        except Exception as error:
            if not _may_pass(error):
                _require_size(file)
            raise
        if len(data) == stop - start:
            return data
        if len(data) == file.size:
            _warn_of_whole_files(file.name)
            return data[start:stop]
        _require_size(file)
        raise OSError(f"the server sent {len(data):,} of {stop - start:,} bytes")

    return repeat_request(request, f"{file.name}: bytes {start:,} to {stop:,} cannot be read", READ_REPEAT_S)


def get_information(file_system: Any, path: str) -> dict[str, Any]:
    """Return the store's information on a file. `filecache` would ask for its folder, which HTTP does not have."""
    store = file_system.fs if _keeps_copies(file_system) else file_system
    information: dict[str, Any] = store.info(path)
    return information


def is_file(file_system: Any, path: str) -> bool:
    """Return whether a path is a file. Errors of `info` are raised; fsspec's `isfile` returns False for them."""
    try:
        return bool(get_information(file_system, path)["type"] == "file")
    except FileNotFoundError as error:
        if _may_pass(error):
            raise
        return False


def repeat_request(request: Callable[[], _Answer], problem: str, repeat_s: float) -> _Answer:
    """Return the result of `request`; retry it while it fails, for `repeat_s` at most.

    Raises OSError with `problem` if it still fails, or fails permanently. A ValueError, ImportError or TypeError of
    `request` is passed on unchanged.
    """
    started = time.monotonic()
    for number in count(1):
        try:
            return request()
        except (ValueError, ImportError, TypeError):
            raise
        except Exception as error:
            reason = _describe(_find_fault(error))
            if not _may_pass(error):
                raise OSError(f"{problem}: {reason}") from error
            pause_s = min(_FIRST_PAUSE_S * 2 ** (number - 1), _LAST_PAUSE_S) * _random.uniform(0.5, 1.5)
            spent_s = time.monotonic() - started
            if spent_s + pause_s > repeat_s:
                times = "1 request failed" if number == 1 else f"{number} requests failed"
                hint = "check that the store answers, and start again"
                raise OSError(f"{problem}: {times} in {spent_s:.0f} s, the last with {reason}; {hint}") from error
            if pause_s >= _LOGGED_PAUSE_S:
                _log.warning("%s: request %d failed with %s; retry in %.1f s", problem, number, reason, pause_s)
            time.sleep(pause_s)
    raise AssertionError("unreachable")


def _describe(error: BaseException) -> str:
    """Return the class and the text of an error on one line. huggingface_hub writes paragraphs."""
    text = " ".join(str(error).split())
    shown = f"{text[:_MAX_REASON_CHARS]}..." if len(text) > _MAX_REASON_CHARS else text
    return shown if type(error) is OSError else f"{type(error).__name__}: {shown}".rstrip(": ")


def _may_pass(error: BaseException) -> bool:
    """Whether the fault may be temporary, so that a later request may succeed."""
    error = _find_fault(error)
    status = _find_status(error)
    if status is not None:
        return status in _PASSING_STATUSES
    return not isinstance(error, _LASTING) and type(error).__name__ not in _LASTING_NAMES


def _find_fault(error: BaseException) -> BaseException:
    """Return the cause of a FileNotFoundError: fsspec's HTTP raises one for any fault of a request for a size."""
    is_hidden = isinstance(error, FileNotFoundError) and error.__cause__ is not None
    return error.__cause__ or error if is_hidden else error


def _find_status(error: BaseException | None) -> int | None:
    """Return the HTTP status in an error of aiohttp, botocore, requests or httpx, or in its causes."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            response = response.get("ResponseMetadata", {})
            status = response.get("HTTPStatusCode")
        else:
            status = getattr(error, "status", None) or getattr(response, "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__
    return None


def _require_size(file: RemoteFile) -> None:
    """Raise ValueError if the size of a file has changed since it was found."""
    try:
        file.file_system.invalidate_cache(file.path)
        size = get_information(file.file_system, file.path)["size"]
    except Exception:  # noqa: BLE001 - the store is in trouble: the request is retried
        return
    if size != file.size:
        raise file.make_change_error()


def _request_range(file: RemoteFile, start: int, stop: int) -> bytes:
    file_system = file.file_system
    if _keeps_copies(file_system):
        return _read_copy(file, start, stop)
    options: dict[str, Any] = {}
    if file_system.async_impl and "cat_file" in vars(file_system):  # else it is the class's own `cat_file`
        options["timeout"] = ANSWER_S + (stop - start) / _MIN_BYTES_A_SECOND
    elif type(file_system).cat_file is sys.modules["fsspec"].AbstractFileSystem.cat_file:
        # It opens the file with a cache that would read 5 MiB ahead each time, and accept a whole file as the range.
        options["cache_type"] = "none"
    return bytes(file_system.cat_file(file.path, start=start, end=stop, **options))


def _keeps_copies(file_system: Any) -> bool:
    """Whether a file system reads from local copies of whole files."""
    module = sys.modules.get("fsspec.implementations.cached")
    return module is not None and issubclass(type(file_system), module.WholeFileCacheFileSystem)


def _read_copy(file: RemoteFile, start: int, stop: int) -> bytes:
    key = hashlib.sha256(repr(file.key).encode()).hexdigest()[:32]
    with _COPIES.hold(f"{key}.copy"):
        copy = _find_copy(file)
        if copy is not None and copy.stat().st_size != file.size:
            copy.unlink()
        return bytes(file.file_system.cat_file(file.path, start=start, end=stop))


def _find_copy(file: RemoteFile) -> Path | None:
    found = file.file_system._check_file(file.path)  # noqa: SLF001 - fsspec has no public name for it
    return Path(found[1] if isinstance(found, tuple) else found) if found else None


@lru_cache(maxsize=1)
def _warn_of_whole_files(name: str) -> None:
    hint = "each read fetches the file again; write `simplecache::` before the URL to keep a copy"
    _log.warning("%s: the server sent the whole file instead of a range: %s", name, hint)


class RemoteContent(io.RawIOBase):
    """A remote file, open for reading. Each read is one request: wrap it in an `io.BufferedReader`."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a position, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes, as far as the file has any."""
        data = read_remote(self._file, self._position, min(self._position + len(buffer), self._file.size))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
