"""The fork server: a process that has imported what workers need, and forks each worker in milliseconds.

client           starts a server, asks it for workers, and stands in for `subprocess.Popen`; in the caller's process
registry         the servers of this process: which one may fork a worker, or why none can
environment      the environment of workers, and what of it only counts when a process starts
attributes       what a worker must have from the caller: limits, CPUs, umask, working folder
server           the server's loop: it forks, reports exits, and reaps
child            makes a freshly forked process a worker's: descriptors, environment, generators, threads
messages         what client and server tell each other
descriptors      sends descriptors over a socket

multiprocessing's fork server does not serve here: it gives workers its own environment and limits, reaps a worker
before its process group can be killed, and takes part in the caller's `__main__`. loky has none.
"""

from stagepipe.runtime.fork_server.client import ForkedProcess, ForkServer
from stagepipe.runtime.fork_server.environment import make_worker_environment
from stagepipe.runtime.fork_server.registry import Preload, SpawnNeededError, fork_process, get_fork_server
from stagepipe.runtime.fork_server.server import serve_forks

__all__ = [
    "ForkServer",
    "ForkedProcess",
    "Preload",
    "SpawnNeededError",
    "fork_process",
    "get_fork_server",
    "make_worker_environment",
    "serve_forks",
]
