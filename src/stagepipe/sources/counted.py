"""`numbers`: whole numbers, for trying a pipeline out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class numbers(Sequence[int]):  # noqa: N801 - written `uses: stagepipe.sources.numbers` in YAML, where it reads as a noun
    """The numbers 0, 1 ... `count` - 1.

    >>> list(numbers(3))
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
