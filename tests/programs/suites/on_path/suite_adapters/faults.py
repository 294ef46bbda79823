"""Faults of an adapter, for runs that show whether a suite would find them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

FAULT: Final = "STAGEPIPE_ADAPTER_FAULT"


def spoil(items: Iterator[Any]) -> Iterator[Any]:
    """Return the items of an epoch with the fault of this run, if it has one."""
    fault = FAULTS.get(os.environ.get(FAULT, ""))
    return items if fault is None else fault(items)


def _drop_last(items: Iterator[Any]) -> Iterator[Any]:
    held = list(islice(items, 1))
    for item in items:
        yield held.pop()
        held.append(item)


def _repeat_first(items: Iterator[Any]) -> Iterator[Any]:
    for item in islice(items, 1):
        yield item
        yield item
    yield from items


def _swap_neighbours(items: Iterator[Any]) -> Iterator[Any]:
    while pair := list(islice(items, 2)):
        yield from reversed(pair)


FAULTS: Final[Mapping[str, Callable[[Iterator[Any]], Iterator[Any]]]] = {
    "drops the last item": _drop_last,
    "repeats the first": _repeat_first,
    "swaps neighbours": _swap_neighbours,
}
