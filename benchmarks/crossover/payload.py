"""The payload: a float32 array of shape (d, d), and the check of what arrived. Used on both sides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
TRANSFERS = 100
"""Arrays in a repetition, as in the write-up. Their numbers are exact in float32."""


def make_array(d: int) -> Array:
    """Create an array of shape (d, d): the same random numbers between 1 and 2 on both sides."""
    return np.random.default_rng(17).random((d, d), np.float32) + np.float32(1)


def stamp(array: Array, transfer: int) -> None:
    """Write the number of the transfer into the first element, so that a mix-up shows."""
    array[0, 0] = transfer


def check(received: Any, transfer: int) -> None:
    """Raise AssertionError unless the array is number `transfer`. It reads the first element, inside the timing."""
    assert received[0, 0] == transfer, f"received transfer {received[0, 0]:g}, expected transfer {transfer}"


def check_all(received: Any, expected: Array, transfer: int) -> None:
    """Raise AssertionError unless every element of the transfer is right. Not timed."""
    assert received.dtype == np.float32, f"transfer {transfer} has dtype {received.dtype}, expected float32"
    assert received.shape == expected.shape, (
        f"transfer {transfer} has shape {received.shape}, expected {expected.shape}"
    )
    check(received, transfer)
    wrong = int(np.count_nonzero(received.ravel()[1:] != expected.ravel()[1:]))
    assert not wrong, f"transfer {transfer} has {wrong} of {expected.size} elements wrong"


def spoiled(arrays: Callable[[], Any]) -> Callable[[], Any]:
    """Corrupt the last element of each array of a repetition, for the test of the check."""

    def repetition() -> Any:
        for received in arrays():
            array = np.array(received)
            array[-1, -1] += 1
            yield array

    return repetition


class Arrays:
    """The arrays of a repetition; each iteration is one repetition. It yields one array with a new number each time."""

    def __init__(self, d: int) -> None:
        self._array = make_array(d)

    def __iter__(self) -> Iterator[Array]:
        for transfer in range(TRANSFERS):
            stamp(self._array, transfer)
            yield self._array
