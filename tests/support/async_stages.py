"""`async def` stages: calls that wait, and what goes wrong with them."""

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

import stagepipe


async def same(item: int) -> int:
    await asyncio.sleep(0)
    return item


async def nap(item: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return item


async def mixed(item: int) -> Any:
    """Items that take different times, fail, are dropped, and are large or small."""
    await asyncio.sleep(0.001 * (item * 7 % 5))
    if item % 11 == 3:
        return stagepipe.SKIP
    if item % 13 == 4:
        raise ValueError(f"item {item} is bad")
    return {"id": item, "key": stagepipe.context().item, "image": np.full(item * 5000 % 90_000, item % 250, np.uint8)}


class Together:
    """Returns once `count` items are in progress. The first ones return at once, as the run begins with a few."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiting = 0
        self._all_here = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    async def __call__(self, item: int) -> tuple[int, bool]:
        if item >= self._count:
            self._waiting += 1
            if self._waiting == self._count:
                self._all_here.set()
            await asyncio.wait_for(self._all_here.wait(), 20)
        return item, asyncio.get_running_loop() is self.loop


async def draws(item: int) -> tuple[int, tuple[int, ...], int, int, int]:
    """Draws of the item's own generator, in the task, in one that it starts, and on a thread."""

    async def draw() -> int:
        await asyncio.sleep(0.001 * (item % 2))
        return int(stagepipe.context().rng.integers(1 << 30))

    await asyncio.sleep(0.001 * (item % 3))
    first = await draw()
    second = await asyncio.create_task(draw())
    third = await asyncio.to_thread(lambda: int(stagepipe.context().rng.integers(1 << 30)))
    return item, stagepipe.context().item, first, second, third


class FailsTwice:
    """Raises at the first two calls with each third item."""

    def __init__(self) -> None:
        self._calls: dict[int, int] = {}

    async def __call__(self, item: int) -> int:
        self._calls[item] = calls = self._calls.get(item, 0) + 1
        await asyncio.sleep(0.001)
        if item % 3 == 0 and calls <= 2:
            raise ValueError("not yet")
        return item


class SlowAtFirst:
    """Waits for long at the first `count` calls with an item, and notes each one in a file."""

    def __init__(self, bad: int, count: int, path: str) -> None:
        self._bad = bad
        self._count = count
        self._path = Path(path)

    async def __call__(self, item: int) -> int:
        if item == self._bad:
            calls = self._path.read_text() if self._path.exists() else ""
            self._path.write_text(f"{calls}{os.getpid()} ")
            if len(calls.split()) < self._count:
                await asyncio.sleep(1000)
        await asyncio.sleep(0.005)
        return item


async def blocks_at(item: int, bad: int, seconds: float = 1000) -> int:
    """Blocks the loop at one item, while others are in progress."""
    await asyncio.sleep(0.005)
    if item == bad:
        time.sleep(seconds)  # noqa: ASYNC251 - the point of it
    return item


async def blocks_in_a_task(item: int, bad: int) -> int:
    async def block() -> None:
        time.sleep(1000)  # noqa: ASYNC251 - the point of it

    await asyncio.sleep(0.005)
    if item == bad:
        await asyncio.gather(block(), asyncio.sleep(0))
    return item


async def blocks_in_a_callback(item: int, bad: int) -> int:
    if item == bad:
        asyncio.get_running_loop().call_soon(time.sleep, 1000)
    await asyncio.sleep(0.005)
    return item


async def holds_the_lock_at(item: int, bad: int) -> int:
    """Runs C code for ever that keeps the interpreter's lock."""
    await asyncio.sleep(0.005)
    if item == bad:
        re.match(r"(a+)+$", "a" * 64 + "b")
    return item


async def ignores_cancellation_at(item: int, bad: int) -> int:
    await asyncio.sleep(0.005)
    while item == bad:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1000)
    return item


async def dies_at(item: int, bad: int, how: str) -> int:
    """Ends the process at one item, while others are in progress."""
    await asyncio.sleep(0.002)
    if item == bad:
        await asyncio.sleep(0.02)
        if how == "segfault":
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return item


async def waits_from(item: int, first: int, path: str) -> int:
    """Waits for ever at all items from `first` on, and adds a byte to a file for each that is cancelled."""
    if item >= first:
        try:
            await asyncio.sleep(1000)
        finally:
            with Path(path).open("ab") as file:  # noqa: ASYNC230
                file.write(b".")
    return item


async def forks(item: int) -> int:
    await asyncio.sleep(0)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)  # noqa: ASYNC222
    return item


class Session:
    """A client that belongs to a loop: it cannot be made, used or closed outside of it."""

    def __init__(self, path: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._path = Path(path)
        self._uses = 0
        self._note("made")

    def _note(self, text: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{text} {threading.current_thread().name}\n")

    async def __call__(self, item: int) -> int:
        assert asyncio.get_running_loop() is self._loop
        await asyncio.sleep(0.001)
        self._uses += 1
        return item

    async def close(self) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self._loop
        self._note("closed")


class PlainClose(Session):
    """The same with a `close` that is no coroutine function."""

    def close(self) -> None:  # type: ignore[override]
        self._note("closed")


class FailingClose(Session):
    async def close(self) -> None:
        raise OSError("the connection is gone")


async def parts(item: int) -> AsyncIterator[int]:
    yield item
    await asyncio.sleep(0)


class Parts:
    async def __call__(self, item: int) -> AsyncIterator[int]:
        yield item


async def keeps(item: int) -> bool:
    return item % 2 == 0


def returns_a_coroutine(item: int) -> Any:
    return same(item)


hidden = [same][0]
"""An `async def` that the source does not show."""


async def numbers() -> AsyncIterator[int]:
    yield 1


async def save(item: int) -> None:
    await asyncio.sleep(0)


async def doubled(image: Any) -> Any:
    await asyncio.sleep(0)
    return image * 2


async def starts_tasks(item: int) -> int:
    """Leaves a task behind, which the end of the worker cancels."""
    asyncio.get_running_loop().create_task(asyncio.sleep(1000))
    await asyncio.sleep(0)
    return item
