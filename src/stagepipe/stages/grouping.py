"""What an order point is to the runtime: a stage that turns a run of items, in order, into a group of outputs.

An order point is one process; the runtime restores the items' order before it calls `add`. A group is the smallest
thing that can be made again after a seek, so a grouping remembers nothing from one group to the next.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar, Protocol, runtime_checkable


@runtime_checkable
class Grouping(Protocol):
    """A stage class with `order_point = True`. `samples` counts what the source gave, through batches of batches.

    >>> from stagepipe.stages import Batch
    >>> isinstance(Batch(size=2), Grouping)
    True
    """

    order_point: ClassVar[bool]
    keeps_items: ClassVar[bool]
    """Whether its outputs are the items that it took, one for one, in another order."""

    def add(self, value: Any, samples: int) -> bool:
        """Take one item that stands for `samples` samples; True when the group is complete and wants `flush`."""
        ...

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:
        """The outputs of the group begun so far, as (value, samples); the group is forgotten, [] if there is none."""
        ...

    def finish(self, rng: random.Random) -> list[tuple[Any, int]]:
        """What is left at an epoch's end: the partial group, or [] where that is dropped."""
        ...

    def clear(self) -> None:
        """Forget the group begun: a seek goes elsewhere."""
        ...


def checked_size(size: int, stage: str) -> int:
    """`size` if it is a whole number of at least 1, else ValueError with the value seen.

    >>> checked_size(8, "Batch")
    8
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"{stage}: size is {size!r}; give a whole number of at least 1")
    return size
