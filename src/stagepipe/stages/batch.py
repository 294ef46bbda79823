"""`Batch`: items collated into one, each copied into its place as it comes. An order point; runs in its own process."""

from __future__ import annotations

import random
from typing import Any, ClassVar, Final

from stagepipe.stages.column import column_for
from stagepipe.stages.grouping import checked_size
from stagepipe.stages.leaf import Column


class Batch:
    """Collate `size` items into one value of the same structure, with a first axis of length `size`.

    At a group's first item every leaf gets its outgoing array from `stagepipe.empty`; each item is copied in as it is
    added and let go of at once, so that a batch holds no more inputs than one, and leaves without a copy.

    Structures: dict and other mappings, tuple, namedtuple, list, dataclass, to any depth. Leaves become

    - NumPy arrays and scalars of any dtype: an array `(size, *shape)` of that dtype; object arrays: a list of them;
    - torch tensors, and tv_tensors: a plain CPU tensor `(size, *shape)` of their dtype;
    - Python `bool`, `int`, `float`: arrays of `bool`, `int64`, `float64`;
    - all else (str, bytes, None, PIL images): a list.

    As `torch.utils.data.default_collate` does, except that arrays stay arrays. The last group of an epoch may be
    shorter; `drop_last` drops it. Raises ValueError, with the field's path, when items differ in structure, keys, shape
    or dtype.

    >>> batch = Batch(size=2)
    >>> batch.add({"x": 1, "name": "a"}, samples=1)
    False
    >>> batch.add({"x": 2, "name": "b"}, samples=1)
    True
    >>> batch.flush(random.Random(0))
    [({'x': array([1, 2]), 'name': ['a', 'b']}, 2)]
    """

    order_point: ClassVar[bool] = True
    keeps_items: ClassVar[bool] = False

    def __init__(self, size: int, *, drop_last: bool = False) -> None:
        self.size: Final = checked_size(size, "Batch")
        self.drop_last: Final = drop_last
        self._root: Column | None = None
        self._rows = 0
        self._samples = 0

    def add(self, value: Any, samples: int) -> bool:
        """Copy one item into its row; True when the batch is full. An item that raises here leaves no trace."""
        if self._root is None:
            self._root = column_for(value, self.size)
        self._root.put(self._rows, value)
        self._rows += 1
        self._samples += samples
        return self._rows == self.size

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:  # noqa: ARG002 - a batch draws nothing
        """The batch begun so far, which may be shorter than `size`; this object then holds none of its arrays."""
        root, rows, samples = self._root, self._rows, self._samples
        self.clear()
        return [] if root is None or rows == 0 else [(root.take(rows), samples)]

    def finish(self, rng: random.Random) -> list[tuple[Any, int]]:
        """The partial batch of an epoch's end, or [] with `drop_last`."""
        if self.drop_last:
            self.clear()
        return self.flush(rng)

    def clear(self) -> None:
        """Forget the batch begun."""
        self._root = None
        self._rows = 0
        self._samples = 0
