"""`Filter`: drops the items that a function does not want. Runs in any worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagepipe.core import SKIP


class Filter:
    """Let an item pass where `where(item)` is true, drop it otherwise. In YAML, `where` is a nested `uses`.

    >>> even = Filter(where=lambda number: number % 2 == 0)
    >>> even(2), even(3)
    (2, stagepipe.SKIP)

    Raises TypeError if `where` cannot be called.
    """

    def __init__(self, where: Callable[[Any], object]) -> None:
        if not callable(where):
            raise TypeError(f"Filter: where is {where!r}; give a function: `where: {{uses: my_ops.is_sharp}}`")
        self.where = where

    def __call__(self, item: Any) -> Any:
        """The item, or SKIP."""
        return item if self.where(item) else SKIP
