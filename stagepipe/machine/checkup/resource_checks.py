"""What this process may use: CPUs, memory, descriptors, tasks, the cgroup. In the process of `stagepipe doctor`."""

from __future__ import annotations

import os
import time
from typing import Final

from stagepipe.core import format_bytes
from stagepipe.machine.cgroup import cpu_quota, memory_limit_bytes, oom_kill_count, read_throttling
from stagepipe.machine.checkup.health_check import HealthCheck, failed, passed, warned
from stagepipe.machine.limits import read_system_limits
from stagepipe.machine.load import CpuLoadMeter, compute_free_cpus, read_free_memory_bytes
from stagepipe.machine.machine import detect_machine

_LOAD_SPAN_S: Final = 0.5
_MIN_FREE_CPUS: Final = 1.0
_MIN_FREE_BYTES: Final = 1 << 30
"""Some workers with NumPy; torch takes more."""
_USABLE_FREE_BYTES: Final = 64 << 20
_MIN_FDS, _COMFORTABLE_FDS = 100, 500
"""What a run of 4 and of 40 workers takes: 10 a worker, 2 a hop, and 40."""
_MIN_TASKS, _COMFORTABLE_TASKS = 30, 200
"""What 4 and 40 workers take, with some threads of their own."""
_MAX_THROTTLED: Final = 0.05
"""The share of periods in which the quota was used up: more is a visible loss."""


def check_cpus() -> HealthCheck:
    """Measure for half a second how many CPUs other processes leave."""
    meter = CpuLoadMeter()
    time.sleep(_LOAD_SPAN_S)
    usable = len(os.sched_getaffinity(0))
    free = compute_free_cpus(meter.measure_other_cpus())
    text = f"{free:.1f} of {usable} CPUs free"
    if free < min(_MIN_FREE_CPUS, usable / 2):
        return warned("CPUs", text, "end other processes, or expect slower stages and misleading reports")
    return passed("CPUs", text)


def check_memory() -> HealthCheck:
    """Read the memory that can be used now."""
    free, total = read_free_memory_bytes(), detect_machine().memory_bytes
    text = f"{format_bytes(free)} of {format_bytes(total)} free"
    if free < _USABLE_FREE_BYTES:
        return failed("memory", text, "end other processes, or raise the limit of the container")
    if free < _MIN_FREE_BYTES:
        return warned("memory", text, "set `memory: 256MB` and few `workers` in the config, or free memory")
    return passed("memory", text)


def check_cgroup() -> HealthCheck:
    """Read the limits of the control group, and whether they were hit."""
    limit, quota, kills = memory_limit_bytes(), cpu_quota(), oom_kill_count()
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    periods, throttled = read_throttling()
    parts = [
        "no memory limit" if limit is None or limit >= machine_bytes else f"memory limit {format_bytes(limit)}",
        "no CPU quota" if quota is None else f"quota of {quota:g} CPUs",
    ]
    if periods and throttled / periods > _MAX_THROTTLED:
        text = ", ".join([*parts, f"used up in {throttled / periods:.0%} of its periods"])
        return warned("cgroup", text, "raise the CPU quota of the container, or set fewer `workers`")
    if quota is not None and quota < 1:
        return warned("cgroup", ", ".join(parts), "raise the CPU quota of the container: all workers share it")
    return passed("cgroup", ", ".join([*parts, *([f"{kills} processes killed for memory"] if kills else [])]))


def check_descriptors() -> HealthCheck:
    """Read how many file descriptors are left, and the limits on addresses and files."""
    name, limits = "descriptors", read_system_limits()
    if limits.max_fds is None or limits.free_fds is None:
        return passed(name, "unlimited")
    text = f"{limits.free_fds:,} of {limits.max_fds:,} free"
    fix = f"ulimit -n {max(4096, limits.max_fds * 4)}"
    if limits.free_fds < _MIN_FDS:
        return failed(name, text, fix)
    return warned(name, text, fix) if limits.free_fds < _COMFORTABLE_FDS else passed(name, text)


def check_tasks() -> HealthCheck:
    """Read how many processes and threads may still be started."""
    found = read_system_limits(_COMFORTABLE_TASKS).free_tasks_by_limit
    if not found:
        return passed("processes", "no limit near")
    limit, free = min(found, key=lambda pair: pair[1])
    text = f"{max(free, 0):,} more processes and threads ({limit})"
    fix = "raise the limit, or set fewer `workers` and fuse stages"
    if free < _MIN_TASKS:
        return failed("processes", text, fix)
    return warned("processes", text, fix) if free < _COMFORTABLE_TASKS else passed("processes", text)
