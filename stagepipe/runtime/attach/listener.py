"""The socket at which a run can be attached to. In the caller's process; the supervisor's thread serves it.

It is the only thing of a run that has a name. The run sends without waiting, and reads nothing: a process that attaches
cannot hold it up.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
from pathlib import Path
from typing import Final

import msgspec

from stagepipe.core import fork_lock, register_owner
from stagepipe.runtime.attach.credentials import read_peer_credentials
from stagepipe.runtime.attach.description import RunDescription
from stagepipe.runtime.attach.descriptors import send_with_fds
from stagepipe.runtime.attach.folder import (
    SocketFolderError,
    get_socket_folder,
    make_address,
    open_private_folder,
    remove_dead_sockets,
)

_MAX_ATTEMPTS: Final = 5
"""Another run removes the empty folder at its end, perhaps between our `mkdir` and our `bind`."""
_MAX_ACCEPTS_PER_CALL: Final = 16
"""A flood of connections must not starve the supervisor's other work."""
_run_numbers: Final = itertools.count(1)
_log = logging.getLogger("stagepipe")


def open_listener(description: RunDescription, board_fd: int) -> AttachListener | None:
    """Listen; None, with a line in the log, if that is not possible: the run goes on without."""
    try:
        return AttachListener(get_socket_folder(), description, board_fd)
    except SocketFolderError as error:
        _log.warning("`stagepipe top` cannot attach to this run: %s; `attach: false` turns it off", error)
    except OSError as error:
        _log.info("`stagepipe top` cannot attach to this run: %s", error)
    return None


class AttachListener:
    """A listening socket in a folder of this user. Each process of this user that connects gets the board."""

    def __init__(self, folder: Path, description: RunDescription, board_fd: int) -> None:
        """Listen, and remove the sockets that killed runs have left. Raises OSError or SocketFolderError."""
        self._folder = folder
        self._message = msgspec.msgpack.encode(description)
        self._board_fd = board_fd
        self._name = f"{os.getpid()}-{next(_run_numbers)}"
        self._listen()

    def _listen(self) -> None:
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                with contextlib.suppress(FileExistsError):
                    self._folder.mkdir(mode=0o700)
                with open_private_folder(self._folder) as folder_fd:
                    remove_dead_sockets(folder_fd)
                    self._bind(folder_fd)
            except FileNotFoundError:
                if attempt == _MAX_ATTEMPTS:
                    raise
            else:
                return

    def _bind(self, folder_fd: int) -> None:
        """Bind under another name, and rename the socket once it listens: one that refuses belongs to a dead run."""
        hidden_name = f".{self._name}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(hidden_name, dir_fd=folder_fd)
        with fork_lock:
            self._socket = socket.socket(
                socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
            )
            register_owner(self)
        try:
            self._socket.bind(make_address(folder_fd, hidden_name))
            self._socket.listen()
            os.rename(hidden_name, self._name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except BaseException:
            self._socket.close()
            raise

    @property
    def fd(self) -> int:
        """The descriptor that is readable when somebody connects; -1 once closed."""
        return self._socket.fileno()

    def serve(self) -> bool:
        """Answer all that have connected. False if it cannot, and has closed."""
        for _ in range(_MAX_ACCEPTS_PER_CALL):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                break
            except OSError as error:  # no descriptors are left; the connection would stay, and wake the thread again
                _log.info("`stagepipe top` cannot attach to this run any more: %s", error)
                self.close()
                return False
            with connection:
                self._answer(connection)
        return True

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        if not read_peer_credentials(connection).is_same_user:
            return
        with contextlib.suppress(OSError):
            # Opened again, so that the other process can map it for reading alone.
            board_fd = os.open(f"/proc/self/fd/{self._board_fd}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                send_with_fds(connection, self._message, [board_fd])
            finally:
                os.close(board_fd)

    def close(self) -> None:
        """Stop listening, and remove the socket; the folder too if it was the last."""
        if self.fd < 0:
            return
        self._socket.close()
        with contextlib.suppress(OSError):
            (self._folder / self._name).unlink()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def abandon_in_child(self) -> None:
        """Close the descriptor: a forked child that kept it would seem to listen after the run's end."""
        self._socket.close()
