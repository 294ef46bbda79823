"""Which part comes next where parts are streams of unknown length. Runs in the source's process."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from stagepipe.sources.joined.mix_schedule import IntArray, Phase


class Turns(Protocol):
    """Draws the number of the part that the next item comes from."""

    def draw(self) -> int:
        """Return the part of the next turn."""

    def drop(self, part: int) -> None:
        """Leave out a part from now on."""

    def take_state(self) -> dict[str, Any]:
        """Return the position, as plain JSON."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue at a position."""


class SequentialTurns:
    """One part after the other."""

    def __init__(self) -> None:
        self._part = 0

    def draw(self) -> int:
        """Return the first part that has not ended."""
        return self._part

    def drop(self, part: int) -> None:
        """Go on to the part after it."""
        self._part = part + 1

    def take_state(self) -> dict[str, Any]:
        """Return the position."""
        return {"part": self._part}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self._part = state["part"]


class WeightedTurns:
    """Random turns in the proportions of the weights, drawn from (seed, epoch) in blocks, as those of a `MixOrder`."""

    def __init__(self, weights: Sequence[Fraction], epoch: int, seed: int) -> None:
        """Raises ValueError for weights that are too far apart."""
        self._weights = weights
        self._epoch = epoch
        self._seed = seed
        self._dropped: list[int] = []
        self._position = 0
        self._phase = self._make_phase()
        self._block: tuple[int, list[int]] = (-1, [])

    def draw(self) -> int:
        """Return the part of the next turn."""
        number, position = divmod(self._position, self._phase.block_size)
        if self._block[0] != number:
            parts: IntArray = self._phase.draw_block(number, self._epoch, self._seed, len(self._dropped))
            self._block = (number, parts.tolist())
        self._position += 1
        return self._block[1][position]

    def drop(self, part: int) -> None:
        """Give the share of a part to the others."""
        self.load_state({"dropped": [*self._dropped, part], "position": 0})

    def take_state(self) -> dict[str, Any]:
        """Return the position."""
        return {"dropped": list(self._dropped), "position": self._position}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue at a position."""
        self._dropped = list(state["dropped"])
        self._position = state["position"]
        self._phase = self._make_phase()
        self._block = (-1, [])

    def _make_phase(self) -> Phase:
        left = [Fraction(0) if part in self._dropped else weight for part, weight in enumerate(self._weights)]
        phase = Phase(left, 0, np.zeros(len(left), np.int64))
        phase.length = sys.maxsize
        return phase
