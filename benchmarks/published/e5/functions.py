"""The functions of E5, after those of PEP 371's run_benchmarks.py. Each returns a number, which is checked."""

from __future__ import annotations

import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import repeat
from pathlib import Path

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
        """Call the function."""
        return fetch(self._url) if name == "fetch" else FUNCTIONS[name]()


class Names:
    """A source: in each epoch it yields the name in `file` at that time, `count` times."""

    def __init__(self, file: str, count: int) -> None:
        """Store the arguments."""
        self._file, self._count = Path(file), count

    def __iter__(self) -> Iterator[str]:
        """Return the names of an epoch."""
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
