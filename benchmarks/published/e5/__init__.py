"""E5: functions called in parallel in threads and in processes, and the cost of objects through a queue.

Here: the functions, after those of PEP 371's run_benchmarks.py, their check, and the contestants. Each function returns
a number, which is checked.

calls        how they are called: in threads, processes, a pool, stages
queues       objects through a queue
"""

from __future__ import annotations

import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published.e5.queues import COUNT, object_named
from benchmarks.published.e5.queues import NAMES as OBJECTS
from benchmarks.published.model import Contestant, Experiment, Payload

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


_WORKERS = (1, 2, 4, 8)
_CALLS, _QUEUES = "benchmarks.published.e5.calls", "benchmarks.published.e5.queues"


def _call_payloads(workers: Sequence[int], functions: Sequence[str] = NAMES) -> tuple[Payload, ...]:
    return tuple(
        Payload(f"{function} x {count}", 0, {"function": function, "workers": count})
        for count in workers  # the outer loop, so that the workers that are started once serve all functions
        for function in functions
    )


def _check_calls(data: Any, payload: Payload, _: int) -> None:
    expected_value = [expected(payload.values["function"])] * payload.values["workers"]
    assert data == expected_value, f"received {data}, expected {expected_value}"


def _spoil_calls(data: list[int]) -> list[int]:
    return [*data[:-1], data[-1] + 1]


def _object_payloads() -> tuple[Payload, ...]:
    return tuple(Payload(name, 0) for name in OBJECTS)


def _check_objects(data: list[Any], payload: Payload, _: int) -> None:
    expected_value = object_named(payload.name)
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
        Contestant("stagepipe", f"{_CALLS}:Stagepipe"),
        Contestant("plain", f"{_CALLS}:Plain"),
        Contestant("threads", f"{_CALLS}:Threads"),
        Contestant("processes", f"{_CALLS}:Processes"),
        Contestant("pool, kept", f"{_CALLS}:Pool", is_addition=True),
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
        Contestant("stagepipe", f"{_QUEUES}:Stagepipe"),
        Contestant("queue.Queue of threads", f"{_QUEUES}:ThreadQueue"),
        Contestant("multiprocessing.Queue", f"{_QUEUES}:ProcessQueue", {"kind": "Queue"}),
        Contestant("multiprocessing.SimpleQueue", f"{_QUEUES}:ProcessQueue", {"kind": "SimpleQueue"}, is_addition=True),
    ),
    payloads=dict.fromkeys(("small", "default", "full"), _object_payloads()),
    check=_check_objects,
    spoil=_spoil_objects,
    repetitions=20,
)
