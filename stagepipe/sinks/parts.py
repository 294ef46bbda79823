"""`Parts`: the order point before sinks with workers. It groups items into parts; runs in its own process."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, ValuesView
from typing import Any, ClassVar, Final

import numpy as np

from stagepipe.sinks.part import Part

_VALUE_BYTES: Final = 8
"""What a number counts as."""
_NUMBER_TYPES: Final = frozenset({int, float, bool, type(None)})


class Parts:
    """Group consecutive items into parts of at most `max_items` items; a part ends when it has `max_bytes` bytes.

    The bounds depend on the items alone, and nothing is carried over from one part to the next. So the parts are the
    same for any number of workers, after a crash and after a resume. Arrays stay in the shared memory in which they
    arrived. With `multiple`, all parts but the last have a multiple of so many items, and may exceed the bounds.

    >>> parts = Parts(max_items=2, max_bytes=100, sink_count=1)
    >>> [parts.add(item, 1) for item in (b"a", b"b")]
    [False, True]
    >>> parts.flush(random.Random(0))[0][0].read_items()
    [b'a', b'b']
    """

    order_point: ClassVar[bool] = True
    is_permutation: ClassVar[bool] = False
    items_per_output: ClassVar[int | str | None] = None
    drop_last: bool = False

    def __init__(
        self, *, max_items: int, max_bytes: int, sink_count: int, keeps_items: bool = False, multiple: int = 1
    ) -> None:
        self._max_items = max_items
        self._multiple = multiple
        self._max_bytes = max_bytes
        self._sink_count = sink_count
        self._keeps_items = keeps_items
        self._items: list[Any] = []
        self._sample_count = 0
        self._byte_count = 0

    def add(self, value: Any, samples: int) -> bool:
        """Add one item; True when the part is complete."""
        self._items.append(value)
        self._sample_count += samples
        self._byte_count += count_bytes(value)
        is_full = len(self._items) >= self._max_items or self._byte_count >= self._max_bytes
        return is_full and len(self._items) % self._multiple == 0

    def flush(self, rng: random.Random) -> list[tuple[Any, int]]:  # noqa: ARG002 - a part needs no randomness
        """Return the part; [] if it is empty."""
        items, samples = self._items, self._sample_count
        self.clear()
        if not items:
            return []
        return [(Part(items, sink_count=self._sink_count, keeps_items=self._keeps_items), samples)]

    def finish(self, rng: random.Random) -> list[tuple[Any, int]]:
        """Return the last part of an epoch."""
        return self.flush(rng)

    def clear(self) -> None:
        """Discard the part, because of a seek."""
        self._items = []
        self._sample_count = 0
        self._byte_count = 0


def count_bytes(value: Any) -> int:
    """Return about how many bytes the data of an item has. The same for equal items, wherever they lie.

    >>> import numpy as np
    >>> count_bytes({"x": np.zeros(4, np.float32), "name": "ab", "y": 1})
    26
    """
    kind = type(value)
    if kind in _NUMBER_TYPES:
        return _VALUE_BYTES
    if kind is str or kind is bytes:
        return len(value)
    if kind is np.ndarray:
        return int(value.nbytes)
    if kind is dict:
        return sum(map(count_bytes, value.values()))
    return _count_object_bytes(value)


def _count_object_bytes(value: Any) -> int:
    """Return the bytes of a value of another type than the frequent ones."""
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, Mapping):
        value = value.values()
    if isinstance(value, ValuesView | list | tuple | set | frozenset):
        return sum(map(count_bytes, value))
    if hasattr(value, "getbands"):  # a PIL image
        return int(value.width * value.height * len(value.getbands()))
    return _VALUE_BYTES
