"""A dataset of tiny samples for the random pipelines: `Batch` after it gets them in chunks."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import stagepipe
from tests.chaos.stages import drawn, dropped, failing, flaky


class Samples:
    """`kind` is the structure of the samples, `flaw` what is wrong with some of them: a stage's name, or empty."""

    def __init__(self, count: int, kind: str, flaw: str, salt: int) -> None:
        self.count = count
        self._make = {"nested": _nested, "row": _row, "drawn": _drawn, "reused": self._reused}[kind]
        self._flaw = {"": None, "failing": failing, "flaky": flaky, "dropped": dropped}[flaw]
        self._salt = salt
        self._row = np.zeros(7, np.int64)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if self._flaw is not None and self._flaw(index, self._salt) is stagepipe.SKIP:
            return stagepipe.SKIP
        return self._make(index)

    def _reused(self, index: int) -> np.ndarray:
        self._row[:] = index
        return self._row


def _nested(index: int) -> dict[str, Any]:
    text = f"class {index % 7}" if index % 3 else None
    return {"id": index, "pair": (index % 2 == 0, text), "draw": random.random(), "row": np.arange(index, index + 20)}


def _row(index: int) -> tuple[np.ndarray, int]:
    return np.full((3, 4, 4), index % 251, np.uint8), index


def _drawn(index: int) -> dict[str, int]:
    return {"id": index, **dict(zip(("own", "python", "numpy"), drawn(index)["draws"], strict=True))}
