"""Decides when a process must copy what it receives because it keeps too much shared memory.

In workers and in the caller's process, on the thread that receives items.
"""

from __future__ import annotations

from collections.abc import Callable

from stagepipe.transport import SharedMemoryPool

MAX_HELD_FRACTION = 1 / 3
"""The share of the run's memory that one process may keep, so that enough stays for the pipeline."""
EXPECTED_LEASES = 4
"""Leases that any process holds: the current item, and the last few that are not released yet."""
_MANY_LEASES = 64
"""From this number of leases on, held bytes are summed up only every `_CHECK_INTERVAL_ITEMS` items."""
_CHECK_INTERVAL_ITEMS = 4


class HeldMemoryLimit:
    """Follows the bytes of all blocks that a process leases."""

    def __init__(
        self, memory: SharedMemoryPool, limit_bytes: float, on_held_bytes: Callable[[int], object] | None = None
    ) -> None:
        """`on_held_bytes` is called with the bytes that the process holds, whenever they were summed up."""
        self._memory = memory
        self._limit_bytes = limit_bytes
        self._on_held_bytes = on_held_bytes
        self.held_bytes = 0
        self._checks = 0

    def measure(self) -> bool:
        """Sum up the held bytes, which takes time for each lease. Returns whether they exceed the limit."""
        return self._update(self._memory.held_bytes())

    def check(self) -> bool:
        """Whether the limit is exceeded. For each item: it sums up only if there are leases, and less often if many."""
        lease_count = self._memory.lease_count
        self._checks += 1
        if lease_count <= EXPECTED_LEASES:
            return self._update(0)
        if lease_count < _MANY_LEASES or not self._checks % _CHECK_INTERVAL_ITEMS:
            return self.measure()
        return self.held_bytes > self._limit_bytes

    def _update(self, held_bytes: int) -> bool:
        self.held_bytes = held_bytes
        if self._on_held_bytes is not None:
            self._on_held_bytes(held_bytes)
        return held_bytes > self._limit_bytes
