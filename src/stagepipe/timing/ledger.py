"""What carrying cost, by the way that a message went and by its size: a histogram for each way and doubling of bytes.

Both sides of a hop keep one on their part of the board, the sending side for copy and send, the receiving one for
receive. Most of its words are never touched, and a memfd takes no memory for those.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from stagepipe.timing.histogram import STEPS, WORDS, Histogram, step_of


class Way(IntEnum):
    """How a message went: all of it through the pipe, some of it copied to a block, or only described in one.

    COLD is a copy to a block that nobody had touched before.
    """

    PIPE = 0
    COPIED = 1
    ZERO_COPY = 2
    COLD = 3


_SIZES = 40
"""Doublings of bytes: the last is from half a terabyte on."""
_CELLS = len(Way) * _SIZES
LEDGER_WORDS = _CELLS * (2 + WORDS)


@dataclass(frozen=True)
class Entry:
    """The messages of one way and of sizes of so many `bits`; `nbytes` and `cost` are of all of them."""

    way: Way
    bits: int
    nbytes: int
    cost: Histogram

    @property
    def mean_bytes(self) -> int:
        """The size of one of them."""
        return self.nbytes // max(self.cost.count, 1)

    def __add__(self, other: Entry) -> Entry:
        """Both together: two workers' of the same way and size."""
        return Entry(self.way, self.bits, self.nbytes + other.nbytes, self.cost + other.cost)


class Ledger:
    """One side's part of the board: uint64 words of shape (LEDGER_WORDS,). Its process adds, anybody reads."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        """Nobody else may write to `words`."""
        self.words = words
        self._counts, self._bytes = words[:_CELLS], words[_CELLS : 2 * _CELLS]
        self._costs = words[2 * _CELLS :].reshape(_CELLS, WORDS)

    def add(self, ways: NDArray[np.int64], nbytes: NDArray[np.int64], cost_ns: NDArray[np.int64]) -> None:
        """Messages, an entry of each array a message.

        >>> ledger = Ledger(np.zeros(LEDGER_WORDS, np.uint64))
        >>> ledger.add(np.array([Way.COPIED] * 2), np.array([1024, 2047]), np.array([10, 20]))
        >>> [(entry.way.name, entry.mean_bytes) for entry in ledger.entries()]
        [('COPIED', 1535)]
        """
        cells = ways * _SIZES + np.minimum(np.frexp(nbytes.astype(np.float64))[1], _SIZES - 1)
        steps = step_of(cost_ns)
        first = int(cells[0]) if len(cells) else 0
        if (cells == first).all():  # as most often
            self._add(first, steps, nbytes, cost_ns)
            return
        for cell in set(cells.tolist()):  # np.unique would load numpy.ma, 8 MB of it
            mine = cells == cell
            self._add(cell, steps[mine], nbytes[mine], cost_ns[mine])

    def _add(self, cell: int, steps: NDArray[np.int64], nbytes: NDArray[np.int64], cost_ns: NDArray[np.int64]) -> None:
        if not len(steps):
            return
        words = self._costs[cell]
        words[:STEPS] += np.bincount(steps, minlength=STEPS).astype(np.uint64)
        words[STEPS] += np.uint64(cost_ns.sum())
        words[STEPS + 1] = max(int(words[STEPS + 1]), int(cost_ns.max()))
        self._bytes[cell] += np.uint64(nbytes.sum())
        self._counts[cell] += np.uint64(len(steps))  # last: who reads the count finds the rest

    @property
    def count(self) -> int:
        """How many messages there were."""
        return int(self._counts.sum())

    def entries(self) -> list[Entry]:
        """What there is."""
        return [
            Entry(Way(cell // _SIZES), cell % _SIZES, int(self._bytes[cell]), Histogram.from_words(self._costs[cell]))
            for cell in np.flatnonzero(self._counts).tolist()
        ]
