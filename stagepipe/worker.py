"""`python -m stagepipe.worker SPEC_FD CRASH_LOG_FD LIFETIME_FD`: one worker process, on inherited descriptors.

The supervisor starts it; it is not for users.
"""

import contextlib
import os
import sys


def _exit_if_orphaned(lifetime_fd: int) -> None:
    """Exit if the supervisor died after it started this process and before the kernel bound the two lifetimes."""
    with contextlib.suppress(BlockingIOError):
        if os.read(lifetime_fd, 1) == b"":
            os._exit(1)


if __name__ == "__main__":
    _exit_if_orphaned(int(sys.argv[3]))  # before the imports, which may take seconds
    from stagepipe.runtime import worker_main

    worker_main()
