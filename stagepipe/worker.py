"""`python -m stagepipe.worker SPEC_FD CRASH_LOG_FD LIFETIME_FD`: one worker process, on inherited descriptors.

The supervisor starts it; it is not for users.
"""

import atexit
import contextlib
import gc
import io
import os
import sys


def _exit_if_orphaned(lifetime_fd: int) -> None:
    """Exit if the supervisor died after it started this process and before the kernel bound the two lifetimes."""
    with contextlib.suppress(BlockingIOError):
        if os.read(lifetime_fd, 1) == b"":
            os._exit(1)


def _exit_at_once(status: list[int]) -> None:
    """Exit without the interpreter's teardown, which takes seconds where torch is imported.

    Registered first, so `atexit` calls it last: threads have been joined, and the handlers of the stages' modules have
    run. What else a teardown does for user code is done here: it frees the stages and flushes open files.
    """
    gc.collect()
    for file in gc.get_objects():
        if issubclass(type(file), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(OSError, ValueError):  # a full disk, a file that is closed
                file.flush()
    os._exit(status[0])


if __name__ == "__main__":
    _exit_if_orphaned(int(sys.argv[3]))  # before the imports, which may take seconds
    exit_status = [1]
    atexit.register(_exit_at_once, exit_status)
    from stagepipe.runtime import worker_main

    worker_main()
    exit_status[0] = 0
