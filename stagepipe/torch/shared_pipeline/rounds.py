"""Groups items into rounds of one item per rank. Pure; used by the dispatcher.

A round is dispatched when it is complete, so that no rank receives an item that the other ranks have no match for.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from stagepipe.core import Cursor
from stagepipe.plan import EvenMode


@dataclass
class Round:
    """One item per rank, and the cursor after all of them.

    Each box is a list that holds one item alone; the reader pops it, so that no other reference remains.
    """

    boxes: list[list[Any]]
    cursor: Cursor | None


def make_rounds(
    items: Iterable[Any], rank_count: int, even: EvenMode | None, get_cursor: Callable[[], Cursor | None]
) -> Iterator[Round]:
    """Yield rounds: item k goes to rank k % rank_count. `even` decides about an incomplete last round.

    `"drop"` leaves it out, `"pad"` repeats its items for the ranks that have none, None yields it as it is.
    `get_cursor` is called after the last item of each round.

    >>> [round_.boxes for round_ in make_rounds(range(5), 3, "pad", lambda: None)]
    [[[0], [1], [2]], [[3], [4], [3]]]
    """
    boxes: list[list[Any]] = []
    for item in items:
        boxes.append([item])
        del item  # the box has the only reference
        if len(boxes) == rank_count:
            yield Round(boxes, get_cursor())
            boxes = []
    if not boxes or even == "drop":
        return
    if even == "pad":
        item_count = len(boxes)
        # Copies, because each rank may write to its item.
        boxes += [[copy.deepcopy(boxes[rank % item_count][0])] for rank in range(item_count, rank_count)]
    yield Round(boxes, get_cursor())
