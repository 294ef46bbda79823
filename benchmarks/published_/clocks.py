"""Processor seconds and peak memory of both sides: of this process and of all that belong to its contestant."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_RESET_PEAK = "5"
"""proc(5), /proc/pid/clear_refs: the peak of the resident memory begins anew."""


class Sides:
    """The processes of a contestant, as they are after its warm-up."""

    def __init__(self, own: int, others: Iterable[int]) -> None:
        """`own` process id, and those of the other processes."""
        self._pids = [own, *others]
        # The clock of another process, to the nanosecond: clock_getcpuclockid(3) makes it from the process id.
        self._last = dict.fromkeys((~pid << 3 | 2 for pid in self._pids), 0)

    def cpu_ns(self) -> int:
        """Of all threads of all of them, and of the children that this process has waited for."""
        for clock in self._last:
            with suppress(OSError):  # it has ended: what was last read is what it took
                self._last[clock] = time.clock_gettime_ns(clock)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return sum(self._last.values()) + round((ended.ru_utime + ended.ru_stime) * 1e9)

    def reset_peak(self) -> None:
        """From here on."""
        for pid in self._pids:
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)

    def peak_bytes(self) -> int:
        """The sum of everybody's peak since `reset_peak`; 0 where the system does not tell."""
        return sum(map(_peak_bytes, self._pids))


def _peak_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
