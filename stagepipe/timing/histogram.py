"""Histograms of durations, the cost of messages by transfer kind and size, and the recorder that fills both in batches.

The histograms are log-linear: 32 buckets per doubling, so values are accurate to 2 %. They have the layout of
HdrHistogram (http://hdrhistogram.org; Gil Tene, "How NOT to Measure Latency"): a bucket for each value below 64 ns, 32
buckets per doubling above. Workers fill histograms on the board, the report reads them.

Each side of a hop has a ledger in its region of the board: for copy and send on the sending side, for receive on the
receiving side. Most words of a ledger are never touched, so they take no memory in the memfd.

Adding a row to a recorder only extends a list. After 1024 rows, NumPy adds all of them to the histograms at once. The
four phases of one side of a hop then take about 0.4 µs; added one by one they take 3 µs. A few rows are still added one
by one: NumPy passes over all buckets, and if the process does other work between two flushes, neither the buckets nor
NumPy's code are in the caches. If rows differ in only one column, their other columns are added once for all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

BUCKET_COUNT = 1216
"""The buckets of a histogram: up to 2**42 ns (73 minutes). Longer durations count in the last bucket."""

HISTOGRAM_WORDS = BUCKET_COUNT + 2
"""The 8-byte words of a histogram on the board: its buckets, then the sum and the maximum, both in ns."""


def bucket_index(values_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each duration: int64 of the same shape as `values_ns`. Negative durations count as zero.

    >>> bucket_index(np.array([0, 63, 64, 65, 1000])).tolist()
    [0, 63, 64, 64, 190]
    """
    clipped = np.maximum(values_ns, 0)
    shift = np.maximum(np.frexp(clipped.astype(np.float64))[1] - 6, 0)
    buckets: NDArray[np.int64] = np.minimum(shift * 32 + (clipped >> shift), BUCKET_COUNT - 1)
    return buckets


def add_to_histogram(
    words: NDArray[np.uint64],
    buckets: NDArray[np.int64],
    values_ns: NDArray[np.int64],
    counts: NDArray[np.int64] | None = None,
) -> None:
    """Add durations of at least 0 to the histogram in `words`, uint64 of shape (HISTOGRAM_WORDS,).

    `buckets` is the result of `bucket_index`. `counts` weights the durations, at least 1 each; None counts each once.
    """
    words[:BUCKET_COUNT] += np.bincount(buckets, counts, BUCKET_COUNT).astype(np.uint64)
    words[BUCKET_COUNT] += np.uint64((values_ns if counts is None else values_ns * counts).sum())
    words[BUCKET_COUNT + 1] = max(int(words[BUCKET_COUNT + 1]), int(np.max(values_ns, initial=0)))


_FEW: Final = 16
"""Up to this many durations of each kind are added one by one."""


def add_duration(words: memoryview, start: int, value_ns: int, count: int = 1) -> None:
    """Add a duration `count` times to the histogram that begins at `start` in `words`. Negative ones count as zero."""
    value_ns = max(value_ns, 0)
    shift = max(value_ns.bit_length() - 6, 0)
    words[start + min(32 * shift + (value_ns >> shift), BUCKET_COUNT - 1)] += count
    words[start + BUCKET_COUNT] += count * value_ns
    words[start + BUCKET_COUNT + 1] = max(words[start + BUCKET_COUNT + 1], value_ns)


def add_durations(words: NDArray[np.uint64], durations_ns: Sequence[int]) -> None:
    """Add durations to the histogram in `words`, uint64 of shape (HISTOGRAM_WORDS,). Negative ones count as zero."""
    if len(durations_ns) <= _FEW:
        view = memoryview(words.data)
        for value_ns in durations_ns:
            add_duration(view, 0, value_ns)
        return
    values_ns = np.maximum(pack_integers(durations_ns), 0)
    add_to_histogram(words, bucket_index(values_ns), values_ns)


def pack_integers(values: Sequence[int]) -> NDArray[np.int64]:
    """Return an array of integers; `numpy.array` takes twice as long.

    >>> pack_integers([3, -4])
    array([ 3, -4])
    """
    return np.frombuffer(struct.pack(f"{len(values)}q", *values), np.int64)


def _bucket_midpoints_ns() -> NDArray[np.float64]:
    buckets = np.arange(BUCKET_COUNT)
    shift = np.maximum(buckets // 32 - 1, 0)
    lower_bounds = (buckets - shift * 32) << shift
    midpoints: NDArray[np.float64] = lower_bounds + ((1 << shift) - 1) / 2
    return midpoints


BUCKET_MIDPOINTS_NS = _bucket_midpoints_ns()
"""The midpoint of each bucket, in ns: float64 of shape (BUCKET_COUNT,)."""


@dataclass(frozen=True)
class Histogram:
    """A histogram of durations. `counts` is uint64 of shape (BUCKET_COUNT,); `+` adds histograms."""

    counts: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(BUCKET_COUNT, np.uint64))
    sum_ns: int = 0
    max_ns: int = 0

    @classmethod
    def from_values_ns(cls, values_ns: list[int]) -> Histogram:
        """Return the histogram of durations in ns. Negative durations count as zero.

        >>> Histogram.from_values_ns([10, 20, 30]).percentile_ns(50)
        20
        """
        words = np.zeros(HISTOGRAM_WORDS, np.uint64)
        add_durations(words, values_ns)
        return cls.from_words(words)

    @classmethod
    def from_words(cls, words: NDArray[np.uint64]) -> Histogram:
        """Copy the histogram from the words of a board: uint64 of shape (HISTOGRAM_WORDS,)."""
        return cls(words[:BUCKET_COUNT].copy(), int(words[BUCKET_COUNT]), int(words[BUCKET_COUNT + 1]))

    @property
    def count(self) -> int:
        """The number of durations."""
        return int(self.counts.sum())

    @property
    def mean_ns(self) -> int:
        """The exact mean, rounded down; 0 if empty."""
        return self.sum_ns // self.count if self.count else 0

    def percentile_ns(self, percent: float) -> int:
        """Return a percentile in ns, for `percent` from 0 to 100: accurate to 2 %, at most the maximum; 0 if empty."""
        total = self.count
        if not total:
            return 0
        bucket = int(np.searchsorted(np.cumsum(self.counts), max(percent / 100 * total, 1)))
        return min(int(BUCKET_MIDPOINTS_NS[bucket]), self.max_ns)

    def count_from(self, low_ns: float) -> int:
        """Return the number of durations of at least `low_ns`, accurate to 2 % of `low_ns`.

        >>> Histogram.from_values_ns([10, 20, 30]).count_from(20)
        2
        """
        return int(self.counts[low_ns <= BUCKET_MIDPOINTS_NS].sum())

    def __add__(self, other: Histogram) -> Histogram:
        """Return the histogram of the durations of both."""
        return Histogram(self.counts + other.counts, self.sum_ns + other.sum_ns, max(self.max_ns, other.max_ns))

    def __sub__(self, earlier: Histogram) -> Histogram:
        """Return the durations added since `earlier`, a copy of this histogram. `max_ns` is the maximum of all.

        >>> first = Histogram.from_values_ns([10])
        >>> (first + Histogram.from_values_ns([30]) - first).percentile_ns(50)
        30
        """
        return Histogram(self.counts - earlier.counts, self.sum_ns - earlier.sum_ns, self.max_ns)


# ------------------------------------------------------------------ costs by kind and size


class TransferKind(IntEnum):
    """How a message is transferred.

    PIPE: all of it through the pipe. COPIED: partly copied to a block. ZERO_COPY: its large buffers were already in
    blocks. COLD_COPY: copied to a block with untouched pages, which is slower. PACKED: in a packet or a block with
    other messages; its size and its cost are its share.
    """

    PIPE = 0
    COPIED = 1
    ZERO_COPY = 2
    COLD_COPY = 3
    PACKED = 4


_SIZE_BUCKETS = 40
"""Sizes are counted by doublings; the last bucket holds everything from 256 GiB on."""
_CELL_COUNT = len(TransferKind) * _SIZE_BUCKETS
LEDGER_WORDS = _CELL_COUNT * (2 + HISTOGRAM_WORDS)


@dataclass(frozen=True)
class LedgerEntry:
    """All messages of one transfer kind whose size in bytes has `size_bits` bits."""

    transfer_kind: TransferKind
    size_bits: int
    total_bytes: int
    cost_histogram: Histogram

    @property
    def mean_bytes(self) -> int:
        """The mean size of a message."""
        return self.total_bytes // max(self.cost_histogram.count, 1)

    def __add__(self, other: LedgerEntry) -> LedgerEntry:
        """Return the messages of both entries, for example from two workers, for the same kind and size."""
        return LedgerEntry(
            self.transfer_kind,
            self.size_bits,
            self.total_bytes + other.total_bytes,
            self.cost_histogram + other.cost_histogram,
        )


class CostLedger:
    """The ledger of one side of a hop, on the board. Its process adds messages; every process may read them."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        """`words` is uint64 of shape (LEDGER_WORDS,), with no other writer."""
        self.words = words
        self._message_counts = words[:_CELL_COUNT]
        self._total_bytes = words[_CELL_COUNT : 2 * _CELL_COUNT]
        self._cost_words = words[2 * _CELL_COUNT :].reshape(_CELL_COUNT, HISTOGRAM_WORDS)

    def add(
        self,
        transfer_kinds: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        cost_ns: NDArray[np.int64],
        counts: NDArray[np.int64] | None = None,
    ) -> None:
        """Add messages. Each array is int64 with one value per message; `counts` has the number of equal messages.

        >>> ledger = CostLedger(np.zeros(LEDGER_WORDS, np.uint64))
        >>> ledger.add(np.array([TransferKind.COPIED] * 2), np.array([1024, 2047]), np.array([10, 20]))
        >>> [(entry.transfer_kind.name, entry.mean_bytes) for entry in ledger.entries()]
        [('COPIED', 1535)]
        """
        cells = transfer_kinds * _SIZE_BUCKETS + np.minimum(np.frexp(nbytes.astype(np.float64))[1], _SIZE_BUCKETS - 1)
        buckets = bucket_index(cost_ns)
        first_cell = int(cells[0]) if len(cells) else 0
        if (cells == first_cell).all():  # the usual case
            self._add_to_cell(first_cell, buckets, nbytes, cost_ns, counts)
            return
        for cell in set(cells.tolist()):  # np.unique would import numpy.ma, which takes 8 MB
            in_cell = cells == cell
            cell_counts = None if counts is None else counts[in_cell]
            self._add_to_cell(cell, buckets[in_cell], nbytes[in_cell], cost_ns[in_cell], cell_counts)

    def _add_to_cell(
        self,
        cell: int,
        buckets: NDArray[np.int64],
        nbytes: NDArray[np.int64],
        cost_ns: NDArray[np.int64],
        counts: NDArray[np.int64] | None,
    ) -> None:
        if not len(buckets):
            return
        add_to_histogram(self._cost_words[cell], buckets, cost_ns, counts)
        self._total_bytes[cell] += np.uint64((nbytes if counts is None else nbytes * counts).sum())
        # Updated last, so that a reader of the count finds the rest.
        self._message_counts[cell] += np.uint64(len(buckets) if counts is None else counts.sum())

    def add_message(self, transfer_kind: int, nbytes: int, cost_ns: int, count: int) -> None:
        """Add `count` equal messages."""
        words = memoryview(self.words.data)
        cell = transfer_kind * _SIZE_BUCKETS + min(nbytes.bit_length(), _SIZE_BUCKETS - 1)
        add_duration(words, 2 * _CELL_COUNT + cell * HISTOGRAM_WORDS, cost_ns, count)
        words[_CELL_COUNT + cell] += count * nbytes
        words[cell] += count  # last, as above

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return int(self._message_counts.sum())

    def entries(self) -> list[LedgerEntry]:
        """Return the entries of all kinds and sizes that have messages."""
        return [
            LedgerEntry(
                TransferKind(cell // _SIZE_BUCKETS),
                cell % _SIZE_BUCKETS,
                int(self._total_bytes[cell]),
                Histogram.from_words(self._cost_words[cell]),
            )
            for cell in np.flatnonzero(self._message_counts).tolist()
        ]


# ------------------------------------------------------------------ the recorder

_ROWS_PER_FLUSH = 1024
_ALIKE_ROWS_PER_FLUSH = 4096
"""A row of `add_alike` is one number; other rows have eight."""
_ROWS_BEFORE_FIRST_FLUSH = 32
"""With a ledger, the first flush comes early, because the adaptive transport waits for the costs of a hop."""
_LEDGER_COLUMNS = 3
"""The columns of a ledger entry: transfer kind, bytes, ns."""


class DurationRecorder:
    """Fills `column_count` histograms, one after another in `words`, and an optional `ledger`.

    With a ledger, each row has a ledger entry: the message's transfer kind, its bytes and its cost in ns.
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
        """The rows of `add_alike`, each with its count as an extra column."""
        self._alike_column = 0
        self._alike_flush_rows = _ALIKE_ROWS_PER_FLUSH if ledger is None else _ROWS_BEFORE_FIRST_FLUSH
        self._alike_values_ns: list[int] = []
        """The values of `_alike_rows` in `_alike_column`."""

    def add(self, row_ns: Iterable[int], ledger_entry: Iterable[int] = ()) -> None:
        """Add a row: a duration in ns for each column, and with a ledger an entry for it (transfer kind, bytes, ns).

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
        """Add a row for each of `values_ns`. It has that value in `column`, and the values of `row_ns` in all others.

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
            self._add_rows(self._rows, self._row_width, range(self._column_count))
            self._rows.clear()
        self._flush_alike()

    def _flush_alike(self) -> None:
        """Add the rows that differ in one column. Their other columns are added once per call of `add_alike`."""
        if not self._alike_rows:
            return
        self._alike_flush_rows = _ALIKE_ROWS_PER_FLUSH
        add_durations(self._words[self._alike_column], self._alike_values_ns)
        columns = [column for column in range(self._column_count) if column != self._alike_column]
        self._add_rows(self._alike_rows, self._row_width + 1, columns)
        self._alike_rows.clear()
        self._alike_values_ns.clear()

    def _add_rows(self, rows: list[int], width: int, columns: Sequence[int]) -> None:
        """Add rows to the histograms of `columns`, and to the ledger. In a wider row, the last number is its count."""
        if len(rows) <= _FEW * width:
            view = memoryview(self._words.reshape(-1).data)
            for first in range(0, len(rows), width):
                row = rows[first : first + width]
                count = row.pop() if width > self._row_width else 1
                for column in columns:
                    add_duration(view, column * HISTOGRAM_WORDS, row[column], count)
                if self._ledger is not None:
                    transfer_kind, nbytes, cost_ns = row[self._column_count :]
                    self._ledger.add_message(transfer_kind, nbytes, cost_ns, count)
            return
        table = _make_table(rows, width)
        counts = table[:, -1] if width > self._row_width else None
        buckets = bucket_index(table[:, : self._column_count])
        for column in columns:
            add_to_histogram(self._words[column], buckets[:, column], table[:, column], counts)
        if self._ledger is not None:
            transfer_kinds, nbytes, cost_ns = table[:, self._column_count : self._row_width].T
            self._ledger.add(transfer_kinds, nbytes, cost_ns, counts)


def _make_table(rows: list[int], width: int) -> NDArray[np.int64]:
    """Return the rows as an array. Negative durations (a clock that went back, or two clocks) count as zero."""
    return np.maximum(pack_integers(rows).reshape(-1, width), 0)
