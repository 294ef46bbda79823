"""Collects rows of durations and adds them to the histograms on the board in batches. Runs in every worker.

Adding a row only extends a list. After 1024 rows, NumPy adds all of them to the histograms at once. The four phases of
a side of a hop take about 0.4 µs that way; added one by one they would take 3 µs. Of rows that differ in one
column only, the others are added once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stagepipe.timing.histogram import HISTOGRAM_WORDS, add_durations, add_to_histogram, bucket_index, pack_integers
from stagepipe.timing.ledger import CostLedger

_ROWS_PER_FLUSH = 1024
_ALIKE_ROWS_PER_FLUSH = 4096
"""Each is one number, where a row has eight."""
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
        self._alike_rows: list[int] = []
        """The rows of `add_alike`, each with its count as one more column."""
        self._alike_column = 0
        self._alike_flush_rows = _ALIKE_ROWS_PER_FLUSH if ledger is None else _ROWS_BEFORE_FIRST_FLUSH
        self._alike_values_ns: list[int] = []
        """What `_alike_rows` have in `_alike_column`."""

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
        if column != self._alike_column:
            self._flush_alike()
            self._alike_column = column
        self._alike_rows += row_ns
        if self._ledger is not None:
            self._alike_rows += ledger_entry
        self._alike_rows.append(len(values_ns))
        self._alike_values_ns += values_ns
        if len(self._alike_values_ns) >= self._alike_flush_rows:
            self.flush()

    def flush(self) -> None:
        """Add the collected rows to the histograms and the ledger."""
        if self._rows:
            self._flush_length = _ROWS_PER_FLUSH * self._row_width
            self._add_table(_make_table(self._rows, self._row_width), range(self._column_count))
            self._rows.clear()
        self._flush_alike()

    def _flush_alike(self) -> None:
        """Add the rows that differ in one column. The rest of them is added once for each call of `add_alike`."""
        if not self._alike_rows:
            return
        self._alike_flush_rows = _ALIKE_ROWS_PER_FLUSH
        table = _make_table(self._alike_rows, self._row_width + 1)
        add_durations(self._words[self._alike_column], self._alike_values_ns)
        columns = [column for column in range(self._column_count) if column != self._alike_column]
        self._add_table(table[:, :-1], columns, table[:, -1])
        self._alike_rows.clear()
        self._alike_values_ns.clear()

    def _add_table(
        self, table: NDArray[np.int64], columns: Sequence[int], counts: NDArray[np.int64] | None = None
    ) -> None:
        """Add rows to the histograms of `columns`, and to the ledger. `counts`: how often each row counts."""
        buckets = bucket_index(table[:, : self._column_count])
        for column in columns:
            add_to_histogram(self._words[column], buckets[:, column], table[:, column], counts)
        if self._ledger is not None:
            transfer_kinds, nbytes, cost_ns = table[:, self._column_count :].T
            self._ledger.add(transfer_kinds, nbytes, cost_ns, counts)


def _make_table(rows: list[int], width: int) -> NDArray[np.int64]:
    """The rows as an array. Negative durations (a clock that went back, two clocks that differ) count as zero."""
    return np.maximum(pack_integers(rows).reshape(-1, width), 0)
