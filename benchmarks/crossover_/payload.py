"""What travels: a float32 array of shape (d, d). The check that it arrived right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
TRANSFERS = 100
"""Arrays in a repetition, as in the write-up. Their numbers are exact in float32."""


def make_array(d: int) -> Array:
    """Shape (d, d): the same random numbers between 1 and 2 on both sides."""
    return np.random.default_rng(17).random((d, d), np.float32) + np.float32(1)


def number(array: Array, at: int) -> None:
    """Write the transfer's number into the first element, so that a mix-up shows."""
    array[0, 0] = at


def check(received: Any, at: int) -> None:
    """AssertionError unless the array has transfer `at`'s number: a look at its first bytes, timed with the rest."""
    assert received[0, 0] == at, f"transfer {received[0, 0]:g} came where {at} was due"


def check_all(received: Any, expected: Array, at: int) -> None:
    """AssertionError unless it is transfer `at`, whole. Not timed."""
    assert received.dtype == np.float32, f"transfer {at} came as {received.dtype}"
    assert received.shape == expected.shape, f"transfer {at} came with shape {received.shape}, not {expected.shape}"
    check(received, at)
    wrong = int(np.count_nonzero(received.ravel()[1:] != expected.ravel()[1:]))
    assert not wrong, f"transfer {at} came with {wrong} of {expected.size} elements wrong"


def spoiled(arrays: Callable[[], Any]) -> Callable[[], Any]:
    """A repetition whose arrays have one element wrong, the last: what the check is for, in the check's own test."""

    def repetition() -> Any:
        for received in arrays():
            array = np.array(received)
            array[-1, -1] += 1
            yield array

    return repetition
