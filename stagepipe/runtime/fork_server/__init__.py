"""The fork server: a process that has imported what workers need, and forks each worker in milliseconds.

client           starts a server, asks it for workers, and stands in for `subprocess.Popen`; in the caller's process
registry         the servers of this process: which one may fork a worker, or why none can
launch           starts the server of a pipeline early, before its config is read
environment      the environment of workers, and what of it only counts when a process starts
attributes       what a worker must have from the caller: limits, CPUs, umask, working folder
server           the server's loop: it forks, reports exits, and reaps
child            makes a freshly forked process a worker's: descriptors, environment, generators, threads
messages         what client and server tell each other

multiprocessing's fork server does not serve here: it gives workers its own environment and limits, reaps a worker
before its process group can be killed, and takes part in the caller's `__main__`. loky has none.
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.runtime.fork_server.client import UNKNOWN_EXIT_CODE, ForkedProcess, ForkServer
    from stagepipe.runtime.fork_server.environment import make_worker_environment
    from stagepipe.runtime.fork_server.launch import find_preload, launch_fork_server, launch_spare_server
    from stagepipe.runtime.fork_server.registry import (
        Preload,
        SpawnNeededError,
        end_spare_server,
        fork_process,
        get_fork_server,
    )
    from stagepipe.runtime.fork_server.server import serve_forks

__all__ = [
    "UNKNOWN_EXIT_CODE",
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
    "make_worker_environment",
    "serve_forks",
]

__getattr__ = lazy_names(
    __name__,
    {
        "UNKNOWN_EXIT_CODE": "client",
        "ForkServer": "client",
        "ForkedProcess": "client",
        "Preload": "registry",
        "SpawnNeededError": "registry",
        "end_spare_server": "registry",
        "find_preload": "launch",
        "fork_process": "registry",
        "get_fork_server": "registry",
        "launch_fork_server": "launch",
        "launch_spare_server": "launch",
        "make_worker_environment": "environment",
        "serve_forks": "server",
    },
)
