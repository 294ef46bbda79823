"""Items in rounds of one a rank. Pure; used by the dealer.

A round is dealt when it is whole, so that a rank never gets an item for which another one has no match.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from stagepipe.core import Cursor
from stagepipe.plan import Even


@dataclass
class Round:
    """What each rank gets, in a box that whoever takes it out empties; the cursor is behind all of it."""

    boxes: list[list[Any]]
    cursor: Cursor | None


def rounds(items: Iterable[Any], ranks: int, even: Even | None, cursor: Callable[[], Cursor | None]) -> Iterator[Round]:
    """Item k goes to rank k % ranks. `even` says what becomes of the last round where it is not whole.

    `"drop"` leaves it out, `"pad"` gives its items once more to the ranks that have none, None deals what there is.
    `cursor` is asked behind the last item of each round.

    >>> [round.boxes for round in rounds(range(5), 3, "pad", lambda: None)]
    [[[0], [1], [2]], [[3], [4], [3]]]
    """
    boxes: list[list[Any]] = []
    for item in items:
        boxes.append([item])
        del item  # the box has the only reference
        if len(boxes) == ranks:
            yield Round(boxes, cursor())
            boxes = []
    if not boxes or even == "drop":
        return
    if even == "pad":
        had = len(boxes)
        # A copy each: what a rank gets is its own to write to.
        boxes += [[copy.deepcopy(boxes[number % had][0])] for number in range(had, ranks)]
    yield Round(boxes, cursor())
