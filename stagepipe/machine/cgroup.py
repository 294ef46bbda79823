"""The limits of this process's control group, and the number of processes that the kernel killed to free memory.

Reads cgroup version 2 (https://docs.kernel.org/admin-guide/cgroup-v2.html) and version 1, for the process's own group
and its parents; psutil supports neither. Runs in the main process.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_VMSTAT_PATH = Path("/proc/vmstat")


def memory_limit_bytes() -> int | None:
    """The lowest memory limit of the group and its parents, in bytes; None without a limit."""
    limits = []
    for folder in _controller_dirs("memory"):
        with contextlib.suppress(OSError, ValueError):  # `max` means no limit
            limits.append(_read_first_int(folder, "memory.max", "memory.limit_in_bytes"))
    return min(limits, default=None)


def free_memory_bytes() -> int | None:
    """The memory left below the limit of the group or a parent; None without a limit. Page cache counts as free."""
    free = []
    for folder in _controller_dirs("memory"):
        with contextlib.suppress(OSError, ValueError):
            limit = _read_first_int(folder, "memory.max", "memory.limit_in_bytes")
            used = _read_first_int(folder, "memory.current", "memory.usage_in_bytes")
            free.append(limit - used + _read_count(folder / "memory.stat", "inactive_file"))
    return min(free, default=None)


def cpu_quota() -> float | None:
    """The CPUs that the group and its parents may use, as a mean over time; None without a quota."""
    quotas = []
    for folder in _controller_dirs("cpu"):
        with contextlib.suppress(OSError, ValueError):  # `max` means no quota
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def read_throttling() -> tuple[int, int]:
    """(periods, throttled periods) of the group or parent that used up its CPU quota most often; (0, 0) without one.

    In a throttled period, all processes of the group stop until the next period.
    """
    counts = []
    for folder in _controller_dirs("cpu"):
        with contextlib.suppress(OSError, ValueError):
            periods, throttled = (_read_count(folder / "cpu.stat", name) for name in ("nr_periods", "nr_throttled"))
            counts.append((periods, throttled))
    return max(counts, key=lambda count: count[1], default=(0, 0))


def oom_kill_count() -> int | None:
    """The number of processes that the kernel killed because memory ran out: in this group, or else on the machine.

    None if the kernel does not report it.
    """
    folders = _controller_dirs("memory")
    files = (folder / name for folder in folders for name in ("memory.events", "memory.oom_control"))
    for file in itertools.chain(files, [_VMSTAT_PATH]):
        with contextlib.suppress(OSError, ValueError):
            return _read_count(file, "oom_kill")
    return None


def tightest_pids_limit() -> tuple[int, int] | None:
    """(limit, in use) of processes and threads, for the group or parent with the fewest left; None without a limit."""
    limits = []
    for folder in _controller_dirs("pids"):
        with contextlib.suppress(OSError, ValueError):
            limits.append((int((folder / "pids.max").read_text()), int((folder / "pids.current").read_text())))
    return min(limits, key=lambda limit: limit[0] - limit[1], default=None)


def _read_count(path: Path, name: str) -> int:
    """The count in the line `name count` of a file. Raises OSError or ValueError if there is none."""
    for line in path.read_text().splitlines():
        key, _, count = line.partition(" ")
        if key == name:
            return int(count)
    message = f"{path} has no line {name}"
    raise ValueError(message)


def _read_first_int(folder: Path, *names: str) -> int:
    """The integer in the first of these files that exists. Raises OSError or ValueError."""
    return int(next((folder / name for name in names if (folder / name).exists()), folder / names[-1]).read_text())


def _controller_dirs(controller: str) -> Iterator[Path]:
    """The folders of this process's group for `controller`, from its own up to the root."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            mount = _CGROUP_ROOT / controller if controllers else _CGROUP_ROOT
            group = mount / path.lstrip("/")
            while group.is_relative_to(mount):
                yield group
                if group == mount:
                    break
                group = group.parent
