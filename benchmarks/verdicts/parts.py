"""The parts of the planted pipelines: a source, stages and sinks with one fault each. They run in workers."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stagepipe.sinks import JsonlSink

_HASHED = bytes(1 << 16)
_MATRIX_SIZE = 384


def spin(rounds: int) -> None:
    """Compute: the same work in each call, about 0.1 ms per round on a core of 2020."""
    for _ in range(rounds):
        hashlib.sha1(_HASHED, usedforsecurity=False).digest()


class Numbers:
    """The numbers from 0 on, with a sleep before each; each by itself, or with an array of `nbytes` bytes."""

    def __init__(self, count: int, sleep_ms: float = 0, nbytes: int = 0) -> None:
        self._count, self._sleep_s, self._nbytes = count, sleep_ms / 1000, nbytes

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        for number in range(self._count):
            if self._sleep_s:
                time.sleep(self._sleep_s)
            yield {"id": number, "data": np.ones(self._nbytes, np.uint8)} if self._nbytes else number


class Work:
    """Pass an item on, after sleeping and computing.

    Args:
        sleep_ms: sleep per item.
        rounds: rounds of `spin` per item.
        pauses: `[start, stop, step, ms]` each: the additional sleep of the items of `range(start, stop, step)`.
        build_ms: time to build the stage, as for loading a model.
        nbytes: return an array of this size with the number.
    """

    def __init__(
        self,
        sleep_ms: float = 0,
        rounds: int = 0,
        *,
        pauses: Sequence[tuple[int, int, int, float]] = (),
        build_ms: float = 0,
        nbytes: int = 0,
    ) -> None:
        self._sleep_ms, self._rounds, self._nbytes = sleep_ms, rounds, nbytes
        self._pauses = [(range(start, stop, step), pause_ms) for start, stop, step, pause_ms in pauses]
        time.sleep(build_ms / 1000)

    def __call__(self, item: Any) -> Any:
        number = item["id"] if isinstance(item, dict) else item
        sleep_ms = self._sleep_ms + sum(pause_ms for numbers, pause_ms in self._pauses if number in numbers)
        if sleep_ms:
            time.sleep(sleep_ms / 1000)
        spin(self._rounds)
        return {"id": number, "data": np.ones(self._nbytes, np.uint8)} if self._nbytes else item


class Fetch:
    """Ask a server at `port` for the item, and wait for its answer, as for an object store."""

    def __init__(self, port: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port))

    def __call__(self, item: Any) -> Any:
        self._connection.sendall(b"?")
        self._connection.recv(1)
        return item


class Straggler:
    """Sleep; the worker that is built first, in the folder `path`, is `times` slower, as on a broken device."""

    def __init__(self, path: str, sleep_ms: float, times: float) -> None:
        try:
            (Path(path) / "first").mkdir(parents=True)
        except FileExistsError:
            times = 1
        self._sleep_s = sleep_ms * times / 1000

    def __call__(self, item: Any) -> Any:
        time.sleep(self._sleep_s)
        return item


class Flaky:
    """Sleep, and fail in all calls except each `good`-th one."""

    def __init__(self, sleep_ms: float, good: int) -> None:
        self._sleep_s, self._good, self._calls = sleep_ms / 1000, good, 0

    def __call__(self, item: Any) -> Any:
        time.sleep(self._sleep_s)
        self._calls += 1
        if self._calls % self._good:
            message = "the server is overloaded"
            raise ConnectionError(message)
        return item


class Mortal(Work):
    """Work, and die at each item of `deaths`, once each. `path` stores the deaths; `work` has `Work`'s arguments."""

    def __init__(self, path: str, deaths: Sequence[int], **work: Any) -> None:
        super().__init__(**work)
        self._folder, self._deaths = Path(path), frozenset(deaths)
        self._folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, item: Any) -> Any:
        """Work on the item, and die at the first attempt at one of `deaths`."""
        result = super().__call__(item)
        number = item["id"] if isinstance(item, dict) else item
        if number in self._deaths:
            try:
                (self._folder / str(number)).mkdir()
            except FileExistsError:
                return result
            os.abort()
        return result


def multiply(item: Any) -> Any:
    """Multiply matrices, in as many threads as NumPy's library has."""
    matrix = np.full((_MATRIX_SIZE, _MATRIX_SIZE), 0.5)
    for _ in range(2):
        matrix = matrix @ matrix
    return item


def explode(item: int) -> dict[str, Any]:
    """Return a dict with hundreds of small fields, which is expensive to collate."""
    return {f"field{number}": float(item) for number in range(400)}


def pack(item: int) -> dict[str, Any]:
    """Return the same values as one array, which is cheap to collate."""
    return {"fields": np.full(400, item, np.float32)}


class SlowSink:
    """Sleep for each item, like a database that commits each. It has no workers."""

    def __init__(self, sleep_ms: float) -> None:
        self._sleep_s = sleep_ms / 1000

    def __call__(self, item: Any) -> None:  # noqa: ARG002 - a sink gets the item
        time.sleep(self._sleep_s)


class SlowShards(JsonlSink):
    """Write lines of JSON to a simulated disk that takes `sleep_ms` per item. It has workers."""

    def __init__(self, path: str, sleep_ms: float = 0, part_items: int | None = None) -> None:
        super().__init__(path, part_items=part_items, overwrite=True)
        self._sleep_s = sleep_ms / 1000

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write the lines, late."""
        time.sleep(self._sleep_s * len(items))
        super().write_part(items, path)
