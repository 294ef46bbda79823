"""The order of an epoch in lists of `batch_size` indices. Runs in the source's process."""

from __future__ import annotations

from typing import Any

from stagepipe.sources.order.epoch_order import EpochOrder


class BatchedOrder:
    """Lists of `batch_size` consecutive indices of an order. The last may be shorter; `drop_last` drops it.

    >>> list(BatchedOrder(range(5), 2))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, order: EpochOrder, batch_size: int, *, drop_last: bool = False) -> None:
        self._order = order
        self._batch_size = batch_size
        self._drop_last = drop_last

    def begin(self, epoch: int, seed: int) -> None:
        """Draw the epoch's order."""
        if not isinstance(self._order, range):
            self._order.begin(epoch, seed)

    def __len__(self) -> int:
        count = len(self._order)
        return count // self._batch_size if self._drop_last else -(-count // self._batch_size)

    def __getitem__(self, index: int) -> list[Any]:
        if index >= len(self):
            raise IndexError(index)
        first = index * self._batch_size
        return [self._order[i] for i in range(first, min(first + self._batch_size, len(self._order)))]
