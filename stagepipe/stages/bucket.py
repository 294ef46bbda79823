"""`Bucket`: brings items of similar length together, for `Batch` with `pad`. An order point; in its own process."""

from __future__ import annotations

import random
from typing import Any, ClassVar, Final

from stagepipe.stages.item_length import measure_length
from stagepipe.stages.optional_packages import check_positive
from stagepipe.stages.order_point import OrderPointStage, check_size


class Bucket(OrderPointStage):
    """Collect `size * batches` items, sort them by length, and yield them in runs of `size`, the runs in random order.

    A `Batch` of the same `size` after it makes one batch of each run: its items are of similar length, so there is
    little to pad. Each item is yielded exactly once, unchanged. A group can be repeated from its first item and the
    seed alone, and nothing is carried over to the next one: a crash or a resume does not change the order. The last
    group of an epoch may be shorter; its incomplete run comes last.

    Args:
        size: items in a run: the `size` of the `Batch` after it.
        batches: how many runs are collected and sorted together. More pads less, and holds more items in memory.
        field: the field of a dict item that has the length, or that is it. None: the item itself.
        shuffle: yield the runs of a group in random order; otherwise from short to long.

    >>> bucket = Bucket(size=2, batches=2, shuffle=False)
    >>> [bucket.add(text, 1) for text in ("aaaa", "b", "ccc", "dd")]
    [False, False, False, True]
    >>> bucket.flush(random.Random(0))
    [('b', 1), ('dd', 1), ('ccc', 1), ('aaaa', 1)]

    Raises ValueError if `size` or `batches` is no whole number of at least 1, KeyError for an item without the field,
    and TypeError for one without a length.
    """

    is_permutation: ClassVar[bool] = True
    items_per_output: ClassVar[int | str | None] = 1

    def __init__(self, size: int, *, batches: int = 32, field: str | None = None, shuffle: bool = True) -> None:
        self.size: Final = check_size(size, "Bucket")
        self.batches: Final = check_positive(batches, "batches", "Bucket")
        self.field: Final = field
        self.shuffle: Final = shuffle
        self.clear()

    def add(self, value: Any, samples: int) -> bool:
        """Add one item; True when the group is complete."""
        self._entries.append((measure_length(value, self.field, "Bucket"), value, samples))
        return len(self._entries) == self.size * self.batches

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:
        """Return the group's items, and drop every reference to them."""
        entries = sorted(self._entries, key=lambda entry: entry[0])  # stable: items of one length keep their order
        self.clear()
        runs = [entries[start : start + self.size] for start in range(0, len(entries), self.size)]
        incomplete = [runs.pop()] if runs and len(runs[-1]) < self.size else []
        if self.shuffle:
            rng.shuffle(runs)
        return [(value, samples) for run in [*runs, *incomplete] for _, value, samples in run]

    def clear(self) -> None:
        """Discard the current group."""
        self._entries: list[tuple[int, Any, int]] = []
