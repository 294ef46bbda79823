"""Where workers come in: the control channel's socket, which has no name. On both sides."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zmq

from stagepipe.core import UsageError

_NOT_THE_FOLDERS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Door:
    """A ROUTER socket. Whoever inherits `fd` can connect to the `door_address` of it, at any time.

    zmq needs a path to bind to and to connect to. This one is removed before any worker starts, so that nothing is left
    behind however a run ends: a descriptor of the socket's inode (O_PATH, open(2)) leads to it through /proc/self/fd.
    """

    def __init__(self, owned: contextlib.ExitStack) -> None:
        """`owned` closes it. UsageError where there is no folder to make it in."""
        context = zmq.Context()
        owned.callback(context.term)
        self.socket = context.socket(zmq.ROUTER)
        owned.callback(self.socket.close, 0)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a successor comes under the name of the dead one
        self.fd = self._bound()
        owned.callback(os.close, self.fd)

    def _bound(self) -> int:
        tried = []
        for folder in _folders():
            try:
                return self._bound_in(folder)
            except (OSError, zmq.ZMQError) as error:
                if error.errno in _NOT_THE_FOLDERS:
                    raise
                tried.append(f"{folder}: {os.strerror(error.errno or 0)}")
        raise UsageError(
            "no folder can be written, and the run needs one for a moment, to bind its control channel "
            f"({'; '.join(tried)}): set TMPDIR to one that can"
        )

    def _bound_in(self, parent: str) -> int:
        with tempfile.TemporaryDirectory(prefix="stagepipe-", dir=parent) as folder:
            folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:  # by its descriptor, as unix(7) allows a path of 107 bytes and TMPDIR may be longer
                self.socket.bind(f"ipc:///proc/self/fd/{folder_fd}/control")
            finally:
                os.close(folder_fd)
            return os.open(Path(folder) / "control", os.O_PATH | os.O_CLOEXEC)


def _folders() -> Iterator[str]:
    """Where a socket may be made: the folder for what is temporary, else one in memory."""
    with contextlib.suppress(FileNotFoundError):  # none of TMPDIR, /tmp, /var/tmp and the current folder can be written
        yield tempfile.gettempdir()
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    yield from (runtime, "/dev/shm")  # noqa: S108 - the folder made in it is 0700


def door_address(fd: int) -> str:
    """Where to connect to, as zmq has it."""
    return f"ipc:///proc/self/fd/{fd}"
