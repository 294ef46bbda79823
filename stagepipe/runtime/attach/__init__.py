"""Attaches another process to a run: a socket in a private folder hands descriptors to the same user.

sockets  the folder of the sockets, the identity of the peer, and sending descriptors; also for the fork server
run      both ends: a run's description, its listener, and the client that finds runs and attaches to them

The interface is lazy, because the fork server starts before NumPy is imported, which `run` needs.
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.runtime.attach.run import (
        AttachedRun,
        AttachListener,
        FoundRuns,
        ProcessDescription,
        RunDescription,
        describe_run,
        find_runs,
        open_listener,
    )
    from stagepipe.runtime.attach.sockets import PeerCredentials, read_peer_credentials, receive_with_fds, send_with_fds

__all__ = [
    "AttachListener",
    "AttachedRun",
    "FoundRuns",
    "PeerCredentials",
    "ProcessDescription",
    "RunDescription",
    "describe_run",
    "find_runs",
    "open_listener",
    "read_peer_credentials",
    "receive_with_fds",
    "send_with_fds",
]

__getattr__ = lazy_names(__name__, __file__)
