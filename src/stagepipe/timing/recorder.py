"""Rows of durations on their way to the board. Used by every process that works on items.

Adding a row is a list's `extend`; every 256 rows NumPy sorts them into the histograms at once. One by one, seven phases
would cost 3 us a hop; so they cost about half of one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stagepipe.timing.histogram import STEPS, WORDS, step_of

_ROWS = 256


class Recorder:
    """Fills `columns` histograms that lie one after another in `words` (uint64, shape (columns * WORDS,))."""

    def __init__(self, words: NDArray[np.uint64], columns: int) -> None:
        """Nobody else may write to `words`."""
        self._words = words.reshape(columns, WORDS)
        self._columns = columns
        self._full = _ROWS * columns
        self._rows: list[int] = []

    def add(self, row: Iterable[int]) -> None:
        """One duration in ns for each column.

        >>> recorder = Recorder(np.zeros(2 * WORDS, np.uint64), 2)
        >>> recorder.add((100, 2000))
        >>> recorder.flush()
        """
        rows = self._rows
        rows.extend(row)
        if len(rows) >= self._full:
            self.flush()

    def flush(self) -> None:
        """Bring what was added to the board."""
        if not self._rows:
            return
        # A clock that was set back, or two that differ, count as no time at all.
        table = np.maximum(np.array(self._rows, np.int64).reshape(-1, self._columns), 0)
        self._rows.clear()
        steps = step_of(table)
        for column in range(self._columns):
            words = self._words[column]
            words[:STEPS] += np.bincount(steps[:, column], minlength=STEPS).astype(np.uint64)
            words[STEPS] += np.uint64(table[:, column].sum())
            words[STEPS + 1] = max(int(words[STEPS + 1]), int(table[:, column].max()))
