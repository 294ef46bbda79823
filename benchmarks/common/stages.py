"""Sources and stages that configs name by dotted path. They run in workers, which have NumPy anyway.

They have a module of their own, because stagepipe refuses dotted paths into the running script.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import stagepipe

if TYPE_CHECKING:
    from numpy.typing import NDArray


def pass_on(item: Any) -> Any:
    """Return the item unchanged."""
    return item


def tell_pid(item: int) -> tuple[int, int]:
    """Return the item and this process."""
    return item, os.getpid()


class Arrays:
    """Items {id, array}: the same array every time, or each built in the outgoing shared memory."""

    def __init__(self, count: int, nbytes: int = 0, *, built: bool = False) -> None:
        self._count, self._nbytes, self._built = count, nbytes, built
        self._array = None if built or not nbytes else np.ones(nbytes, np.uint8)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self._count):
            yield {"id": number, "array": _build(self._nbytes) if self._built else self._array}


def _build(nbytes: int) -> NDArray[np.uint8]:
    """Make an array in the outgoing shared memory. Who keeps a reference to it makes the transport copy it."""
    array: NDArray[np.uint8] = stagepipe.empty(nbytes, np.uint8)
    array[:1] = 1
    return array


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
