"""Which part a mix takes each item from: computed for any position, in blocks. Pure; in the source's process.

A block has about a thousand positions. The cumulated shares, times the number of positions before a block, say how many
items each part gets before it. So the proportions hold over every block, and nothing is summed up. Within
a block the parts come in a random order, drawn from (seed, epoch, block). So nothing is stored for each item, any
position is found in constant time, and the length is the same in every epoch.

The end of a phase may lie within a block. That block's parts are first spread evenly and cut there; its random order is
one of what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import derive_seed

StopMode = Literal["first_exhausted", "all_exhausted", "each_once"]
"""When a mix ends. See `MixSource`."""

_MIN_BLOCK: Final = 1024
_MAX_BLOCK: Final = 1 << 22

IntArray = NDArray[np.int64]


class Phase:
    """A run of positions in which the parts have the same shares. `first_counts`: the items taken of each before it."""

    def __init__(self, weights: Sequence[Fraction], start: int, first_counts: IntArray) -> None:
        """Parts of weight 0 get nothing. Raises ValueError for weights that are too far apart."""
        total = sum(weights, Fraction(0))
        shares = [weight / total for weight in weights]
        self.start = start
        self.first_counts = first_counts
        self._cumulated_shares = list(accumulate(shares))
        # A share of at least one item a block makes all counts of a block at least 0.
        self.block_size = max(_MIN_BLOCK, *(-(-share.denominator // share.numerator) for share in shares if share))
        if self.block_size > _MAX_BLOCK:
            raise ValueError(f"a weight is less than 1 in {_MAX_BLOCK} of all; remove that source")
        self.length = 0

    def count_before(self, block: int) -> IntArray:
        """Return how many items of each part come before a block of the phase, those before the phase included."""
        position = block * self.block_size
        rounded = [position * share.numerator // share.denominator for share in self._cumulated_shares]
        return np.diff([0, *rounded]).astype(np.int64) + self.first_counts

    def spread(self, block: int) -> IntArray:
        """Return the parts of a whole block, each spread evenly over it."""
        counts = self.count_before(block + 1) - self.count_before(block)
        parts = np.repeat(np.arange(len(counts)), counts)
        keys = np.concatenate([(np.arange(count) + 0.5) / count for count in counts.tolist() if count])
        return parts[np.argsort(keys, kind="stable")]

    def end_before_first_lack(self, lengths: IntArray) -> None:
        """Let the phase end where a part has no item left."""
        block = self._find_block(lambda counts: bool(np.any(counts > lengths)))
        for_each = self._count_within(block)
        is_lacking = np.any(for_each > lengths, axis=1)
        self.length = block * self.block_size + int(np.argmax(is_lacking))

    def end_when_all_are_used(self, lengths: IntArray) -> None:
        """Let the phase end where each part has been read to its end at least once."""
        block = self._find_block(lambda counts: bool(np.all(counts >= lengths)))
        is_done = np.all(self._count_within(block) >= lengths, axis=1)
        self.length = block * self.block_size + int(np.argmax(is_done)) + 1

    def count_all(self) -> IntArray:
        """Return how many items of each part come before the end of the phase."""
        block, rest = divmod(self.length, self.block_size)
        counts = self.count_before(block)
        return counts + np.bincount(self.spread(block)[:rest], minlength=len(counts)) if rest else counts

    def draw_block(self, block: int, epoch: int, seed: int, number: int) -> IntArray:
        """Return the parts of a block's positions, in the random order of an epoch. `number` is that of the phase."""
        parts = self.spread(block)[: self.length - block * self.block_size]
        drawn_seed = derive_seed(seed, epoch, "mix", (number, block)) & 0xFFFFFFFF
        # The draws of RandomState never change between versions of NumPy (NEP 19); a saved position relies on it.
        np.random.RandomState(drawn_seed).shuffle(parts)
        return parts

    def _find_block(self, is_reached: Any) -> int:
        """Return the first block at whose end `is_reached` says yes to the counts. They never fall, so it halves."""
        last = 1
        while not is_reached(self.count_before(last)):
            last *= 2
        first = 0
        while first < last - 1:
            middle = (first + last) // 2
            first, last = (first, middle) if is_reached(self.count_before(middle)) else (middle, last)
        return first

    def _count_within(self, block: int) -> IntArray:
        """Return the counts of each part after each position of a block: one row a position."""
        parts = self.spread(block)
        before = self.count_before(block)
        counts = np.zeros((len(parts), len(before)), np.int64)
        counts[np.arange(len(parts)), parts] = 1
        return np.cumsum(counts, axis=0) + before


def make_phases(lengths: Sequence[int], weights: Sequence[Fraction], until: StopMode) -> list[Phase]:
    """Return the phases of a mix of parts of these lengths.

    >>> [phase.length for phase in make_phases([3, 50], [Fraction(1), Fraction(1)], "first_exhausted")]
    [6]
    >>> [phase.length for phase in make_phases([3, 50], [Fraction(1), Fraction(1)], "each_once")]
    [6, 47]
    """
    limits = np.asarray(lengths, np.int64)
    left = list(weights)
    phases: list[Phase] = []
    start, counts = 0, np.zeros(len(lengths), np.int64)
    while any(left):
        phase = Phase(left, start, counts)
        if until == "all_exhausted":
            phase.end_when_all_are_used(limits)
        else:
            phase.end_before_first_lack(limits)
        phases.append(phase)
        if until != "each_once":
            return phases
        start += phase.length
        counts = phase.count_all()
        left = [Fraction(0) if used else weight for used, weight in zip(counts >= limits, left, strict=True)]
    return phases
