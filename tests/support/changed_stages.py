"""Stages for the tests of workers that come and go."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np


def make_megabyte(item: int) -> dict[str, Any]:
    """An item with its number in each of a million bytes."""
    return {"id": item, "x": np.full(1_000_000, item % 251, np.uint8)}


def tick(item: Any) -> Any:
    """The item, after 2 ms."""
    time.sleep(0.002)
    return item


class SlowToBuild:
    """The first worker is built at once; each other one when the file `gate` is there."""

    def __init__(self, mark: str, gate: str) -> None:
        try:
            Path(mark).touch(exist_ok=False)
        except FileExistsError:
            Path(f"{mark}.{os.getpid()}").touch()
            while not Path(gate).exists():
                time.sleep(0.01)

    def __call__(self, item: Any) -> Any:
        time.sleep(0.002)
        return item
