"""Reports the blocks of older eras that a process still leases.

In workers and in the caller's process, on the thread that leases blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from stagepipe.transport import LeaseExtent, SharedMemoryPool

StaleLeaseCallback = Callable[[int, list[LeaseExtent]], None]
"""Receives the era that was entered, and the leases on blocks of older eras."""


class StaleLeaseReporter:
    """Enters eras, and reports the leases on older blocks until there are none."""

    def __init__(self, memory: SharedMemoryPool, era: int, callback: StaleLeaseCallback) -> None:
        """`era`: the era that `memory` is in now."""
        self._memory = memory
        self._callback = callback
        self.era = era
        self._reported_count = 0

    def enter_era(self, era: int) -> bool:
        """Take new blocks from the range of `era`. Returns False if `memory` is in it already."""
        if era == self.era:
            return False
        self.era = era
        self._reported_count = -1  # every era gets a report, even with as many leases as the one before
        self._memory.begin_era(era)
        return True

    def report(self) -> None:
        """Report the leases on older blocks, if their number has changed since the last report."""
        leases = self._memory.stale_leases()
        if len(leases) != self._reported_count or not leases:
            self._reported_count = len(leases)
            self._callback(self.era, leases)

    def report_if_any(self) -> None:
        """`report` while leases are left. Costs next to nothing when there are none."""
        if self._reported_count:
            self.report()
