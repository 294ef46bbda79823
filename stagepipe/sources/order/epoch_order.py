"""The type of an epoch's order: indices, each of which can be read at no cost. Runs in the source's process."""

from __future__ import annotations

from typing import Any, Protocol


class SeededOrder(Protocol):
    """Indices of an epoch, drawn from (seed, epoch) by `begin`."""

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order, unless it is the current one. It depends only on epoch and seed."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


EpochOrder = range | SeededOrder
"""The indices of an epoch."""
