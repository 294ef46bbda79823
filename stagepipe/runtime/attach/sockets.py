"""The sockets of runs for attaching: their folder, the identity of the peer, and sending descriptors over them.

Used at both ends. The folder belongs only to this user. The fork server sends descriptors in the same way.

The folder is `$XDG_RUNTIME_DIR/stagepipe`. Without a runtime folder that this user owns and can write to, it is a
folder in /tmp with the user's number in its name. `$TMPDIR` is not used, because it may differ between the shell of a
run and the shell of `top`.

Manuals: unix(7), SO_PEERCRED and SCM_RIGHTS.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import re
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from stagepipe.core import UsageError

_UCRED: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid


class PeerCredentials(NamedTuple):
    """The process and the user at the other end of a connection."""

    pid: int
    uid: int

    @property
    def is_same_user(self) -> bool:
        """Whether it runs as the user of this process."""
        return self.uid == os.geteuid()


def read_peer_credentials(connected: socket.socket) -> PeerCredentials:
    """Return the process at the other end of a connected Unix socket."""
    pid, uid, _ = _UCRED.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return PeerCredentials(pid, uid)


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

    Raises OSError (EMFILE) if the descriptors exceed this process's limit, and closes the received ones.
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


_FOLDER_NAME: Final = "stagepipe"
_TEMPORARY_FOLDER: Final = Path("/tmp")  # noqa: S108 - the folder in it is checked before each use
_LOGIN_RUNTIME_FOLDER: Final = Path("/run/user")
_PRIVATE_MODE: Final = 0o700
_SOCKET_NAME: Final = re.compile(r"\.?(\d+)-\d+")
"""The listening process and the number of its run, with a leading dot before it listens."""


class SocketFolderError(UsageError):
    """The folder of the sockets may belong to another user."""


def get_socket_folder() -> Path:
    """Return the folder in which the runs of this process listen."""
    runtime_folder = os.environ.get("XDG_RUNTIME_DIR", "")
    if Path(runtime_folder).is_absolute() and _is_own(runtime_folder) and os.access(runtime_folder, os.W_OK | os.X_OK):
        return Path(runtime_folder) / _FOLDER_NAME
    return _get_temporary_folder()


def list_socket_folders() -> list[Path]:
    """Return the folders in which runs of this user may listen. A login has `$XDG_RUNTIME_DIR`, a daemon does not."""
    login_folder = _LOGIN_RUNTIME_FOLDER / str(os.geteuid()) / _FOLDER_NAME
    return list(dict.fromkeys((get_socket_folder(), login_folder, _get_temporary_folder())))


def _get_temporary_folder() -> Path:
    return _TEMPORARY_FOLDER / f"{_FOLDER_NAME}-{os.geteuid()}"


def _is_own(path: str) -> bool:
    try:
        return Path(path).stat().st_uid == os.geteuid()
    except OSError:
        return False


@contextmanager
def open_private_folder(folder: Path) -> Iterator[int]:
    """Open a folder. The descriptor keeps referring to it, even if the path later names something else.

    Raises SocketFolderError unless it belongs only to this user, and OSError if it cannot be opened.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:  # O_NOFOLLOW raises this for a link too
        message = f"{folder}, where runs listen for `stagepipe top`, is a link or a file; remove it"
        raise SocketFolderError(message) from None
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != _PRIVATE_MODE:
            message = (
                f"{folder}, where runs listen for `stagepipe top`, belongs to user {status.st_uid} with mode "
                f"{stat.filemode(status.st_mode)}; it must belong to you (user {os.geteuid()}) with mode drwx------; "
                "remove it, or set XDG_RUNTIME_DIR to your own folder"
            )
            raise SocketFolderError(message)
        yield fd
    finally:
        os.close(fd)


def make_address(folder_fd: int, name: str) -> str:
    """Return the address of a socket in an open folder. It is short, because an address has at most 107 bytes."""
    return f"/proc/self/fd/{folder_fd}/{name}"


def make_client_socket() -> socket.socket:
    """Return a socket that can connect to a run's socket."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def remove_dead_sockets(folder_fd: int) -> None:
    """Remove the sockets of killed processes. A process may be gone, or live in another container."""
    for name in os.listdir(folder_fd):
        match = _SOCKET_NAME.fullmatch(name)
        if match and not Path(f"/proc/{match[1]}").exists():
            remove_if_dead(folder_fd, name)


def remove_if_dead(folder_fd: int, name: str) -> None:
    """Remove a socket if nothing listens on it."""
    with make_client_socket() as client, contextlib.suppress(OSError):
        client.settimeout(0)
        try:
            client.connect(make_address(folder_fd, name))
        except ConnectionRefusedError:
            os.unlink(name, dir_fd=folder_fd)
