"""Stages that raise: for some items always, or only the first time. Imported by worker processes."""

import os
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import stagepipe


def _drawn(item: Any, salt: int) -> float:
    """A number that depends on the item's content alone."""
    content = item.tolist() if isinstance(item, np.ndarray) else item
    return random.Random(f"{salt} {content}").random()


def fails_sometimes(item: Any, salt: int = 0, share: float = 0.2) -> Any:
    """The same items fail in every run."""
    if _drawn(item, salt) < share:
        raise ValueError(f"not this one: {item}")
    return item


def batch_fails_sometimes(items: list[Any], salt: int = 0, share: float = 0.2) -> list[Any]:
    return [fails_sometimes(item, salt, share) for item in items]


def parts_fail_sometimes(item: Any, salt: int = 0, share: float = 0.2) -> Iterator[Any]:
    for part in range(4):
        yield fails_sometimes((item, part), salt, share)


def _is_first_time(folder: str, item: Any) -> bool:
    """Whether no process has asked this of the item before."""
    try:
        os.close(os.open(Path(folder) / f"{item}".replace("/", "_"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def fails_once(item: Any, folder: str, share: float = 1.0) -> Any:
    """An error that passes at the second try."""
    if _drawn(item, 7) < share and _is_first_time(folder, item):
        raise OSError(f"a hiccup at {item}")
    return item


def parts_fail_once(item: Any, folder: str, share: float = 0.3) -> Iterator[Any]:
    for part in range(4):
        yield fails_once((item, part), folder, share)


def fails_thrice(item: Any, folder: str) -> Any:
    for time in range(3):
        if _is_first_time(folder, f"{item} time {time}"):
            raise OSError(f"try {time} of {item}")
    return item


def changes_its_input_and_fails_once(item: dict[str, Any], folder: str) -> Any:
    """Half of its work is done when it raises: doing it twice would show."""
    item["id"] += 1
    item["x"] = item["x"] + 1
    if isinstance(item.get("own"), np.ndarray):
        item["own"] += 1
    return fails_once(item["id"], folder) and item


def with_own(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "own": np.zeros(70_000, np.float32)}


def draws_and_fails_once(item: Any, folder: str) -> Any:
    drawn = stagepipe.context().rng.integers(1000), random.random(), np.random.random()  # noqa: NPY002 - the global one is seeded too
    fails_once(item, folder)
    return (item, *map(float, drawn))


def raises_a_kind(item: int, kind: str, item_at: int = 5) -> Any:
    """Errors that are hard to report."""
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
    """A source of which some items cannot be read."""

    def __init__(self, count: int = 20) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> int:
        if at % 6 == 5:
            raise FileNotFoundError(f"item {at} is gone")
        return at


def stream_of(count: int) -> Iterator[int]:
    yield from range(count)
