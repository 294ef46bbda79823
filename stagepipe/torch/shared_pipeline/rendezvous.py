"""How the ranks of a machine connect: a socket in a private folder whose name each rank derives. On every rank.

The leader binds, the followers connect. The folder (mode 0700; owner and mode are checked before use) is removed once
all ranks are connected, so nothing is left behind, however a rank ends later. Both sides ask the kernel for the peer's
process and user.
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
from stagepipe.torch.shared_pipeline.connection import RankConnection

RENDEZVOUS_TIMEOUT_S = 1800.0
"""How long ranks wait for each other: the default timeout of torch.distributed's collectives."""
_RETRY_INTERVAL_S = 0.02
_SOCKET_NAME = "ranks"
_MAX_PATH_BYTES = 107
"""Of a socket: unix(7)."""


def derive_rendezvous_folder(identity: tuple[str, ...]) -> Path:
    """Return the folder where a machine's ranks meet; it depends on `identity`, the user and the temporary folder."""
    digest = hashlib.sha256("\n".join((str(os.getuid()), *identity)).encode()).hexdigest()
    return Path(tempfile.gettempdir()) / f"stagepipe-{digest[:16]}"


@contextmanager
def listening_socket(folder: Path) -> Iterator[socket.socket]:
    """Open a socket that other ranks can connect to; remove the folder at the end. Raises RunError if that fails."""
    _make_folder(folder)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        try:
            server.bind(str(folder / _SOCKET_NAME))
        except OSError as error:
            message = f"cannot create the socket {folder / _SOCKET_NAME} where this machine's ranks meet: {error}; "
            raise RunError(f"{message}set TMPDIR to a folder with a short path that you can write to") from error
        server.listen(socket.SOMAXCONN)
        yield server
    finally:
        server.close()
        with contextlib.suppress(OSError):
            (folder / _SOCKET_NAME).unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # left by a run that was killed before its ranks were connected
        _check_folder_is_private(folder)
        with contextlib.suppress(FileNotFoundError):
            (folder / _SOCKET_NAME).unlink()
    except OSError as error:
        message = f"cannot create the folder {folder} where this machine's ranks meet: {error}; set TMPDIR"
        raise RunError(message) from error


def _check_folder_is_private(folder: Path) -> None:
    """Raise RunError unless the folder belongs to this user alone. Raises FileNotFoundError if there is none."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:  # noqa: PLR2004
        message = (
            f"{folder}, where this machine's ranks meet, belongs to user {status.st_uid} with mode "
            f"{stat.filemode(status.st_mode)}; it must be your own folder with mode 0700; remove it, or set TMPDIR"
        )
        raise RunError(message)


def _check_leader_can_listen(folder: Path) -> None:
    """Raise RunError where the leader cannot: it has ended with its own error then, and can tell nobody."""
    path = folder / _SOCKET_NAME
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        reason = f"{folder.parent} is no folder that you can write to"
    elif len(os.fsencode(path)) > _MAX_PATH_BYTES:
        reason = f"its path is longer than {_MAX_PATH_BYTES} bytes"
    else:
        return
    message = f"no rank can listen at the socket {path} where this machine's ranks meet: {reason}; "
    raise RunError(f"{message}set TMPDIR to a folder with a short path that you can write to")


def accept_rank(server: socket.socket, deadline_s: float) -> RankConnection | None:
    """Return a connection to the next rank; None if none connects before `deadline_s` (of `monotonic`)."""
    server.settimeout(max(deadline_s - monotonic(), _RETRY_INTERVAL_S))
    try:
        peer_socket, _ = server.accept()
    except TimeoutError:
        return None
    return RankConnection(peer_socket)


def connect_to_leader(folder: Path, deadline_s: float) -> RankConnection | None:
    """Return a connection to the leader that listens in `folder`; None if none does before `deadline_s`.

    Raises RunError at once where no leader can listen.
    """
    _check_leader_can_listen(folder)
    while monotonic() < deadline_s:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            _check_folder_is_private(folder)
            client.connect(str(folder / _SOCKET_NAME))
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            client.close()
            sleep(_RETRY_INTERVAL_S)
            continue
        except BaseException:
            client.close()
            raise
        return RankConnection(client)
    return None
