"""How the ranks of a machine find each other: a socket in a folder of one's own, whose name they all derive alike.

The first rank binds, the others connect; the folder (0700, checked for owner and mode before use) is removed as soon as
all are there, so nothing is left behind, whatever kills whom afterwards. Both sides ask the kernel who the other is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from stagepipe.core import RunError
from stagepipe.torch.node.line import Line

DEADLINE_S = 1800.0
"""How long ranks wait for each other: what torch.distributed's collectives wait by default."""
_TICK_S = 0.02
_SOCKET = "ranks"


def folder_of(names: tuple[str, ...]) -> Path:
    """The folder in which a machine's ranks meet: the same for the same names, user and folder for temporary files."""
    digest = hashlib.sha256("\n".join((str(os.getuid()), *names)).encode()).hexdigest()
    return Path(tempfile.gettempdir()) / f"stagepipe-{digest[:16]}"


@contextmanager
def listening(folder: Path) -> Iterator[socket.socket]:
    """A socket that others can connect to; the folder is gone at the end. RunError where it cannot be made."""
    _make(folder)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        try:
            server.bind(str(folder / _SOCKET))
        except OSError as error:
            message = f"cannot make the socket {folder / _SOCKET} on which this machine's ranks meet: {error}; "
            raise RunError(f"{message}set TMPDIR to a folder with a short path that you can write to") from error
        server.listen(socket.SOMAXCONN)
        yield server
    finally:
        server.close()
        with contextlib.suppress(OSError):
            (folder / _SOCKET).unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # left by a run that was killed before its ranks had met
        _check(folder)
        with contextlib.suppress(FileNotFoundError):
            (folder / _SOCKET).unlink()
    except OSError as error:
        message = f"cannot make the folder {folder} in which this machine's ranks meet: {error}; set TMPDIR"
        raise RunError(message) from error


def _check(folder: Path) -> None:
    """RunError if the folder is not this user's alone. FileNotFoundError."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700:  # noqa: PLR2004
        message = (
            f"{folder}, in which this machine's ranks meet, is of user {found.st_uid} with mode "
            f"{stat.filemode(found.st_mode)}, and it must be a folder of yours with mode 0700; remove it, or set TMPDIR"
        )
        raise RunError(message)


def accept(server: socket.socket, deadline: float) -> Line | None:
    """The next rank that connects; None when `deadline` (of `monotonic`) has passed."""
    server.settimeout(max(deadline - monotonic(), _TICK_S))
    try:
        connected, _ = server.accept()
    except TimeoutError:
        return None
    return Line(connected)


def connect(folder: Path, deadline: float) -> Line | None:
    """A line to the rank that listens there; None when none does until `deadline`."""
    while monotonic() < deadline:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            _check(folder)
            client.connect(str(folder / _SOCKET))
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            client.close()
            sleep(_TICK_S)
            continue
        except BaseException:
            client.close()
            raise
        return Line(client)
    return None
