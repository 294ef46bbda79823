"""The limits of this process's control group, and how many of its processes the kernel killed to free memory.

Reads cgroup version 2 (https://docs.kernel.org/admin-guide/cgroup-v2.html) and version 1, for the process's own group
and its parents; psutil knows neither. Runs in the main process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_VMSTAT_PATH = Path("/proc/vmstat")


def memory_limit_bytes() -> int | None:
    """The lowest memory limit of the group and its parents, in bytes; None without a limit."""
    limits = []
    for folder in _controller_dirs("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # `max` means no limit
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def oom_kill_count() -> int | None:
    """How many processes the kernel has killed because memory ran out: in this group, or else on the machine.

    None if the kernel does not report it.
    """
    for folder in _controller_dirs("memory"):
        for name in ("memory.events", "memory.oom_control"):
            count = _read_oom_kills(folder / name)
            if count is not None:
                return count
    return _read_oom_kills(_VMSTAT_PATH)


def tightest_pids_limit() -> tuple[int, int] | None:
    """(limit, in use) of processes and threads, for the group or parent with the fewest left; None without a limit."""
    limits = []
    for folder in _controller_dirs("pids"):
        with contextlib.suppress(OSError, ValueError):
            limits.append((int((folder / "pids.max").read_text()), int((folder / "pids.current").read_text())))
    return min(limits, key=lambda limit: limit[0] - limit[1], default=None)


def _read_oom_kills(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return None


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
