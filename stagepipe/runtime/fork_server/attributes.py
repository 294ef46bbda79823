"""What a spawned worker inherits from the caller, read in the caller and set in a forked worker."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Final

import msgspec

_LIMIT_NAMES: Final = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))


class CallerAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes of the calling process and thread that a worker can set for itself."""

    umask: int
    cpus: list[int]
    blocked_signals: list[int]
    limits: dict[str, tuple[int, int]]


class FixedAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes that a process without privileges cannot set for itself: a server that differs in one cannot serve."""

    executable: str
    user_ids: tuple[int, ...]
    niceness: int
    scheduler: int
    cgroup: str
    oom_score_adjustment: str


def read_caller_attributes() -> CallerAttributes:
    """Return the attributes of this process and thread as they are now."""
    return CallerAttributes(
        umask=_read_umask(),
        cpus=sorted(os.sched_getaffinity(0)),
        blocked_signals=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        limits={name: resource.getrlimit(getattr(resource, name)) for name in _LIMIT_NAMES},
    )


def apply_caller_attributes(attributes: CallerAttributes) -> None:
    """Give this process and thread the attributes. Raises OSError or ValueError where the system refuses."""
    os.umask(attributes.umask)
    os.sched_setaffinity(0, attributes.cpus)
    signal.pthread_sigmask(signal.SIG_SETMASK, attributes.blocked_signals)
    for name, limit in attributes.limits.items():
        if resource.getrlimit(getattr(resource, name)) != tuple(limit):
            resource.setrlimit(getattr(resource, name), limit)


def read_fixed_attributes(executable: str) -> FixedAttributes:
    """Return the attributes that a server has from this process at its start, for good."""
    return FixedAttributes(
        executable=executable,
        user_ids=(*os.getresuid(), *os.getresgid(), *os.getgroups()),
        niceness=os.getpriority(os.PRIO_PROCESS, 0),
        scheduler=os.sched_getscheduler(0),
        cgroup=_read_text("/proc/self/cgroup"),
        oom_score_adjustment=_read_text("/proc/self/oom_score_adj"),
    )


def _read_umask() -> int:
    """Read the umask without changing it: `os.umask` would change it for other threads."""
    for line in _read_text("/proc/self/status").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022  # Linux before 4.7


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
