"""`MixOrder`: the order of an epoch of a mix. Runs in the source's process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np

from stagepipe.sources.joined.mix_schedule import IntArray, Phase
from stagepipe.sources.joined.source_parts import PartOrder, derive_part_seed


class _Block:
    """For each position of a block, its part, and how many items of that part come before it."""

    def __init__(self, parts: IntArray, before: IntArray, first: int) -> None:
        """`before`: the items of each part before the block. `first`: the block's first position in the mix."""
        self.first = first
        self.stop = first + len(parts)
        self.parts: list[int] = parts.tolist()
        counts = np.empty(len(parts), np.int64)
        for number, count in enumerate(before.tolist()):
            positions = np.flatnonzero(parts == number)
            counts[positions] = np.arange(count, count + len(positions))
        self.counts = counts.tolist()


_NO_BLOCK: Final = _Block(np.empty(0, np.int64), np.empty(0, np.int64), 0)


class MixOrder:
    """The indices that a mix takes from its parts, in turn."""

    def __init__(self, phases: Sequence[Phase], orders: Sequence[PartOrder], first_indices: Sequence[int]) -> None:
        """`first_indices` are those of the parts' first records."""
        self._phases = phases
        self._orders = orders
        self._first_indices = first_indices
        self._starts = [phase.start for phase in phases]
        self._epoch_and_seed = (0, 0)
        self._block = _NO_BLOCK

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order."""
        self._epoch_and_seed = (epoch, seed)
        self._block = _NO_BLOCK
        for order in self._orders:
            order.begin(epoch, derive_part_seed(seed, epoch, "mix"))

    def __len__(self) -> int:
        return self._phases[-1].start + self._phases[-1].length

    def __getitem__(self, index: int) -> int:
        block = self._block
        if not block.first <= index < block.stop:
            block = self._block = self._draw_block(index)
        position = index - block.first
        part = block.parts[position]
        return self._first_indices[part] + self._orders[part][block.counts[position]]

    def _draw_block(self, index: int) -> _Block:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect_right(self._starts, index) - 1
        phase = self._phases[number]
        block = (index - phase.start) // phase.block_size
        epoch, seed = self._epoch_and_seed
        parts = phase.draw_block(block, epoch, seed, number)
        return _Block(parts, phase.count_before(block), phase.start + block * phase.block_size)
