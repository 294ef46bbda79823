"""The cost of messages by transfer kind and size: a histogram for each kind and doubling of bytes.

Each side of a hop has a ledger in its region of the board: the sending side for copy and send, the receiving side for
receive. Most words of a ledger are never touched, and those take no memory in a memfd.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from stagepipe.timing.histogram import HISTOGRAM_WORDS, Histogram, add_to_histogram, bucket_index


class TransferKind(IntEnum):
    """How a message is transferred.

    PIPE: all of it through the pipe. COPIED: some of it copied to a block. ZERO_COPY: its large buffers were in blocks
    already. COLD_COPY: copied to a block whose pages had not been touched before, which is slower.
    """

    PIPE = 0
    COPIED = 1
    ZERO_COPY = 2
    COLD_COPY = 3


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
        """The messages of both, for example of two workers, for the same kind and size."""
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
        """Add messages. Each array is int64 with one value per message; `counts`: how many messages are like it.

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
        # Last, so that a reader of the count finds the rest.
        self._message_counts[cell] += np.uint64(len(buckets) if counts is None else counts.sum())

    @property
    def message_count(self) -> int:
        """The number of messages."""
        return int(self._message_counts.sum())

    def entries(self) -> list[LedgerEntry]:
        """The entries of all kinds and sizes that have messages."""
        return [
            LedgerEntry(
                TransferKind(cell // _SIZE_BUCKETS),
                cell % _SIZE_BUCKETS,
                int(self._total_bytes[cell]),
                Histogram.from_words(self._cost_words[cell]),
            )
            for cell in np.flatnonzero(self._message_counts).tolist()
        ]
