"""Stages that take more memory than there is. Imported by worker processes."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import stagepipe

KEPT: list[Any] = []


def eats_all_memory(item: int) -> int:
    """At item 5 it takes memory until somebody ends it; slowly, so that the supervisor sees it grow."""
    while item == 5:
        KEPT.append(np.ones(4 << 20))
        time.sleep(0.15)
    return item


def keeps_every_input(item: dict[str, Any]) -> int:
    KEPT.append(item)
    return item["id"]


def a_thousand_parts(item: int) -> Iterator[dict[str, Any]]:
    """Of 100 kB each, one after the other."""
    for part in range(1000):
        yield {"id": 1000 * item + part, "image": np.full(100_000, part % 251, np.uint8)}


def a_thousand_loans(item: int) -> Iterator[Any]:
    """The same, in shared memory, and all of them before the first is given."""
    parts: list[Any] = []
    while len(parts) < 1000 + item:
        parts.append(stagepipe.empty((100_000,), np.uint8))
    yield from parts
