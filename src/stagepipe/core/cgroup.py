"""What the control group of this process allows it, and how often the kernel has ended one of it for want of memory.

Version 2 (https://docs.kernel.org/admin-guide/cgroup-v2.html) and version 1, of one's own group and those above it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_VMSTAT = Path("/proc/vmstat")


def memory_limit_bytes() -> int | None:
    """The smallest limit that applies; None where there is none."""
    limits = []
    for folder in _folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # `max` is none
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def out_of_memory_kills() -> int | None:
    """How many processes the kernel has killed because memory ran out: in this group, else on the machine."""
    for folder in _folders("memory"):
        for name in ("memory.events", "memory.oom_control"):
            count = _counted(folder / name)
            if count is not None:
                return count
    return _counted(_VMSTAT)


def tasks_limit() -> tuple[int, int] | None:
    """How many processes and threads it may have, and how many it has, where least are left; None: no limit."""
    found = []
    for folder in _folders("pids"):
        with contextlib.suppress(OSError, ValueError):
            found.append((int((folder / "pids.max").read_text()), int((folder / "pids.current").read_text())))
    return min(found, key=lambda pair: pair[0] - pair[1], default=None)


def _counted(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            word, _, count = line.partition(" ")
            if word == "oom_kill":
                return int(count)
    return None


def _folders(controller: str) -> Iterator[Path]:
    """The folders of this process's group of `controller`, from its own to the root's."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            mount = _MOUNT / controller if controllers else _MOUNT
            group = mount / path.lstrip("/")
            while group.is_relative_to(mount):
                yield group
                if group == mount:
                    break
                group = group.parent
