"""`Filter`: drops the items for which a function returns false. Runs in any worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stagepipe.core import SKIP


class Filter:
    """Pass an item on if `where(item)` is true, otherwise drop it.

    Args:
        where: a function of an item; in YAML a nested `uses`, such as `{uses: my_ops.is_sharp}`.

    >>> is_even = Filter(where=lambda number: number % 2 == 0)
    >>> is_even(2), is_even(3)
    (2, stagepipe.SKIP)

    Raises TypeError if `where` is not callable.
    """

    def __init__(self, where: Callable[[Any], object]) -> None:
        if not callable(where):
            raise TypeError(
                f"Filter: where is {where!r}, not a callable; give a function, in YAML "
                "`where: {uses: my_ops.is_sharp}`"
            )
        self.where = where

    def __call__(self, item: Any) -> Any:
        """Return the item, or SKIP to drop it."""
        return item if self.where(item) else SKIP
