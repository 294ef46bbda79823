"""How another process comes into a run: a private folder with a socket, which hands descriptors to the same user.

folder        the folder of the sockets: where it is, and that it belongs to this user alone
credentials   asks the kernel who is at the other end of a socket
descriptors   sends descriptors over a socket; the fork server does so too
description   what a run tells of itself: its name, its processes, the layout of its board
listener      the run's end: one socket, served by the supervisor's thread; in the caller's process
client        the other end: finds runs and attaches to them; in the process of `stagepipe top`
"""

from typing import TYPE_CHECKING

from stagepipe.core import lazy_names

if TYPE_CHECKING:
    from stagepipe.runtime.attach.client import AttachedRun, FoundRuns, find_runs
    from stagepipe.runtime.attach.credentials import PeerCredentials, read_peer_credentials
    from stagepipe.runtime.attach.description import ProcessDescription, RunDescription, describe_run
    from stagepipe.runtime.attach.descriptors import receive_with_fds, send_with_fds
    from stagepipe.runtime.attach.listener import AttachListener, open_listener

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

__getattr__ = lazy_names(
    __name__,
    {
        "AttachListener": "listener",
        "AttachedRun": "client",
        "FoundRuns": "client",
        "PeerCredentials": "credentials",
        "ProcessDescription": "description",
        "RunDescription": "description",
        "describe_run": "description",
        "find_runs": "client",
        "open_listener": "listener",
        "read_peer_credentials": "credentials",
        "receive_with_fds": "descriptors",
        "send_with_fds": "descriptors",
    },
)
