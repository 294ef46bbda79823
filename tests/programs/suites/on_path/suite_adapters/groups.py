"""Groups of items by a function of the caller: a list, or what the library's own collate function makes of one."""

from __future__ import annotations

from typing import Any

from stagepipe.stages import OrderPointStage


class Groups(OrderPointStage):
    """Groups `size` items. `Batch` would stack them."""

    order_point = True
    items_per_output = "size"

    def __init__(self, size: int, drop_last: bool, function: Any = None) -> None:
        self.size = size
        self.drop_last = drop_last
        self._function = function
        self.clear()

    def add(self, value: Any, samples: int) -> bool:
        self._group.append(value)
        self._samples += samples
        return len(self._group) == self.size

    def flush(self, rng: Any) -> list[tuple[Any, int]]:
        group, samples = self._group, self._samples
        self.clear()
        return [(self._function(group) if self._function else group, samples)] if group else []

    def clear(self) -> None:
        self._group: list[Any] = []
        self._samples = 0
