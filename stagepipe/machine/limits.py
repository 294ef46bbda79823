"""The system's limits for this process, and the resources that other processes leave. In the caller's process.

The limits are descriptors, address space, file sizes, processes and threads, read before workers start. Other processes
leave CPUs, measured over a span of time, and memory, measured now.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import clock_gettime_ns, monotonic_ns, process_time_ns

import psutil

from stagepipe.machine.cgroup import cpu_quota, free_memory_bytes, tightest_pids_limit
from stagepipe.machine.machine import cpu_time_ns, detect_machine

# ------------------------------------------------------------------ limits

_TASK_LIMIT_MARGIN = 4096
"""With this much room, the user's processes are not counted, because counting reads a file for each of them."""

# RLIMIT_NPROC does not apply to processes with one of these capabilities, setrlimit(2).
_CAP_SYS_ADMIN = 1 << 21  # CAP_SYS_ADMIN, linux/capability.h
_CAP_SYS_RESOURCE = 1 << 24  # CAP_SYS_RESOURCE, linux/capability.h


@dataclass(frozen=True, kw_only=True)
class SystemLimits:
    """The limits of this process; None means unlimited. `free_*` is the rest beyond the current use.

    `free_tasks_by_limit` has the processes and threads that may still be started, with the name and value of each
    limit.
    """

    max_memory_bytes: int
    max_fds: int | None = None
    free_fds: int | None = None
    max_address_space_bytes: int | None = None
    free_address_space_bytes: int | None = None
    max_file_bytes: int | None = None
    free_tasks_by_limit: tuple[tuple[str, int], ...] = ()


def read_system_limits(required_tasks: int = 0) -> SystemLimits:
    """The current limits. `required_tasks` is the number of processes and threads that the caller wants to start."""
    process = psutil.Process()
    max_fds = _get_soft_rlimit(resource.RLIMIT_NOFILE)
    max_address_space_bytes = _get_soft_rlimit(resource.RLIMIT_AS)
    return SystemLimits(
        max_memory_bytes=detect_machine().memory_bytes,
        max_fds=max_fds,
        free_fds=None if max_fds is None else max_fds - process.num_fds(),
        max_address_space_bytes=max_address_space_bytes,
        free_address_space_bytes=None
        if max_address_space_bytes is None
        else max_address_space_bytes - process.memory_info().vms,
        max_file_bytes=_get_soft_rlimit(resource.RLIMIT_FSIZE),
        free_tasks_by_limit=tuple(_find_free_tasks(required_tasks)),
    )


def _get_soft_rlimit(resource_id: int) -> int | None:
    soft, _ = resource.getrlimit(resource_id)
    return None if soft == resource.RLIM_INFINITY else soft


def _find_free_tasks(required_tasks: int) -> Iterator[tuple[str, int]]:
    cgroup_limit = tightest_pids_limit()
    if cgroup_limit is not None:
        max_tasks, current_tasks = cgroup_limit
        yield f"`pids.max` of the cgroup is {max_tasks}", max_tasks - current_tasks
    user_limit = _get_soft_rlimit(resource.RLIMIT_NPROC)
    if (
        user_limit is not None
        and user_limit < required_tasks + _TASK_LIMIT_MARGIN
        and not _is_exempt_from_nproc_limit()
    ):
        yield f"`ulimit -u` is {user_limit}", user_limit - _count_user_tasks()


def _is_exempt_from_nproc_limit() -> bool:
    """Whether this process may exceed RLIMIT_NPROC. psutil does not report capabilities."""
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    return os.getuid() == 0 or bool(capabilities & (_CAP_SYS_ADMIN | _CAP_SYS_RESOURCE))


def _count_user_tasks() -> int:
    """Count the threads of this user's processes."""
    processes = (process.info for process in psutil.process_iter(["uids", "num_threads"]))
    return sum(info["num_threads"] for info in processes if info["uids"] and info["uids"].real == os.getuid())


# ------------------------------------------------------------------ load

_STAT_PATH = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)
"""`idle` and `iowait`, proc_stat(5). A process, the kernel or the hypervisor used all other time."""
_NICE_FIELD = 1
"""The user time of processes with a lower priority than usual (nice above 0)."""
_BUSY_FIELDS = 8
"""The fields after `steal` are parts of `user` and `nice`."""


class CpuLoadMeter:
    """Measures the number of CPUs that other processes use, from its creation on.

    Other processes are all except this process and its descendants. Only the CPUs that this process may use count.
    Other processes of a lower priority (nice) count too, but give way.

    >>> meter = CpuLoadMeter()
    >>> meter.measure_other_cpus() >= 0
    True
    """

    def __init__(self) -> None:
        """Start measuring."""
        self._cpus = frozenset(os.sched_getaffinity(0))
        self._start_ns = monotonic_ns()
        self._start_busy_ns, self._start_niced_ns = _read_cpu_times_ns(self._cpus)
        self._start_own_ns = _read_own_ns()

    def measure_other_cpus(self) -> float:
        """Return the mean number of CPUs that others have used; 0 if the kernel does not report it.

        Call it while the descendants still run: the CPU time of ended descendants may be unknown.
        """
        elapsed_ns = monotonic_ns() - self._start_ns
        busy_ns = _read_cpu_times_ns(self._cpus)[0] - self._start_busy_ns
        own_ns = sum(ns - self._start_own_ns.get(pid, 0) for pid, ns in _read_own_ns().items())
        return min(max((busy_ns - own_ns) / max(elapsed_ns, 1), 0.0), float(len(self._cpus)))

    def measure_yielding_cpus(self) -> float:
        """Return the number of CPUs that others used at a lower priority than this process: they give way to it.

        It is 0 if this process itself has a lower priority, because the kernel then does not distinguish them.
        """
        if os.getpriority(os.PRIO_PROCESS, 0) > 0:
            return 0.0
        niced_ns = _read_cpu_times_ns(self._cpus)[1] - self._start_niced_ns
        return niced_ns / max(monotonic_ns() - self._start_ns, 1)


class CpuLoadSeries:
    """Measures repeatedly, in 0.1 ms, the CPUs that other processes use: all but this process and the given ones.

    Time that the kernel does not report, and children of the given processes, count as others.

    >>> CpuLoadSeries().measure_other_cpus([]) >= 0
    True
    """

    def __init__(self) -> None:
        """Start measuring."""
        self._cpus = frozenset(os.sched_getaffinity(0))
        self._last_ns = monotonic_ns()
        self._busy_ns = _read_cpu_times_ns(self._cpus)[0]
        self._own_ns = {os.getpid(): process_time_ns()}

    def measure_other_cpus(self, pids: Iterable[int]) -> float:
        """Return the mean number since the last call. `pids` are further processes of this run."""
        now_ns, busy_ns = monotonic_ns(), _read_cpu_times_ns(self._cpus)[0]
        own_ns = {pid: _read_cpu_clock_ns(pid) for pid in pids} | {os.getpid(): process_time_ns()}
        own_growth_ns = sum(ns - self._own_ns.get(pid, 0) for pid, ns in own_ns.items())
        others = (busy_ns - self._busy_ns - own_growth_ns) / max(now_ns - self._last_ns, 1)
        self._last_ns = now_ns
        self._busy_ns = busy_ns
        self._own_ns = own_ns
        return min(max(others, 0.0), float(len(self._cpus)))


def _read_cpu_clock_ns(pid: int) -> int:
    """Return the CPU time of a process, by its clock (clock_getcpuclockid(3)); 0 if it has ended."""
    try:
        return clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def read_own_memory_bytes(pid: int) -> int:
    """Return the resident memory of a process that it shares with no file or process; 0 if it ended."""
    try:
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except OSError:
        return 0
    return (resident - shared) * resource.getpagesize()


def compute_free_cpus(other_cpus: float) -> float:
    """Return the CPUs that remain while others use `other_cpus`, within the affinity and the quota of the cgroup."""
    free = len(os.sched_getaffinity(0)) - other_cpus
    quota = cpu_quota()
    return max(free if quota is None else min(free, quota), 0.0)


def read_free_memory_bytes() -> int:
    """Return the memory that can be used without swapping, within the limit of the cgroup."""
    available: int = psutil.virtual_memory().available
    free = free_memory_bytes()
    return available if free is None else min(available, free)


def _read_cpu_times_ns(cpus: frozenset[int]) -> tuple[int, int]:
    """The time in which these CPUs were not idle, and its part for niced processes, since boot; 0 if not reported."""
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    try:
        lines = [line.split() for line in _STAT_PATH.read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return 0, 0
    busy_ticks = niced_ticks = 0
    for name, *fields in lines:
        if name[3:].isdigit() and int(name[3:]) in cpus:
            times = [int(field) for field in fields[:_BUSY_FIELDS]]
            busy_ticks += sum(times) - sum(times[index] for index in _IDLE_FIELDS)
            niced_ticks += times[_NICE_FIELD]
    return busy_ticks * tick_ns, niced_ticks * tick_ns


def _read_own_ns() -> Mapping[int, int]:
    """The CPU time of this process and of each live descendant, including their ended children, by process id."""
    ended = os.times()
    times = {os.getpid(): process_time_ns() + int((ended.children_user + ended.children_system) * 1e9)}
    for process in psutil.Process().children(recursive=True):
        try:
            cpu_times = process.cpu_times()
        except psutil.Error:
            continue
        ended_ns = int((cpu_times.children_user + cpu_times.children_system) * 1e9)
        times[process.pid] = cpu_time_ns(process.pid) + ended_ns
    return times
