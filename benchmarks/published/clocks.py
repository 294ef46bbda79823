"""Processor seconds and peak memory of both sides: of this process and of its contestant's other processes."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_RESET_PEAK = "5"
"""Written to /proc/pid/clear_refs, it resets the peak of the resident memory (proc(5))."""


class ContestantProcesses:
    """The processes of a contestant after its warm-up."""

    def __init__(self, own: int, others: Iterable[int]) -> None:
        """`own` is the id of this process; `others` are those of the other processes."""
        self._pids = [own, *others]
        # The nanosecond clock of another process; clock_getcpuclockid(3) derives it from the process id.
        self._last_ns = dict.fromkeys((~pid << 3 | 2 for pid in self._pids), 0)

    def cpu_ns(self) -> int:
        """Return the time of all threads of all processes, and of the children that this process has waited for."""
        for clock in self._last_ns:
            with suppress(OSError):  # it has ended: the last reading stands
                self._last_ns[clock] = time.clock_gettime_ns(clock)
        ended_children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return sum(self._last_ns.values()) + round((ended_children.ru_utime + ended_children.ru_stime) * 1e9)

    def reset_peak(self) -> None:
        """Start a new measurement of the peak memory."""
        for pid in self._pids:
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)

    def peak_bytes(self) -> int:
        """Return the sum of the processes' peaks since `reset_peak`, or 0 if the system does not report them."""
        return sum(map(_peak_bytes, self._pids))


def _peak_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
