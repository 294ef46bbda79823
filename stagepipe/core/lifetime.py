"""How a worker ends: with the process that started it, and at its own end at once."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import io
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


class ExitWithoutTeardown:
    """Lets a process exit without the interpreter's teardown, which takes seconds where torch is imported.

    Make it before other modules register `atexit` handlers, so that its own is called last: threads have been joined,
    and the handlers of the stages' modules have run. What else a teardown does for user code is done here: it frees the
    stages and flushes open files. A child that the process forks exits as usual, unless it calls `adopt`.
    """

    def __init__(self) -> None:
        """Register the exit of this process; its status is 1 until `status` is set."""
        self.status = 1
        self._pid = os.getpid()
        atexit.register(self._exit_at_once)

    def adopt(self) -> None:
        """Make it the exit of this process, which was forked from the one that made it."""
        self._pid = os.getpid()

    def _exit_at_once(self) -> None:
        if os.getpid() != self._pid:
            return
        gc.collect()
        for file in gc.get_objects():
            if issubclass(type(file), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
                with contextlib.suppress(OSError, ValueError):  # a full disk, a file that is closed
                    file.flush()
        os._exit(self.status)
