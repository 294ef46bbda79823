"""Rows of durations on their way to the board. Used by every process that works on items.

Adding a row is a list's `extend`; every 256 rows NumPy sorts them into the histograms at once. One by one, seven phases
would cost 3 us a hop; so they cost about half of one.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stagepipe.timing.histogram import STEPS, WORDS, step_of
from stagepipe.timing.ledger import Ledger

_ROWS = 256
_FIRST_ROWS = 32
"""The first come early: who learns from a hop's costs while it runs waits for them."""
_LEDGER = 3
"""Numbers of an entry."""


class Recorder:
    """Fills `columns` histograms that lie one after another in `words` (uint64, shape (columns * WORDS,)).

    With a `ledger` each row has an entry for it: the message's way, its bytes, and what carrying it cost.
    """

    def __init__(self, words: NDArray[np.uint64], columns: int, ledger: Ledger | None = None) -> None:
        """Nobody else may write to `words`."""
        self._words = words.reshape(columns, WORDS)
        self._columns, self._ledger = columns, ledger
        self._width = columns + (0 if ledger is None else _LEDGER)
        self._full = (_ROWS if ledger is None else _FIRST_ROWS) * self._width
        self._rows: list[int] = []

    def add(self, row: Iterable[int], entry: Iterable[int] = ()) -> None:
        """One duration in ns for each column, and the ledger's entry: a way, bytes, ns.

        >>> recorder = Recorder(np.zeros(2 * WORDS, np.uint64), 2)
        >>> recorder.add((100, 2000))
        >>> recorder.flush()
        """
        rows = self._rows
        rows.extend(row)
        if self._ledger is not None:
            rows.extend(entry)
        if len(rows) >= self._full:
            self.flush()

    def flush(self) -> None:
        """Bring what was added to the board."""
        if not self._rows:
            return
        # A clock that was set back, or two that differ, count as no time at all.
        table = np.maximum(np.array(self._rows, np.int64).reshape(-1, self._width), 0)
        self._rows.clear()
        self._full = _ROWS * self._width
        if self._ledger is not None:
            self._ledger.add(*table[:, self._columns :].T)
            table = table[:, : self._columns]
        steps = step_of(table)
        for column in range(self._columns):
            words = self._words[column]
            words[:STEPS] += np.bincount(steps[:, column], minlength=STEPS).astype(np.uint64)
            words[STEPS] += np.uint64(table[:, column].sum())
            words[STEPS + 1] = max(int(words[STEPS + 1]), int(table[:, column].max()))
