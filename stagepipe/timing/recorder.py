"""Collects rows of durations and adds them to the histograms on the board in batches. Runs in every worker.

Adding a row only extends a list. After 1024 rows, NumPy adds all of them to the histograms at once. The four phases of
a side of a hop take about 0.4 µs that way; added one by one they would take 3 µs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stagepipe.timing.histogram import HISTOGRAM_WORDS, add_to_histogram, bucket_index, pack_integers
from stagepipe.timing.ledger import CostLedger

_ROWS_PER_FLUSH = 1024
_ROWS_BEFORE_FIRST_FLUSH = 32
"""With a ledger, the first flush comes early, because the adaptive transport waits for the costs of a hop."""
_LEDGER_COLUMNS = 3
"""The columns of a ledger entry: transfer kind, bytes, ns."""


class DurationRecorder:
    """Fills `column_count` histograms, one after another in `words`, and with a `ledger` that too.

    Each row then has a ledger entry: the message's transfer kind, its bytes and its cost in ns.
    """

    def __init__(self, words: NDArray[np.uint64], column_count: int, ledger: CostLedger | None = None) -> None:
        """`words` is uint64 of shape (column_count * HISTOGRAM_WORDS,), with no other writer."""
        self._words = words.reshape(column_count, HISTOGRAM_WORDS)
        self._column_count = column_count
        self._ledger = ledger
        self._row_width = column_count + (0 if ledger is None else _LEDGER_COLUMNS)
        self._flush_length = (_ROWS_PER_FLUSH if ledger is None else _ROWS_BEFORE_FIRST_FLUSH) * self._row_width
        self._rows: list[int] = []

    def add(self, row_ns: Iterable[int], ledger_entry: Iterable[int] = ()) -> None:
        """Add a row: a duration in ns for each column, and the ledger entry (transfer kind, bytes, ns) if there is one.

        >>> recorder = DurationRecorder(np.zeros(2 * HISTOGRAM_WORDS, np.uint64), 2)
        >>> recorder.add((100, 2000))
        >>> recorder.flush()
        """
        rows = self._rows
        rows.extend(row_ns)
        if self._ledger is not None:
            rows.extend(ledger_entry)
        if len(rows) >= self._flush_length:
            self.flush()

    def add_alike(self, row_ns: Sequence[int], ledger_entry: Sequence[int], column: int, values_ns: list[int]) -> None:
        """Add a row for each of `values_ns`, which are those of `column`; the rest is that of `row_ns` in all of them.

        >>> recorder = DurationRecorder(np.zeros(2 * HISTOGRAM_WORDS, np.uint64), 2)
        >>> recorder.add_alike((100, 0), (), 1, [2000, 3000])  # (100, 2000) and (100, 3000)
        """
        row = (*row_ns, *ledger_entry) if self._ledger is not None else row_ns
        rows = list(row) * len(values_ns)
        rows[column :: len(row)] = values_ns
        self._rows += rows
        if len(self._rows) >= self._flush_length:
            self.flush()

    def flush(self) -> None:
        """Add the collected rows to the histograms and the ledger."""
        if not self._rows:
            return
        # Negative durations (a clock that went back, two clocks that differ) count as zero.
        table = np.maximum(pack_integers(self._rows).reshape(-1, self._row_width), 0)
        self._rows.clear()
        self._flush_length = _ROWS_PER_FLUSH * self._row_width
        if self._ledger is not None:
            self._ledger.add(*table[:, self._column_count :].T)
            table = table[:, : self._column_count]
        buckets = bucket_index(table)
        for column in range(self._column_count):
            add_to_histogram(self._words[column], buckets[:, column], table[:, column])
