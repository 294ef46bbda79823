"""An array in a shared memory segment of its own, as multiprocessing.shared_memory has it: made for each message."""

from __future__ import annotations

import weakref
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import cast

import numpy as np

from published_.e4.arrays import Array


def hand_over(array: Array) -> str:
    """Copy it into a new segment, and give that away; its name."""
    segment = SharedMemory(create=True, size=array.nbytes)
    np.copyto(np.ndarray(array.shape, array.dtype, segment.buf), array)
    name = segment.name
    resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]  # noqa: SLF001
    segment.close()
    return name


def take(name: bytes) -> Array:
    """The array that lies in a segment, without a copy. The segment goes with it."""
    segment = SharedMemory(name.decode())
    segment.unlink()
    array: Array = np.frombuffer(cast("memoryview[int]", segment.buf))
    # What is mapped is let go when the array is: until then closing it is refused.
    weakref.finalize(array, _close, segment)
    return array


def _close(segment: SharedMemory) -> None:
    segment._buf = None  # type: ignore[attr-defined]  # noqa: SLF001 - else its own __del__ complains of the array
    segment._mmap = None  # type: ignore[attr-defined]  # noqa: SLF001
    segment.close()
