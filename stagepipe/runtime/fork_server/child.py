"""Makes a freshly forked process a worker's: what a spawned worker would have, it has too. In the new process."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy.random

from stagepipe.core import bind_lifetime, exit_if_orphaned
from stagepipe.runtime.fork_server.attributes import apply_caller_attributes
from stagepipe.runtime.fork_server.messages import ForkRequest


@dataclass(frozen=True)
class ForkedLaunch:
    """What a forked worker starts with. `fds` gives its own descriptor for each of the caller's."""

    spec_fd: int
    crash_log_fd: int
    fds: Mapping[int, int]


def become_worker(request: ForkRequest, fds: Mapping[int, int]) -> ForkedLaunch:
    """Set up this process. `fds`: its own descriptor for each number in the request."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    lifetime_fd = fds[request.lifetime_fd]
    bind_lifetime(lifetime_fd, os.getpid())
    exit_if_orphaned(lifetime_fd)  # after the binding, so that no moment is left between them
    _set_output(fds[request.output_fd])
    os.fchdir(fds[request.folder_fd])
    for fd in fds.values():
        os.set_inheritable(fd, True)  # as those of a spawned worker
    for used in (request.output_fd, request.folder_fd):
        os.close(fds[used])
    apply_caller_attributes(request.attributes)
    _set_environment(request.environment)
    importlib.invalidate_caches()
    _seed_generators()
    if request.thread_count > 1:
        _set_thread_count(request.thread_count)
    return ForkedLaunch(fds[request.spec_fd], fds[request.crash_log_fd], fds)


def _set_output(fd: int) -> None:
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    # The server's are for /dev/null, in which one can seek.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - open to the end
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _set_environment(entries: list[bytes]) -> None:
    wanted = dict(entry.split(b"=", 1) for entry in entries)
    for name in set(os.environb) - set(wanted):
        del os.environb[name]
    for name, value in wanted.items():
        if os.environb.get(name) != value:
            os.environb[name] = value
    time.tzset()


def _seed_generators() -> None:
    """Seed from the system, as an import does: all forks have the server's state. Python seeds its own at a fork."""
    numpy.random.seed()  # noqa: NPY002 - the one that stages draw from
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _set_thread_count(count: int) -> None:
    """Set the threads of the libraries that are loaded already. Others read the environment when they are loaded."""
    from threadpoolctl import threadpool_limits  # only here: most workers have one thread

    threadpool_limits(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
