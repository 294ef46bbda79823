"""Stages whose calls are counted in the file that COUNT_FILE names, one byte a call."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from stagepipe import SKIP

BIG = 40_000
"""Elements of an array that is mapped when it is read."""


def count() -> None:
    with Path(os.environ["COUNT_FILE"]).open("ab") as file:
        file.write(b"x")


def make(item: Any) -> Any:
    """Return arrays, small and mapped, and numbers drawn for the item; drop the third item."""
    count()
    if item == 2:
        return SKIP
    return {
        "big": np.full(BIG, random.random()),
        "small": np.random.rand(2, 3).T,  # noqa: NPY002 - as in users' code
        "text": (str(item), None, 2**70, b"x", "é", os.fsdecode(b"\xff.jpg")),
    }


def make_plain(item: Any) -> Any:
    count()
    return {"item": item}


def draw(item: Any) -> Any:
    return {**item, "drawn": random.random()}


def split(number: int) -> Iterator[Any]:
    count()
    for part in range(number):
        yield SKIP if part == 1 else {"part": np.array([number, part, random.random()])}


def read(item: Any) -> Any:
    count()
    return {"path": item["path"], "text": Path(item["path"]).read_text()}


def fail_at_one(item: Any) -> Any:
    count()
    if item == 1:
        raise ValueError("item 1 is broken")
    return item


def make_object(item: Any) -> Any:
    return {"deep": [{"thing": SimpleNamespace(item=item)}]}


class Times:
    """Multiplies; an argument that a config may change."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, item: Any) -> Any:
        count()
        return item * self.factor


def is_even(item: Any) -> bool:
    return item % 2 == 0
