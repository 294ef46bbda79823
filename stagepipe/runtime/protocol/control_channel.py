"""The control channel's socket, which has no path. The supervisor binds it; each worker connects to it."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import zmq

from stagepipe.core import UsageError

_RESOURCE_LIMIT_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ControlSocket:
    """A ROUTER socket. A process that inherits `fd` can connect to `get_control_address(fd)` at any time.

    zmq needs a path to bind and to connect. This path is removed before any worker starts, so that a run leaves no file
    behind, however it ends. A descriptor of the socket's inode (O_PATH, open(2)) still leads to it, through
    /proc/self/fd.
    """

    def __init__(self, exit_stack: contextlib.ExitStack) -> None:
        """Bind the socket; `exit_stack` closes it. Raises UsageError where no folder is writable."""
        context = zmq.Context()
        exit_stack.callback(context.destroy, 0)  # closes the socket too; `term` would wait for one that is still open
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a successor connects under the identity of the dead worker
        self.fd = self._bind()
        exit_stack.callback(os.close, self.fd)

    def _bind(self) -> int:
        failures = []
        for folder in _iter_candidate_folders():
            try:
                return self._bind_in(folder)
            except (OSError, zmq.ZMQError) as error:
                if error.errno in _RESOURCE_LIMIT_ERRNOS:
                    raise
                failures.append(f"{folder}: {os.strerror(error.errno or 0)}")
        raise UsageError(
            "the control channel's socket cannot be bound: no temporary folder is writable "
            f"({'; '.join(failures)}); set TMPDIR to a writable folder"
        )

    def _bind_in(self, parent: str) -> int:
        with tempfile.TemporaryDirectory(prefix="stagepipe-", dir=parent) as folder:
            folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:  # by its descriptor, as unix(7) allows a path of 107 bytes and TMPDIR may be longer
                self.socket.bind(f"ipc:///proc/self/fd/{folder_fd}/control")
            finally:
                os.close(folder_fd)
            return os.open(Path(folder) / "control", os.O_PATH | os.O_CLOEXEC)


def _iter_candidate_folders() -> Iterator[str]:
    """Yield the folders to try: the temporary folder first, then folders in memory."""
    with contextlib.suppress(FileNotFoundError):  # TMPDIR, /tmp, /var/tmp and the current folder are all read-only
        yield tempfile.gettempdir()
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    yield from (runtime, "/dev/shm")  # noqa: S108 - the folder made in it is 0700


def get_control_address(fd: int) -> str:
    """Return the zmq address of the control socket that this process inherited as `fd`."""
    return f"ipc:///proc/self/fd/{fd}"
