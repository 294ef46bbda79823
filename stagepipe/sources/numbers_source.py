"""`NumbersSource`: whole numbers, to try out a pipeline. Runs in the source's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class NumbersSource(Sequence[int]):
    """Yield the `int`s 0, 1 ... `count` - 1. In YAML it is `uses: stagepipe.sources.numbers`.

    Args:
        count: how many numbers, such as `1000`.

    >>> list(NumbersSource(3))
    [0, 1, 2]

    Raises ValueError for a negative `count`.
    """

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"numbers: count is {count}; give 0 or more")
        self._range = range(count)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: Any) -> Any:
        return self._range[index]
