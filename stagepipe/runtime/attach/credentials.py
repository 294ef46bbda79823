"""Asks the kernel who is at the other end of a Unix socket (SO_PEERCRED, unix(7)). At both ends."""

from __future__ import annotations

import os
import socket
import struct
from typing import Final, NamedTuple

_UCRED: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid


class PeerCredentials(NamedTuple):
    """The process and the user that connected, or that listens."""

    pid: int
    uid: int

    @property
    def is_same_user(self) -> bool:
        """Whether it runs as the user of this process."""
        return self.uid == os.geteuid()


def read_peer_credentials(connected: socket.socket) -> PeerCredentials:
    """Return who is at the other end of a connected Unix socket."""
    pid, uid, _ = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return PeerCredentials(pid, uid)
