"""The fork server: a process that has imported the workers' modules, and forks each worker in milliseconds.

client    starts servers, requests workers from them, and replaces `subprocess.Popen`; in the caller's process
server    the server's loop, and the setup of a forked process as a worker
messages  the requests and replies, and the attributes of the caller: environment, limits, CPUs, umask, folder

multiprocessing's fork server cannot be used: it gives workers its own environment and limits, reaps a worker before its
process group can be killed, and imports the caller's `__main__`. loky has none.

The interface is lazy, because each of the two processes needs only one of the modules.
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
