"""Sends a message with descriptors over a Unix socket (SCM_RIGHTS, unix(7)). At both ends."""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Final

_MAX_FDS_PER_PACKET: Final = 253
"""SCM_MAX_FD, unix(7)."""
_HEADER: Final = struct.Struct("I")


def send_with_fds(connection: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    """Send `message` and copies of `fds`. The message travels in a memfd, because a packet has a size limit."""
    message_fd = os.memfd_create("stagepipe-message", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(message_fd), "wb") as file:
            file.write(message)
        all_fds = [message_fd, *fds]
        for start in range(0, len(all_fds), _MAX_FDS_PER_PACKET):
            packet_fds = all_fds[start : start + _MAX_FDS_PER_PACKET]
            socket.send_fds(connection, [_HEADER.pack(len(all_fds) - start)], packet_fds)
    finally:
        os.close(message_fd)


def receive_with_fds(connection: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return the next message and its descriptors, which the caller owns. None if the other side has closed.

    Raises OSError (EMFILE) if the descriptors exceed this process's limit; those that came are closed.
    """
    fds: list[int] = []
    is_truncated = False
    remaining = 1
    while remaining > 0:
        data, ancillary, flags, _ = connection.recvmsg(
            _HEADER.size, socket.CMSG_LEN(_MAX_FDS_PER_PACKET * array.array("i").itemsize)
        )
        if not data:
            _close_all(fds)
            return None
        packet_fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                packet_fds.frombytes(payload[: len(payload) - len(payload) % packet_fds.itemsize])
        fds += packet_fds
        remaining = _HEADER.unpack(data)[0] - _MAX_FDS_PER_PACKET
        is_truncated = is_truncated or bool(flags & socket.MSG_CTRUNC)
    if is_truncated:
        _close_all(fds)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with os.fdopen(fds.pop(0), "rb") as file:
        file.seek(0)
        return file.read(), fds


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
