"""The fork server: a process that has imported what workers need, and forks each worker in milliseconds.

client           starts a server, asks it for workers, and stands in for `subprocess.Popen`; in the caller's process
registry         the servers of this process: which one may fork a worker, or why none can
read_at_load     the environment variables that a forked worker cannot change any more
attributes       what a worker must have from the caller: limits, CPUs, umask, working folder
server           the server's loop: it forks, reports exits, and reaps
child            makes a freshly forked process a worker's: descriptors, environment, generators, threads
messages         what client and server tell each other
descriptors      sends descriptors over a socket

multiprocessing's fork server does not serve here: it gives workers its own environment and limits, reaps a worker
before its process group can be killed, and takes part in the caller's `__main__`. loky has none.
"""

from stagepipe.runtime.fork_server.client import ForkedProcess
from stagepipe.runtime.fork_server.registry import SpawnNeededError, fork_process, start_fork_server
from stagepipe.runtime.fork_server.server import serve_forks

__all__ = ["ForkedProcess", "SpawnNeededError", "fork_process", "serve_forks", "start_fork_server"]
