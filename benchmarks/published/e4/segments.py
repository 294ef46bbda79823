"""An array in its own segment of multiprocessing.shared_memory, which is created for each message."""

from __future__ import annotations

import weakref
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import cast

import numpy as np

from benchmarks.published.e4.arrays import Array


def hand_over(array: Array) -> str:
    """Copy the array into a new segment, give up the segment, and return its name."""
    segment = SharedMemory(create=True, size=array.nbytes)
    np.copyto(np.ndarray(array.shape, array.dtype, segment.buf), array)
    name = segment.name
    resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]  # noqa: SLF001
    segment.close()
    return name


def take(name: bytes) -> Array:
    """Return the array in a segment without a copy. The segment is released with the array."""
    segment = SharedMemory(name.decode())
    segment.unlink()
    array: Array = np.frombuffer(cast("memoryview[int]", segment.buf))
    # The mapping is released with the array; until then it cannot be closed.
    weakref.finalize(array, _close, segment)
    return array


def _close(segment: SharedMemory) -> None:
    segment._buf = None  # type: ignore[attr-defined]  # noqa: SLF001 - otherwise its own __del__ complains about the array
    segment._mmap = None  # type: ignore[attr-defined]  # noqa: SLF001
    segment.close()
