"""`FlatMap`: yields the items of the iterable that a function returns. Runs in any worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class FlatMap:
    """Yield each item of `function(item)`.

    A generator function needs no `FlatMap`: as a stage, it yields its items one by one.

    Args:
        function: returns an iterable of items; in YAML a nested `uses`, such as `{uses: my_ops.tiles}`.

    >>> split = FlatMap(function=str.split)
    >>> list(split("a b"))
    ['a', 'b']

    Raises TypeError if `function` is not callable.
    """

    def __init__(self, function: Callable[[Any], Iterable[Any]]) -> None:
        if not callable(function):
            raise TypeError(
                f"FlatMap: function is {function!r}, not a callable; give a function, in YAML "
                "`function: {uses: my_ops.tiles}`"
            )
        self.function = function

    def __call__(self, item: Any) -> Iterator[Any]:
        """Yield the items."""
        yield from self.function(item)
