"""`BatchIterator`: lists of consecutive samples of an iterator. In the process that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Self


class BatchIterator(Iterator[list[Any]]):
    """Yields lists of `size` samples. It never reads further than the list that it yields.

    The last list may be shorter; `drop_last` drops it.

    >>> list(BatchIterator(iter("abcde"), 2)), list(BatchIterator(iter("abcde"), 2, drop_last=True))
    ([['a', 'b'], ['c', 'd'], ['e']], [['a', 'b'], ['c', 'd']])
    """

    def __init__(self, samples: Iterator[Any], size: int, *, drop_last: bool = False) -> None:
        self.samples = samples
        self._size = size
        self._drop_last = drop_last

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Any]:
        batch = list(islice(self.samples, self._size))
        if not batch or (self._drop_last and len(batch) < self._size):
            raise StopIteration
        return batch


class StatefulBatchIterator(BatchIterator):
    """A BatchIterator over an iterator that saves and loads its state: between two lists, that is its own state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the samples' iterator."""
        state: dict[str, Any] = self.samples.state_dict()  # type: ignore[attr-defined]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of the samples' iterator."""
        self.samples.load_state_dict(state)  # type: ignore[attr-defined]
