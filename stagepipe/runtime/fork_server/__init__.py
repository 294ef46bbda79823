"""The fork server: a process that has imported what workers need, and forks each worker in milliseconds.

client    starts servers, asks them for workers, and stands in for `subprocess.Popen`; in the caller's process
server    the server's loop, and how a forked process becomes a worker
messages  what client and server tell each other: requests, the environment, limits, CPUs, umask, working folder

multiprocessing's fork server does not serve here: it gives workers its own environment and limits, reaps a worker
before its process group can be killed, and takes part in the caller's `__main__`. loky has none.

The interface is lazy, because each of the two processes needs one of the modules only.
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.runtime.fork_server.client import (
        UNKNOWN_EXIT_CODE,
        CallerFork,
        ForkedProcess,
        ForkServer,
        Preload,
        SpawnNeededError,
        end_spare_server,
        find_preload,
        fork_process,
        get_fork_server,
        launch_fork_server,
        launch_spare_server,
    )
    from stagepipe.runtime.fork_server.messages import make_worker_environment
    from stagepipe.runtime.fork_server.server import leave_caller, serve_forks

__all__ = [
    "UNKNOWN_EXIT_CODE",
    "CallerFork",
    "ForkServer",
    "ForkedProcess",
    "Preload",
    "SpawnNeededError",
    "end_spare_server",
    "find_preload",
    "fork_process",
    "get_fork_server",
    "launch_fork_server",
    "launch_spare_server",
    "leave_caller",
    "make_worker_environment",
    "serve_forks",
]

__getattr__ = lazy_names(__name__, __file__)
