"""`Cell`: one case of one kind, read or written by stagepipe and by another library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stagepipe.core import StagepipeError

REFUSALS = (ValueError, TypeError, OSError, StagepipeError)
"""What a refusal may be. Any other error, such as an AttributeError, is a fault, whatever it says."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A case, and what must come of it.

    `ours` and `theirs` get an empty folder each and return the value. `outcome`:
    - `equal`: both values are the same: types of containers, dtypes, shapes, and values within `tolerance`.
    - `different`: they are not, and `note` says how. The difference is documented. `ours` is what `expected` returns.
    - `error`: `ours` raises an error that says what is wrong (`REFUSALS`), and its message has `note`. `theirs` is not
      called.
    """

    group: str
    case: str
    library: str
    ours: Callable[[Path], Any]
    theirs: Callable[[Path], Any] | None = None
    expected: Callable[[Path], Any] | None = None
    outcome: Literal["equal", "different", "error"] = "equal"
    note: str = ""
    tolerance: float = 0.0

    @property
    def name(self) -> str:
        """The id of its test."""
        return f"{self.group}: {self.case} ({self.library})"


def find_difference(ours: Any, theirs: Any, tolerance: float = 0.0) -> str:  # noqa: PLR0911 - one for each type
    """Say how two values differ; "" if they are equal. NaN equals NaN. `tolerance` is absolute.

    >>> find_difference({"x": [1, 2]}, {"x": [1, 3]})
    "['x'][1]: 2 instead of 3"
    """
    if isinstance(ours, np.ma.MaskedArray) != isinstance(theirs, np.ma.MaskedArray):
        return f": {type(ours).__name__} instead of {type(theirs).__name__}"
    if isinstance(ours, np.ndarray | np.generic) or isinstance(theirs, np.ndarray | np.generic):
        return _compare_arrays(ours, theirs, tolerance)
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        if list(ours) != list(theirs):
            return f": the keys {list(ours)} instead of {list(theirs)}"
        return _find_first({f"[{key!r}]": (ours[key], theirs[key]) for key in ours}, tolerance)
    is_sequence = isinstance(ours, Sequence) and not isinstance(ours, str | bytes)
    if is_sequence and isinstance(theirs, Sequence) and not isinstance(theirs, str | bytes):
        if len(ours) != len(theirs):
            return f": {len(ours)} values instead of {len(theirs)}"
        return _find_first({f"[{i}]": pair for i, pair in enumerate(zip(ours, theirs, strict=True))}, tolerance)
    if type(ours) is not type(theirs):
        return f": {type(ours).__name__} {ours!r} instead of {type(theirs).__name__} {theirs!r}"
    if isinstance(ours, float):
        is_same = (math.isnan(ours) and math.isnan(theirs)) or abs(ours - theirs) <= tolerance or ours == theirs
        return "" if is_same else f": {ours!r} instead of {theirs!r}"
    return "" if ours == theirs else f": {ours!r} instead of {theirs!r}"


def _find_first(pairs: Mapping[str, tuple[Any, Any]], tolerance: float) -> str:
    for place, (ours, theirs) in pairs.items():
        if difference := find_difference(ours, theirs, tolerance):
            return place + difference
    return ""


def _compare_arrays(ours: Any, theirs: Any, tolerance: float) -> str:
    kinds = [type(value).__name__ for value in (ours, theirs) if not isinstance(value, np.ndarray | np.generic)]
    if kinds:
        return f": {type(ours).__name__} instead of {type(theirs).__name__}"
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f": {ours.dtype} {ours.shape} instead of {theirs.dtype} {theirs.shape}"
    if isinstance(ours, np.ma.MaskedArray) and not np.array_equal(np.ma.getmaskarray(ours), np.ma.getmaskarray(theirs)):
        return ": another mask"
    if ours.dtype.kind in "fc" or (tolerance and ours.dtype.kind in "iu"):
        wide = np.clongdouble if ours.dtype.kind == "c" else np.longdouble
        is_equal = np.allclose(ours.astype(wide), theirs.astype(wide), rtol=0, atol=tolerance, equal_nan=True)
    else:
        is_equal = np.array_equal(ours, theirs, equal_nan=ours.dtype.kind in "mM")  # NaT equals NaT
    return "" if is_equal else f": other values, such as {ours.ravel()[:4]} instead of {theirs.ravel()[:4]}"


def check(cell: Cell, folder: Path) -> str:
    """Return what is wrong with a cell; "" if nothing is."""
    own, other, third = folder / "ours", folder / "theirs", folder / "expected"
    for place in (own, other, third):
        place.mkdir()
    if cell.outcome == "error":
        try:
            value = cell.ours(own)
        except Exception as error:  # noqa: BLE001 - any: its class and its message are compared
            text = f"{type(error).__name__}: {error}"
            if not isinstance(error, REFUSALS):
                return f"an error that says nothing to a user: {text}"
            return "" if cell.note and cell.note in text else f"the error does not say {cell.note!r}: {text}"
        return f"no error, but {value!r:.200}"
    assert cell.theirs is not None, cell.name
    value = cell.ours(own)
    difference = find_difference(value, cell.theirs(other), cell.tolerance)
    if cell.outcome == "equal":
        return difference
    assert cell.expected is not None, cell.name
    if not difference or not cell.note:
        return "no note" if difference else "no difference"
    return find_difference(value, cell.expected(third), cell.tolerance)
