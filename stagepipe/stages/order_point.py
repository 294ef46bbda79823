"""The interface of order points: stages that turn consecutive items, in order, into groups of outputs.

An order point runs in one process, and the runtime restores the items' order before it calls `add`. After a seek a
group is repeated from its first item, so a stage must carry nothing over from one group to the next.
"""

from __future__ import annotations

import random
from typing import Any, ClassVar, Protocol, runtime_checkable


@runtime_checkable
class OrderPointStage(Protocol):
    """A stage class with `order_point = True`. `samples` counts items of the source, also through batches of batches.

    >>> from stagepipe.stages import Batch
    >>> isinstance(Batch(size=2), OrderPointStage)
    True
    """

    order_point: ClassVar[bool]
    is_permutation: ClassVar[bool]
    """Whether its outputs are exactly its input items, in another order."""

    def add(self, value: Any, samples: int) -> bool:
        """Add one item that counts as `samples` samples. True when the group is complete; `flush` is called next."""
        ...

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:
        """Return the current group's outputs as (value, samples), and discard the group. [] if there is none."""
        ...

    def finish(self, rng: random.Random) -> list[tuple[Any, int]]:
        """Return the outputs of the partial group at the end of an epoch, or [] if it is dropped."""
        ...

    def clear(self) -> None:
        """Discard the current group, because of a seek."""
        ...


def check_size(size: int, stage: str) -> int:
    """Return `size` if it is a whole number of at least 1; otherwise raise ValueError with the value seen.

    >>> check_size(8, "Batch")
    8
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"{stage}: size is {size!r}; give a whole number of at least 1")
    return size
