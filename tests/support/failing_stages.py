"""Stages that raise for some items, always or only the first time. Imported by worker processes."""

import os
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import stagepipe


def _draw(item: Any, salt: int) -> float:
    """A random number that depends only on the item's content and `salt`."""
    content = item.tolist() if isinstance(item, np.ndarray) else item
    return random.Random(f"{salt} {content}").random()


def fails_sometimes(item: Any, salt: int = 0, share: float = 0.2) -> Any:
    """Fails for the same items in every run."""
    if _draw(item, salt) < share:
        raise ValueError(f"not this one: {item}")
    return item


def batch_fails_sometimes(items: list[Any], salt: int = 0, share: float = 0.2) -> list[Any]:
    return [fails_sometimes(item, salt, share) for item in items]


def parts_fail_sometimes(item: Any, salt: int = 0, share: float = 0.2) -> Iterator[Any]:
    for part in range(4):
        yield fails_sometimes((item, part), salt, share)


def _is_first_time(folder: str, item: Any) -> bool:
    """Whether no process has called this for the item before."""
    try:
        os.close(os.open(Path(folder) / f"{item}".replace("/", "_"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def fails_once(item: Any, folder: str, share: float = 1.0) -> Any:
    """Fails at the first try and passes at the second."""
    if _draw(item, 7) < share and _is_first_time(folder, item):
        raise OSError(f"a hiccup at {item}")
    return item


def parts_fail_once(item: Any, folder: str, share: float = 0.3) -> Iterator[Any]:
    for part in range(4):
        yield fails_once((item, part), folder, share)


def fails_thrice(item: Any, folder: str) -> Any:
    for attempt in range(3):
        if _is_first_time(folder, f"{item} attempt {attempt}"):
            raise OSError(f"attempt {attempt} of {item}")
    return item


def changes_its_input_and_fails_once(item: dict[str, Any], folder: str) -> Any:
    """Changes its input before it raises, so a retry with the changed input would show."""
    item["id"] += 1
    item["x"] = item["x"] + 1
    if isinstance(item.get("own"), np.ndarray):
        item["own"] += 1
    return fails_once(item["id"], folder) and item


def with_own(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "own": np.zeros(70_000, np.float32)}


def draws_and_fails_once(item: Any, folder: str) -> Any:
    numbers = stagepipe.context().rng.integers(1000), random.random(), np.random.random()  # noqa: NPY002 - the global one is seeded too
    fails_once(item, folder)
    return (item, *map(float, numbers))


def raises_a_kind(item: int, kind: str, item_at: int = 5) -> Any:
    """Raises errors that are hard to report."""
    if item != item_at:
        return item
    if kind == "exit":
        sys.exit("enough")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "recursion":
        return raises_a_kind(item, kind, item_at) + 1
    if kind == "surrogate":
        raise ValueError("a name such as \udcff")
    raise {"speechless": SpeechlessError, "unpicklable": UnpicklableError}[kind]


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__("with a lock in it", threading.Lock())


class SomeMissing:
    """A source with some items that cannot be read."""

    def __init__(self, count: int = 20) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        if index % 6 == 5:
            raise FileNotFoundError(f"item {index} is gone")
        return index


def stream_of(count: int) -> Iterator[int]:
    yield from range(count)
