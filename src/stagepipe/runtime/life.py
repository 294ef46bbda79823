"""A worker's life ends with its supervisor's, however that ends. In the supervisor's process."""

from __future__ import annotations

import fcntl
import os
import signal
from typing import Final

_F_SETSIG: Final = 10


def die_together(life_read_fd: int, pid: int) -> None:
    """Let the kernel send SIGKILL to `pid`, which has inherited the pipe, when its write end closes.

    It is the open file that asks for the signal (F_SETOWN, fcntl(2)), so that it can be done from here, as soon as the
    process exists: also one that is still importing goes at once, and one that is stopped. PR_SET_PDEATHSIG would fire
    when the thread that started it ends.
    """
    fcntl.fcntl(life_read_fd, fcntl.F_SETOWN, pid)
    fcntl.fcntl(life_read_fd, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life_read_fd, fcntl.F_SETFL, fcntl.fcntl(life_read_fd, fcntl.F_GETFL) | os.O_ASYNC)
