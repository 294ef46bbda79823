"""Order points: stages that turn consecutive items, in order, into groups of outputs, such as `Bucket` and `Shuffle`.

An order point runs in one process, and the runtime restores the order of the items before it calls `add`. After a seek,
a group is repeated from its first item, so a stage must not keep state from one group to the next.
"""

from __future__ import annotations

import operator
import random
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np

from stagepipe.core import MissingFieldError, TargetError, list_fields
from stagepipe.stages.optional_packages import check_positive


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
    """Whether the outputs are exactly the input items, the same objects, in another order."""

    items_per_output: ClassVar[int | str | None] = None
    """Number of items per output, or the name of the argument and attribute that holds it. None if the number varies;
    then the pipeline's length is unknown."""

    drop_last: bool = False
    """Whether an incomplete last group is dropped."""

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
    """Return whether the class of a built stage declares an order point."""
    return getattr(type(stage), "order_point", False) is True


def require_order_point(stage: object) -> OrderPointStage:
    """Return `stage` if it has the full interface of an order point. Raises TargetError otherwise."""
    if isinstance(stage, OrderPointStage):
        return stage
    missing = ", ".join(
        f"`{name}`"
        for name in ("is_permutation", "items_per_output", "drop_last", "add", "flush", "finish", "clear")
        if not hasattr(stage, name)
    )
    raise TargetError(
        f"{type(stage).__name__} is an order point (`order_point = True`) without {missing}; subclass "
        "stagepipe.stages.OrderPointStage, which has defaults for the attributes"
    )


def count_items_per_output(stage: OrderPointStage) -> int | None:
    """Return the number of items per output of a built order point; None if it varies."""
    count = stage.items_per_output
    return getattr(stage, count) if isinstance(count, str) else count


def measure_length(item: Any, field: str | None, stage: str) -> int:
    """Return `len` of an item or of its `field`; an integer is itself the length.

    >>> measure_length({"text": "abc"}, "text", "Bucket"), measure_length({"tokens": 7}, "tokens", "Bucket")
    (3, 7)

    Raises KeyError if there is no such field, and TypeError for a value without a length.
    """
    value = item
    if field is not None:
        if not isinstance(item, Mapping):
            raise TypeError(f"{stage}: the field `{field}` needs a dict item, but this one is a {type(item).__name__}")
        if field not in item:
            raise MissingFieldError(f"{stage}: the item has no field `{field}`; it has {list_fields(item)}")
        value = item[field]
    if field is None and isinstance(value, Mapping):
        raise TypeError(f"{stage}: the item is a dict; name the field that has the length in `field`")
    try:
        return operator.index(value) if isinstance(value, int | np.integer) else len(value)
    except TypeError:
        place = f"`{field}`" if field is not None else "the item"
        raise TypeError(
            f"{stage}: {place} is of type {type(value).__name__}, which has no length; give an array, a list, a "
            "string or the length as a number"
        ) from None


class Bucket(OrderPointStage):
    """Collect `size * batches` items, sort them by length, and yield them in runs of `size`, the runs in random order.

    A `Batch` of the same `size` turns each run into a batch of items of similar length, with little padding. Each item
    is yielded exactly once, unchanged. The first item and the seed determine a group, so a crash or a resume does not
    change the order. The last group of an epoch may be shorter; its incomplete run comes last.

    Args:
        size: items in a run, equal to the `size` of the `Batch`.
        batches: runs that are collected and sorted together. More runs need less padding and more memory.
        field: the field of a dict item that has or is the length. None: the item itself.
        shuffle: yield the runs of a group in random order. False: from short to long.

    >>> bucket = Bucket(size=2, batches=2, shuffle=False)
    >>> [bucket.add(text, 1) for text in ("aaaa", "b", "ccc", "dd")]
    [False, False, False, True]
    >>> bucket.flush(random.Random(0))
    [('b', 1), ('dd', 1), ('ccc', 1), ('aaaa', 1)]

    Raises ValueError if `size` or `batches` is not an integer of at least 1, KeyError for an item without the field,
    and TypeError for an item without a length.
    """

    is_permutation: ClassVar[bool] = True
    items_per_output: ClassVar[int | str | None] = 1

    def __init__(self, size: int, *, batches: int = 32, field: str | None = None, shuffle: bool = True) -> None:
        self.size: Final = check_positive(size, "size", "Bucket")
        self.batches: Final = check_positive(batches, "batches", "Bucket")
        self.field: Final = field
        self.shuffle: Final = shuffle
        self.clear()

    def add(self, value: Any, samples: int) -> bool:
        """Add one item; return True when the group is complete."""
        self._entries.append((measure_length(value, self.field, "Bucket"), value, samples))
        return len(self._entries) == self.size * self.batches

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:
        """Return the group's items and release them."""
        entries = sorted(self._entries, key=lambda entry: entry[0])  # stable: items of equal length keep their order
        self.clear()
        runs = [entries[start : start + self.size] for start in range(0, len(entries), self.size)]
        incomplete = [runs.pop()] if runs and len(runs[-1]) < self.size else []
        if self.shuffle:
            rng.shuffle(runs)
        return [(value, samples) for run in [*runs, *incomplete] for _, value, samples in run]

    def clear(self) -> None:
        """Discard the current group."""
        self._entries: list[tuple[int, Any, int]] = []


class Shuffle(OrderPointStage):
    """Collect a block of `size` items and yield it in random order, block after block.

    The first item and the seed determine a block, so a crash or a resume does not change the order. The last block of
    an epoch may be shorter. Each item is yielded exactly once, unchanged.

    Args:
        size: items in a block, such as `1000`, which are all in memory at once.

    >>> shuffle = Shuffle(size=3)
    >>> [shuffle.add(value, 1) for value in "abc"]
    [False, False, True]
    >>> sorted(shuffle.flush(random.Random(0)))
    [('a', 1), ('b', 1), ('c', 1)]

    Raises ValueError if `size` is not an integer of at least 1.
    """

    is_permutation: ClassVar[bool] = True
    items_per_output: ClassVar[int | str | None] = 1

    def __init__(self, size: int) -> None:
        self.size: Final = check_positive(size, "size", "Shuffle")
        self.clear()

    def add(self, value: Any, samples: int) -> bool:
        """Add one item to the block; return True when the block is full."""
        self._block.append((value, samples))
        return len(self._block) == self.size

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:
        """Return the shuffled block and release its items."""
        block = self._block
        self.clear()
        rng.shuffle(block)
        return block

    def clear(self) -> None:
        """Discard the current block."""
        self._block: list[tuple[Any, int]] = []
