"""The functions of E5, after those of PEP 371's run_benchmarks.py. Each gives a number, by which it is checked."""

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
    """Nothing."""
    return 0


def fibonacci() -> int:
    """Arithmetic with long integers."""
    a, b = 0, 1
    for _ in range(_FIBONACCI_STEPS):
        a, b = b, a + b
    return b % 1_000_003


def primes() -> int:
    """The sum of the primes below 100,000, by trial division."""
    return sum(number for number in range(2, _PRIMES_BELOW) if _is_prime(number))


def _is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    if not number % 2:
        return False
    return all(number % divisor for divisor in range(3, int(number**0.5) + 1, 2))


def file_io() -> int:
    """2 MB written in pieces, and read again."""
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(_FILE_CHUNKS):
            file.write(_CHUNK)
        file.flush()
        return zlib.crc32(Path(file.name).read_bytes())


def fetch(url: str) -> int:
    """A page from the local server, ten times."""
    found = 0
    for _ in range(_FETCHES):
        with urllib.request.urlopen(url) as page:  # noqa: S310 - our own, on the loopback
            found = zlib.crc32(page.read(), found)
    return found


class Call:
    """Calls a function by its name."""

    def __init__(self, url: str) -> None:
        """`url` is the page that `fetch` fetches."""
        self._url = url

    def __call__(self, name: str) -> int:
        """Call it."""
        return fetch(self._url) if name == "fetch" else FUNCTIONS[name]()


class Names:
    """A source: in each epoch the name that stands in `file` by then, `count` times."""

    def __init__(self, file: str, count: int) -> None:
        """See the class."""
        self._file, self._count = Path(file), count

    def __iter__(self) -> Iterator[str]:
        """The names of an epoch."""
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
    """What the function gives."""
    if name == "fetch":
        found = 0
        for _ in range(_FETCHES):
            found = zlib.crc32(PAGE, found)
        return found
    return FUNCTIONS[name]()
