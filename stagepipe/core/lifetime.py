"""Binds a process's lifetime to the one that started it: the kernel kills it, however the other dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from typing import Final

_F_SETSIG: Final = 10  # fcntl(2); the fcntl module does not have it


def bind_lifetime(lifetime_read_fd: int, pid: int) -> None:
    """Let the kernel send SIGKILL to `pid`, which has inherited the pipe, when the pipe's write end closes.

    The signal belongs to the open file (F_SETOWN, fcntl(2)), so the supervisor sets it as soon as the process exists.
    A worker that is still importing, or is stopped, dies at once too. PR_SET_PDEATHSIG would fire when the thread that
    started the worker ends.
    """
    fcntl.fcntl(lifetime_read_fd, fcntl.F_SETOWN, pid)
    fcntl.fcntl(lifetime_read_fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifetime_read_fd, fcntl.F_SETFL, fcntl.fcntl(lifetime_read_fd, fcntl.F_GETFL) | os.O_ASYNC)


def exit_if_orphaned(lifetime_read_fd: int) -> None:
    """Exit if the other process died before the kernel bound the two lifetimes."""
    with contextlib.suppress(BlockingIOError):
        if os.read(lifetime_read_fd, 1) == b"":
            os._exit(1)
