"""The CPU time of a process, and its time waiting for a CPU, as the scheduler reports them. Runs in any process.

psutil has the CPU time in steps of 10 ms, longer than most items take, and does not have the wait.
"""

from __future__ import annotations

from pathlib import Path


def cpu_delay_ns(pid: int) -> int:
    """The time that a process's main thread was runnable but had no CPU, in ns; 0 if the kernel does not report it."""
    return _read_schedstat(Path(f"/proc/{pid}/schedstat"))[1]


def cpu_time_ns(pid: int) -> int:
    """The CPU time of all threads of a live process, in ns; 0 if the kernel does not report it."""
    return sum(_read_schedstat(path)[0] for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def _read_schedstat(path: Path) -> tuple[int, int]:
    """(time on a CPU, time waiting for one) in ns, see https://docs.kernel.org/scheduler/sched-stats.html."""
    try:
        on_cpu_ns, waiting_ns, *_ = path.read_text().split()
        return int(on_cpu_ns), int(waiting_ns)
    except (OSError, ValueError):
        return 0, 0
