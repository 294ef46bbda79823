"""Follows a run while it goes: its workers' memory and waits, and other programs' load.

In the caller's process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from stagepipe.machine import CpuLoadMeter, cpu_delay_ns, cpu_quota, read_throttling
from stagepipe.runtime import WorkerSnapshot


@dataclass(frozen=True)
class WorkerUsage:
    """The resident and the proportional memory (RSS, PSS) of a worker, in bytes, and its time waiting for a CPU."""

    rss_bytes: int = 0
    pss_bytes: int = 0
    cpu_wait_ns: int = 0


class RunMonitor:
    """Measures the processes of one run now and then."""

    def __init__(self) -> None:
        self.usage_by_process: dict[int, WorkerUsage] = {}
        """As last measured, by process index."""
        self.other_cpus = 0.0
        """Mean number of CPUs that other programs have used during the run, as last measured."""
        self.yielding_cpus = 0.0
        """Those of them that programs of a lower priority have used."""
        self.cpu_quota = 0.0
        """CPUs that the control group may use; 0: no limit."""
        self.throttled_share = 0.0
        """Share of the quota's periods in which it was used up, as last measured."""
        self._load_meter = CpuLoadMeter()
        self._first_periods = read_throttling()

    def sample_usage(self, workers: Iterable[WorkerSnapshot]) -> None:
        """Measure each worker that runs, the load of other programs, and the use of the CPU quota.

        Call it before the workers end.
        """
        self.other_cpus = self._load_meter.measure_other_cpus()
        self.yielding_cpus = min(self._load_meter.measure_yielding_cpus(), self.other_cpus)
        self.cpu_quota = cpu_quota() or 0.0
        periods, throttled = (now - then for now, then in zip(read_throttling(), self._first_periods, strict=True))
        self.throttled_share = throttled / periods if periods > 0 else 0.0
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                memory = psutil.Process(worker.pid).memory_full_info()
                self.usage_by_process[worker.slot.process_index] = WorkerUsage(
                    memory.rss, memory.pss, cpu_delay_ns(worker.pid)
                )
