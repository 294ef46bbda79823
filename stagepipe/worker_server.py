"""`python -m stagepipe.worker_server CONNECTION_FD LIFETIME_FD MODULE...`: the fork server of a process.

The supervisor starts it; it is not for users. Each worker that it forks returns from `serve_forks` and runs here.
"""

import socket
import sys


def main() -> None:
    """Serve; in a forked worker, run the worker."""
    from stagepipe.runtime import worker_main
    from stagepipe.runtime.fork_server import serve_forks

    launch = serve_forks(socket.socket(fileno=int(sys.argv[1])), sys.argv[3:])
    if launch is not None:
        worker_main(launch.spec_fd, launch.crash_log_fd, launch.fds)


if __name__ == "__main__":
    main()
