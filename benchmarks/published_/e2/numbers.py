"""The integers: list(range(n)) whose first is the transfer's number. Checked, spoiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from published_.model import Payload

Integers = npt.NDArray[np.int32]
_INTEGER_BYTES = 36
"""Of a list: a pointer and an object."""
_CHUNK = 1_000_000


def payload(power: int) -> Payload:
    """10 to this power integers."""
    return Payload(f"10^{power}", 10**power * _INTEGER_BYTES, {"n": 10**power})


def numbers(n: int) -> list[int]:
    """The list, before it has a number."""
    return list(range(n))


def check(data: Any, sent: Payload, number: int) -> None:
    """Every integer of a list, or of an array of 32 bits each."""
    n = sent.values["n"]
    assert isinstance(data, list | np.ndarray), f"a {type(data).__name__} came"
    assert len(data) == n, f"{len(data):,} of {n:,} integers came"
    wrong = sum(_wrong(data[at : at + _CHUNK], at, number) for at in range(0, n, _CHUNK))
    assert not wrong, f"transfer {number} came with {wrong:,} of {n:,} integers wrong"


def _wrong(chunk: Any, at: int, number: int) -> int:
    expected = list(range(at, at + len(chunk)))
    if not at:
        expected[0] = number
    if isinstance(chunk, np.ndarray):
        assert chunk.dtype == np.int32, f"integers of {chunk.dtype} came"
        return int(np.count_nonzero(chunk != np.array(expected)))
    return 0 if chunk == expected else sum(a is not b and a != b for a, b in zip(chunk, expected, strict=True))


def spoil(data: Any) -> Any:
    """One of the integers is another."""
    data = data.copy()
    data[len(data) // 2] += 1
    return data
