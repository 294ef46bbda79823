"""`python -m stagepipe.worker_server CONNECTION_FD LIFETIME_FD CALLER_PIDFD`: the fork server of a process.

The supervisor starts it; users do not. Each worker that it forks returns from `serve_forks` and runs here.
"""

import contextlib
import gc
import os
import socket
import sys
import traceback
from typing import NoReturn

from stagepipe.core import ExitWithoutTeardown, exit_if_orphaned


def main(connection_fd: int, lifetime_fd: int, caller_pidfd: int) -> None:
    """Serve forks. In a forked worker, run the worker."""
    exit_if_orphaned(lifetime_fd)  # before the imports, which may take seconds
    gc.disable()  # until all is imported: imports make little garbage, and collections take a tenth of their time
    process_exit = ExitWithoutTeardown()
    from stagepipe.runtime import install_lazy_seeding, serve_forks, worker_main

    install_lazy_seeding()
    import stagepipe.sources  # noqa: F401 - most pipelines use one: it would take 40 ms in each source's worker

    launch = serve_forks(socket.socket(fileno=connection_fd), caller_pidfd)
    for fd in (lifetime_fd, caller_pidfd):  # a worker has its own
        os.close(fd)
    if launch is not None:
        process_exit.adopt()
        worker_main(launch.spec_fd, launch.crash_log_fd, process_exit.adopt, launch.fds)
    process_exit.status = 0


def import_for_forks() -> None:
    """Import the modules that forks need in a caller that will be forked: once, instead of in each fork."""
    import threadpoolctl  # noqa: F401

    import stagepipe.sources  # noqa: F401
    from stagepipe.runtime import leave_caller, serve_forks, worker_main  # noqa: F401


def serve_as_fork(connection_fd: int, lifetime_fd: int, caller_pidfd: int) -> NoReturn:
    """Serve in a fork of the caller. At the end, run none of the caller's exit handlers and flush none of its files."""
    status = 1
    try:
        exit_if_orphaned(lifetime_fd)
        from stagepipe.runtime import leave_caller, serve_forks, worker_main

        leave_caller()
        launch = serve_forks(socket.socket(fileno=connection_fd), caller_pidfd)
        for fd in (lifetime_fd, caller_pidfd):
            os.close(fd)
        if launch is not None:
            worker_main(launch.spec_fd, launch.crash_log_fd, lambda: None, launch.fds)
        status = 0
    except BaseException:  # noqa: BLE001 - the supervisor reads it in the worker's output
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
