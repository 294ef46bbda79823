"""A source, stages and a sink for the tests of sinks: features that are drawn from the seeded generators."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stagepipe.sinks import JsonlSink


class Numbers:
    """The numbers below `count`."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def extract(number: int) -> dict[str, Any]:
    """Return a record with a random feature, the same in every run."""
    return {"id": number, "name": f"item {number}", "x": np.random.rand(5).astype(np.float32)}  # noqa: NPY002 - seeded


def extract_image(number: int) -> dict[str, Any]:
    """Return what `extract` does, and the bytes of its feature as an image of 5 x 4."""
    record = extract(number)
    return {**record, "image": record["x"].view(np.uint8).reshape(5, 4)}


HOLD = "STAGEPIPE_TEST_HOLD"
"""The environment variable with the first number that the slow stages hold: a run that is to be killed cannot end."""


def wait(number: int, time_s: float) -> None:
    """Sleep `time_s`, and for a number that is held a minute."""
    time.sleep(60 if number >= int(os.environ.get(HOLD, sys.maxsize)) else time_s)


def extract_image_slowly(number: int) -> dict[str, Any]:
    """Return what `extract_image` does, after 2 ms."""
    wait(number, 0.002)
    return extract_image(number)


def extract_slowly(number: int) -> dict[str, Any]:
    """Return what `extract` does, after 2 ms."""
    wait(number, 0.002)
    return extract(number)


def extract_unevenly(number: int) -> dict[str, Any]:
    """Return what `extract` does, after 1 to 8 ms: with several workers, in another order."""
    wait(number, 0.001 * (1 + number * 5 % 8))
    return extract(number)


def extract_array(number: int) -> np.ndarray:
    """Return an array that is large enough for shared memory."""
    return np.full((100, 100), number, np.float32)


def is_odd(number: int) -> bool:
    """Return whether a number is odd."""
    return number % 2 == 1


class SlowJsonlSink(JsonlSink):
    """Takes 4 ms for a row."""

    def write_part(self, items: Sequence[Any], path: Path) -> None:
        """Write a line for each item, after some time."""
        time.sleep(0.004 * len(items))
        super().write_part(items, path)


class ListSink:
    """Keeps the items, and no journal. Writes nothing."""

    def __init__(self, path: str):
        self.path = path
        self.items: list[Any] = []

    def __call__(self, item: Any) -> None:
        self.items.append(item)


class Notes:
    """A sink of a user's: appends a line to a file for each item."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, item: Any) -> None:
        with open(self._path, "a") as file:  # noqa: PTH123 - as users write it
            print(item, file=file)


def refuse_some(number):
    if number % 7 == 3:
        raise ValueError(f"{number} is refused")
    return number
