"""The processor time and the memory of a process and of all its descendants."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Self

import psutil


def list_descendant_pids() -> set[int]:
    """Return the ids of all processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def list_tracker_pids() -> set[int]:
    """Return the ids of Python's resource trackers, which work for every user of SharedMemory."""
    pids = set()
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if "resource_tracker" in " ".join(child.cmdline()):
                pids.add(child.pid)
    return pids


def find_cpu_clock(pid: int) -> int:
    """Return the clock of a process's CPU time, to the nanosecond; psutil's has ticks of 10 ms.

    As clock_getcpuclockid(3): Linux derives its number from the process id.
    """
    return ~pid << 3 | 2


class CpuClocks:
    """The processor time of this process and of chosen others: cheap enough for a burst.

    Of a process that has ended, the last reading stands.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        """`pids` are those of the others."""
        self._last_ns = dict.fromkeys(map(find_cpu_clock, pids), 0)

    def read_ns(self) -> int:
        """Return the processor time of all threads together, in nanoseconds."""
        for clock in self._last_ns:
            with suppress(OSError):
                self._last_ns[clock] = time.clock_gettime_ns(clock)
        return time.process_time_ns() + sum(self._last_ns.values())


def measure_ended_children_s() -> float:
    """Return the processor time of all ended descendants: each was waited for, also by its own parent."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class CpuMeter:
    """The processor time of this process and its descendants since the meter was made, in seconds.

    A process that has ended counts by what its parent has collected of it (`getrusage(2)`, RUSAGE_CHILDREN), one whose
    parent has not yet, not at all.
    """

    def __init__(self) -> None:
        self._begin_s = _measure_cpu_s()

    def measure_s(self) -> float:
        return _measure_cpu_s() - self._begin_s


def _measure_cpu_s() -> float:
    total_s = time.process_time() + _children_s(psutil.Process())
    for child in psutil.Process().children(recursive=True):
        try:
            total_s += time.clock_gettime(find_cpu_clock(child.pid)) + _children_s(child)
        except (OSError, psutil.Error):
            continue
    return total_s


def _children_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.children_user + times.children_system)


class TreeClocks:
    """Wall and CPU time of this process and all below it, also of those that end meanwhile, up to their last sample.

    `CpuMeter` does not do for Ray: nobody collects the time of a worker that has ended.
    """

    def __init__(self) -> None:
        self._begin_s = self._read()
        self._last_s = dict(self._begin_s)
        self._wall_s = time.perf_counter()
        self._caller_s = time.process_time()

    def sample(self) -> None:
        """Read the clocks of all processes that live."""
        self._last_s |= self._read()

    def measure(self) -> tuple[float, float, float]:
        """Return the wall seconds, the CPU seconds of all, and those of this process, since the start."""
        wall_s, caller_s = time.perf_counter() - self._wall_s, time.process_time() - self._caller_s
        self.sample()
        below_s = sum(last_s - self._begin_s.get(key, 0.0) for key, last_s in self._last_s.items())
        return wall_s, below_s + caller_s, caller_s

    @staticmethod
    def _read() -> dict[tuple[int, float], float]:
        found = {}
        for child in psutil.Process().children(recursive=True):
            with suppress(OSError, psutil.Error):
                found[child.pid, child.create_time()] = time.clock_gettime(find_cpu_clock(child.pid))
        return found


def measure_pss_bytes() -> int:
    """Return the proportional set size of this process and its descendants: a page that n share counts 1/n in each.

    From /proc/PID/smaps_rollup (proc_pid_smaps(5)). A process that has ended meanwhile counts 0.
    """
    return sum(_measure_pss(pid) for pid in (os.getpid(), *list_descendant_pids()))


class PssSampler:
    """Samples the proportional set size of processes in a thread. Run it in another process than what is measured.

    with PssSampler(lambda: [process.pid for process in found], period_s=0.25) as sampler:
        ...
    sampler.find_peak_bytes(from_s=begin_s)
    """

    def __init__(self, list_pids: Callable[[], Iterable[int]], period_s: float) -> None:
        """`list_pids` returns the processes of the moment."""
        self._list_pids = list_pids
        self._period_s = period_s
        self._samples: list[tuple[float, int]] = []
        self._stopped = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after the sample in progress."""
        self._stopped.set()
        self._thread.join()

    def find_peak_bytes(self, from_s: float) -> int:
        """Return the largest sum over the processes since a time of `time.monotonic`; 0 if there is no sample."""
        return max((size for time_s, size in self._samples if time_s >= from_s), default=0)

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            now_s = time.monotonic()
            self._samples.append((now_s, sum(map(_measure_pss, self._list_pids()))))


def _measure_pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
