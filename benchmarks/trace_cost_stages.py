"""The stages of `benchmarks.trace_cost`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import stagepipe

_SHAPE = (448, 448, 3)


def plus(item: int) -> int:
    """Add one."""
    return item + 1


def make(_: int) -> NDArray[np.uint8]:
    """Make an array of 602 kB in shared memory."""
    image: NDArray[np.uint8] = stagepipe.empty(_SHAPE, np.uint8)
    image[:] = 7
    return image


def look(image: NDArray[np.uint8]) -> int:
    """Read one value."""
    return int(image[0, 0, 0])
