"""Stages that use much memory. Imported by worker processes."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import stagepipe

KEPT: list[Any] = []


def eats_all_memory(item: int) -> int:
    """Allocates memory at item 5 until it is killed."""
    while item == 5:
        KEPT.append(np.ones(2 << 20))
        time.sleep(0.15)
    return item


def keeps_every_input(item: dict[str, Any]) -> int:
    KEPT.append(item)
    return item["id"]


def a_thousand_parts(item: int) -> Iterator[dict[str, Any]]:
    """1,000 parts of 100 kB each, one after the other."""
    for part in range(1000):
        yield {"id": 1000 * item + part, "image": np.full(100_000, part % 251, np.uint8)}


def a_thousand_loans(item: int) -> Iterator[Any]:
    """1,000 parts on loan from shared memory, all allocated before the first is yielded."""
    parts: list[Any] = []
    while len(parts) < 1000 + item:
        parts.append(stagepipe.empty((100_000,), np.uint8))
    yield from parts
