"""Stages whose items are in progress side by side."""

import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import stagepipe


class Together:
    """Returns once `count` items are in progress at a time: with fewer threads it fails after a while.

    The first ones return at once: a run begins with a few items, until it knows how large they are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._barrier = threading.Barrier(count)

    def __call__(self, item: int) -> tuple[int, str]:
        if item >= self._count:
            self._barrier.wait(timeout=20)
        return item, threading.current_thread().name


def mixed(item: int) -> Any:
    """Items that take different times, fail, are dropped, and are large or small."""
    time.sleep(0.001 * (item * 7 % 5))
    if item % 11 == 3:
        return stagepipe.SKIP
    if item % 13 == 4:
        raise ValueError(f"item {item} is bad")
    return {"id": item, "key": stagepipe.context().item, "image": np.full(item * 5000 % 90_000, item % 250, np.uint8)}


def some_parts(item: int) -> Iterator[Any]:
    for part in range(item % 4):
        time.sleep(0.001)
        yield {"id": item, "part": part, "image": np.full(70_000, part, np.uint8)}


def draws(item: int) -> tuple[int, int]:
    """Draws of the item's own generator."""
    time.sleep(0.001 * (item % 3))
    return item, int(stagepipe.context().rng.integers(1 << 30))


class FailsTwice:
    """Raises at the first two calls with each third item."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[int, int] = {}

    def __call__(self, item: int) -> int:
        with self._lock:
            self._calls[item] = calls = self._calls.get(item, 0) + 1
        if item % 3 == 0 and calls <= 2:
            raise ValueError("not yet")
        return item


def lent(item: int) -> dict[str, Any]:
    """An array in the shared memory of the worker."""
    array = stagepipe.empty(300_000, "uint8")
    array[:] = item % 250
    return {"id": item, "image": array}


def dies_at(item: int, bad: int, how: str) -> int:
    """Ends the process at one item, while others are in progress."""
    time.sleep(0.002)
    if item == bad:
        time.sleep(0.02)
        if how == "segfault":
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def hangs_at(item: int, bad: int) -> int:
    time.sleep(0.01)
    if item == bad:
        time.sleep(1000)
    return item


def holds_the_lock_at(item: int, bad: int) -> int:
    """Naps, beside one item that runs C code for ever which keeps the interpreter's lock."""
    if item == bad:
        re.match(r"(a+)+$", "a" * 64 + "b")
    time.sleep(0.05)
    return item


def waits_from(item: int, first: int, seconds: float, path: str) -> int:
    """Waits at all items from `first` on, and adds a byte to a file for each."""
    if item >= first:
        with Path(path).open("ab") as file:
            file.write(b".")
        time.sleep(seconds)
    return item


def forks(item: int) -> int:
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return item


class Indexed:
    """A dataset that waits."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[int, str]:
        time.sleep(0.005)
        return index, threading.current_thread().name
