"""The system's limits for this process: descriptors, address space, file sizes, processes and threads.

Read in the main process before workers start.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from stagepipe.machine.cgroup import tightest_pids_limit
from stagepipe.machine.machine import detect_machine

_TASK_LIMIT_MARGIN = 4096
"""With this much room the user's processes are not counted, because that reads a file for each of them."""

# RLIMIT_NPROC does not apply to processes with one of these capabilities, setrlimit(2).
_CAP_SYS_ADMIN = 1 << 21  # CAP_SYS_ADMIN, linux/capability.h
_CAP_SYS_RESOURCE = 1 << 24  # CAP_SYS_RESOURCE, linux/capability.h


@dataclass(frozen=True, kw_only=True)
class SystemLimits:
    """The limits of this process; None means unlimited. `free_*` is what remains beyond the current use.

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
    """The current limits. `required_tasks` is how many processes and threads the caller wants to start."""
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
