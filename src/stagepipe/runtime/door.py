"""Where workers come in: the control channel's socket, which has no name. On both sides."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import zmq


class Door:
    """A ROUTER socket. Whoever inherits `fd` can connect to the `door_address` of it, at any time.

    zmq needs a path to bind to and to connect to. This one is removed before any worker starts, so that nothing is left
    behind however a run ends: a descriptor of the socket's inode (O_PATH, open(2)) leads to it through /proc/self/fd.
    """

    def __init__(self, owned: contextlib.ExitStack) -> None:
        """`owned` closes it."""
        context = zmq.Context()
        owned.callback(context.term)
        self.socket = context.socket(zmq.ROUTER)
        owned.callback(self.socket.close, 0)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a successor comes under the name of the dead one
        with tempfile.TemporaryDirectory(prefix="stagepipe-") as folder:
            path = Path(folder) / "control"
            self.socket.bind(f"ipc://{path}")
            self.fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        owned.callback(os.close, self.fd)


def door_address(fd: int) -> str:
    """Where to connect to, as zmq has it."""
    return f"ipc:///proc/self/fd/{fd}"
