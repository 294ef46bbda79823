"""The interface of order points: stages that turn consecutive items, in order, into groups of outputs.

An order point runs in one process, and the runtime restores the items' order before it calls `add`. After a seek a
group is repeated from its first item, so a stage must carry nothing over from one group to the next.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import Any, ClassVar, Protocol, runtime_checkable

from stagepipe.core import TargetError


@runtime_checkable
class OrderPointStage(Protocol):
    """An order point: a class with `order_point = True` and the methods below. Subclass this one to write your own.

    The planner reads the class attributes from the source file, without importing it, so they must be constants.
    `samples` counts items of the source, also through batches of batches. With `order: any`, a group must have one
    output, unless `is_permutation`.

    >>> class Pairs(OrderPointStage):
    ...     items_per_output = 2
    ...
    ...     def __init__(self):
    ...         self.clear()
    ...
    ...     def add(self, value, samples):
    ...         self.group.append((value, samples))
    ...         return len(self.group) == 2
    ...
    ...     def flush(self, rng):
    ...         group = self.group
    ...         self.clear()
    ...         return [(tuple(value for value, _ in group), sum(samples for _, samples in group))] if group else []
    ...
    ...     def clear(self):
    ...         self.group = []
    >>> pairs = Pairs()
    >>> [pairs.add(value, 1) for value in "ab"], pairs.flush(random.Random(0))
    ([False, True], [(('a', 'b'), 2)])
    """

    order_point: ClassVar[bool] = True
    is_permutation: ClassVar[bool] = False
    """Whether its outputs are exactly its input items, the same objects, in another order."""

    items_per_output: ClassVar[int | str | None] = None
    """How many items become one output: a number, or the name of the argument and attribute that holds it. None if that
    is not fixed; then the pipeline's length is unknown."""

    drop_last: bool = False
    """Whether a last group that is not complete is dropped."""

    @abstractmethod
    def add(self, value: Any, samples: int) -> bool:
        """Add one item that counts as `samples` samples. True when the group is complete; `flush` is called next."""

    @abstractmethod
    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:
        """Return the current group's outputs as (value, samples), and discard the group. [] if there is none."""

    def finish(self, rng: random.Random) -> list[tuple[Any, int]]:
        """Return the outputs of the partial group at the end of an epoch, or [] if it is dropped."""
        if self.drop_last:
            self.clear()
        return self.flush(rng)

    @abstractmethod
    def clear(self) -> None:
        """Discard the current group, because of a seek."""


def declares_order_point(stage: object) -> bool:
    """Return whether the class of a built stage says that it is an order point."""
    return getattr(type(stage), "order_point", False) is True


def require_order_point(stage: object) -> OrderPointStage:
    """Return `stage` if it has all of an order point. Raises TargetError otherwise."""
    if isinstance(stage, OrderPointStage):
        return stage
    missing = ", ".join(
        f"`{name}`"
        for name in ("is_permutation", "items_per_output", "drop_last", "add", "flush", "finish", "clear")
        if not hasattr(stage, name)
    )
    message = (
        f"{type(stage).__name__} is an order point (`order_point = True`) without {missing}; subclass "
        "stagepipe.stages.OrderPointStage, which has defaults for the attributes"
    )
    raise TargetError(message)


def count_items_per_output(stage: OrderPointStage) -> int | None:
    """Return how many items become one output of a built order point; None if that is not fixed."""
    count = stage.items_per_output
    return getattr(stage, count) if isinstance(count, str) else count


def check_size(size: int, stage: str) -> int:
    """Return `size` if it is a whole number of at least 1; otherwise raise ValueError with the value seen.

    >>> check_size(8, "Batch")
    8
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"{stage}: size is {size!r}; give a whole number of at least 1")
    return size
