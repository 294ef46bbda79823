"""The connections between the ranks of a machine, and their messages: small typed messages, no items, no pickle.

The leader binds a socket in a private folder, whose name each rank derives; the followers connect to it. The folder
has mode 0700, and its owner and mode are checked before use. The leader removes it once all ranks are connected, so no
rank leaves it behind, however it ends. Both sides ask the kernel for the peer's process and user. A thread listens to
each connection. `RankEndpoint` is the common interface of leader and follower.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import stat
import tempfile
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple, Protocol

import msgspec

from stagepipe.core import Cursor, RunError, SkipCount, SourceIdentity, with_error_type
from stagepipe.engine import EpochPosition
from stagepipe.runtime import read_peer_credentials
from stagepipe.transport import Lease, WakeEvent


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """A follower's first message. `config_description` is its config in the format of state dicts."""

    local_rank: int
    config_description: str


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The leader's answer. Descriptors follow: the read end of a data pipe, the arenas, the arenas' release pipes.

    `transports` are the transports of `MemoryHandle`.
    """

    arena_numbers: list[int]
    memory_bytes: int
    transports: list[tuple[str, str]] = []


class DescriptorBatch(msgspec.Struct, tag="descriptors", frozen=True):
    """Carries some of the descriptors; `descriptors_left` more follow in later messages."""

    descriptors_left: int


class JoinRefused(msgspec.Struct, tag="refused", frozen=True):
    """The leader refuses this rank, or cannot start."""

    reason: str


class EpochLength(msgspec.Struct, tag="length", frozen=True):
    """The number of items per epoch over all ranks of the machine, and the source's identity; None if unknown."""

    items: int | None
    source: SourceIdentity | None = None


class EpochRequest(msgspec.Struct, tag="epoch_request", frozen=True):
    """A rank starts an iteration, numbered from 1.

    The rank has received the rounds of `epoch` before `first_round`; `cursor` is the position after them.
    """

    iteration: int
    epoch: int
    first_round: int
    cursor: Cursor | None


class IterationFailed(msgspec.Struct, tag="failed", frozen=True, kw_only=True):
    """A rank's iteration failed. Iteration 0 means all its iterations.

    `error_type` names the type of the user's exception; see `stagepipe.core.name_error_type`.
    """

    iteration: int
    message: str
    stage: str = ""
    worker: int = -1
    item: str = ""
    trace: str = ""
    error_type: str = ""


class LoaderClosed(msgspec.Struct, tag="loader_closed", frozen=True):
    """A rank has closed its loader and disconnects on purpose."""


RankMessage = (
    Hello | Welcome | DescriptorBatch | JoinRefused | EpochLength | EpochRequest | IterationFailed | LoaderClosed
)

encode_message = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(RankMessage).decode


_MAX_MESSAGE_BYTES = 64 << 10
"""Maximum size of a message. A socket buffer must hold messages while the peer is stopped for a while."""
_MAX_FDS_PER_MESSAGE = 200
"""Maximum descriptors per message; the kernel allows 253 (SCM_MAX_FD)."""
_ANCILLARY_BYTES = socket.CMSG_LEN(_MAX_FDS_PER_MESSAGE * array("i").itemsize)
_SEND_TIMEOUT_S = 10.0
_JOIN_TIMEOUT_S = 5.0


class RankConnection:
    """One end of a connection. `pid` is the process at the other end."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected SOCK_SEQPACKET socket. Raises RunError if the peer runs as another user."""
        self._socket = connected
        peer = read_peer_credentials(connected)
        self.pid = peer.pid
        if peer.uid != os.getuid():
            connected.close()
            message = f"process {self.pid} on the ranks' socket runs as user {peer.uid}, and this process as user "
            raise RunError(f"{message}{os.getuid()}; run all ranks of a machine as the same user")
        connected.settimeout(0)  # two threads use it, so neither may set a timeout for the other
        self.fd = connected.fileno()

    def send(self, message: RankMessage, fds: Sequence[int] = ()) -> bool:
        """Send a message. Return False if the peer is gone or accepts nothing for 10 s."""
        data = encode_message(message)
        deadline = monotonic() + _SEND_TIMEOUT_S
        while True:
            try:
                socket.send_fds(self._socket, [data], fds)
            except BlockingIOError:
                if not self._wait_until_ready(select.POLLOUT, deadline - monotonic()):
                    return False
            except OSError:
                return False
            else:
                return True

    def _wait_until_ready(self, poll_event: int, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self.fd, poll_event)
        return timeout_s > 0 and bool(poll.poll(timeout_s * 1000))

    def send_descriptors(self, fds: Sequence[int]) -> bool:
        """Send any number of descriptors. Return False if the peer is gone or accepts nothing for 10 s."""
        starts = range(0, len(fds), _MAX_FDS_PER_MESSAGE)
        return all(
            self.send(
                DescriptorBatch(max(len(fds) - start - _MAX_FDS_PER_MESSAGE, 0)),
                fds[start : start + _MAX_FDS_PER_MESSAGE],
            )
            for start in starts
        )

    def receive(self, timeout_s: float) -> tuple[RankMessage | None, list[int]]:
        """Return the next message and its descriptors. The message is None if the peer is gone.

        Raises TimeoutError if no message arrives within `timeout_s`, and RunError for a message that was truncated or
        cannot be decoded.
        """
        if timeout_s and not self._wait_until_ready(select.POLLIN, timeout_s):
            raise TimeoutError
        try:
            # Not `socket.recv_fds`, which accepts flags but does not pass them on.
            data, ancillary, flags, _ = self._socket.recvmsg(
                _MAX_MESSAGE_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError as error:
            raise TimeoutError from error
        except OSError:
            return None, []
        if not data:
            return None, []
        fds = array("i", b"".join(fd_bytes for _, _, fd_bytes in ancillary)).tolist()
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise RunError("a message between ranks was truncated; allow more open files (`ulimit -n 4096`)")
        try:
            return decode_message(data), fds
        except msgspec.MsgspecError as error:
            message = f"process {self.pid} sent a message that is not part of the ranks' protocol ({error}); "
            raise RunError(f"{message}install the same stagepipe on all ranks") from error

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


MessageCallback = Callable[[RankConnection, RankMessage | None], None]
"""Called with each message, and once with None when the peer is gone."""


class ConnectionListener:
    """A thread that reads from several connections and notices when a peer process ends."""

    def __init__(self, connections: Sequence[RankConnection], on_message: MessageCallback) -> None:
        """Start listening. `on_message` runs on the listener thread."""
        self._on_message = on_message
        self._wake_event = WakeEvent()
        self._is_closing = False
        self._connection_of_fd: dict[int, RankConnection] = {}
        self._pidfd_of_fd: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(self._wake_event.fd, select.POLLIN)
        for connection in connections:
            self._register(connection)
        self._thread = threading.Thread(target=self._run, name="stagepipe-rank-listener", daemon=True)
        self._thread.start()

    def _register(self, connection: RankConnection) -> None:
        self._connection_of_fd[connection.fd] = connection
        self._poll.register(connection.fd, select.POLLIN)
        # Also watch the pidfd: children of a peer that has forked keep the socket open when the peer dies.
        with contextlib.suppress(OSError):
            pidfd = self._pidfd_of_fd[connection.fd] = os.pidfd_open(connection.pid)
            self._connection_of_fd[pidfd] = connection
            self._poll.register(pidfd, select.POLLIN)

    def _run(self) -> None:
        while not self._is_closing:
            for fd, _ in self._poll.poll():
                connection = self._connection_of_fd.get(fd)
                if connection is None:
                    continue
                if not self._read_messages(connection, has_exited=fd != connection.fd):
                    self._unregister(connection)
                    self._on_message(connection, None)

    def _read_messages(self, connection: RankConnection, *, has_exited: bool) -> bool:
        """Read all messages that have arrived. Return False if no more can come."""
        try:
            while True:
                message, _ = connection.receive(0.0)
                if message is None:
                    return False
                self._on_message(connection, message)
        except TimeoutError:
            return not has_exited
        except RunError:
            return False

    def _unregister(self, connection: RankConnection) -> None:
        self._poll.unregister(connection.fd)
        self._connection_of_fd.pop(connection.fd)
        pidfd = self._pidfd_of_fd.pop(connection.fd, -1)
        if pidfd >= 0:
            self._poll.unregister(pidfd)
            self._connection_of_fd.pop(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        """Stop the thread. Must not be called from `on_message`."""
        self._is_closing = True
        self._wake_event.set()
        self._thread.join(_JOIN_TIMEOUT_S)
        for pidfd in self._pidfd_of_fd.values():
            os.close(pidfd)
        self._pidfd_of_fd.clear()
        self._wake_event.close()


RENDEZVOUS_TIMEOUT_S = 1800.0
"""Time that ranks wait for each other: the default timeout of torch.distributed's collectives."""
_RETRY_INTERVAL_S = 0.02
_SOCKET_NAME = "ranks"
_MAX_PATH_BYTES = 107
"""Maximum length of a socket's path, from unix(7)."""


def derive_rendezvous_folder(identity: tuple[str, ...]) -> Path:
    """Return the meeting folder of a machine's ranks, which depends on `identity`, user and temporary folder."""
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
    except FileExistsError:  # a run was killed before its ranks were connected, and left it behind
        _check_folder_is_private(folder)
        with contextlib.suppress(FileNotFoundError):
            (folder / _SOCKET_NAME).unlink()
    except OSError as error:
        raise RunError(
            f"cannot create the folder {folder} where this machine's ranks meet: {error}; set TMPDIR"
        ) from error


def _check_folder_is_private(folder: Path) -> None:
    """Raise RunError unless only this user owns and can use the folder, FileNotFoundError if it does not exist."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:  # noqa: PLR2004
        raise RunError(
            f"{folder}, where this machine's ranks meet, belongs to user {status.st_uid} with mode "
            f"{stat.filemode(status.st_mode)}; it must be your own folder with mode 0700; remove it, or set TMPDIR"
        )


def _check_leader_can_listen(folder: Path) -> None:
    """Raise RunError if the leader cannot listen: it then ends with its own error, and cannot tell the other ranks."""
    path = folder / _SOCKET_NAME
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        reason = f"{folder.parent} is not a folder that you can write to"
    elif len(os.fsencode(path)) > _MAX_PATH_BYTES:
        reason = f"its path is longer than {_MAX_PATH_BYTES} bytes"
    else:
        return
    message = f"no rank can listen at the socket {path} where this machine's ranks meet: {reason}; "
    raise RunError(f"{message}set TMPDIR to a folder with a short path that you can write to")


def accept_rank(server: socket.socket, deadline_s: float) -> RankConnection | None:
    """Return a connection to the next rank, or None if no rank connects before `deadline_s` (of `monotonic`)."""
    server.settimeout(max(deadline_s - monotonic(), _RETRY_INTERVAL_S))
    try:
        peer_socket, _ = server.accept()
    except TimeoutError:
        return None
    return RankConnection(peer_socket)


def connect_to_leader(folder: Path, deadline_s: float) -> RankConnection | None:
    """Return a connection to the leader that listens in `folder`, or None if no leader does before `deadline_s`.

    Raises RunError immediately if no leader can listen there.
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


class RankItem(NamedTuple):
    """A rank's item of round `round_number` of the epoch, counted from 0.

    `box` is a list that holds only the item. The reader pops it, so that no other reference remains. `cursor` is the
    position after the round, for a resume; None if there is no such position.
    """

    round_number: int
    cursor: bytes | None
    box: list[Any]


class RankEndpoint(Protocol):
    """Receives a rank's items."""

    def begin_iteration(self, position: EpochPosition) -> int:
        """Start an iteration at `position` and return its number."""

    def receive(self, iteration: int) -> RankItem | None:
        """Return the next item of that iteration, or None at the end of the epoch. Raises RunError."""

    def length(self) -> int | None:
        """Return the items per epoch over all ranks of the machine, or None if unknown. Raises RunError."""

    def wait_for_source(self) -> SourceIdentity | None:
        """Wait for the source's identity and return it, or None if it is unknown. Raises RunError."""

    def count_skips(self, position: EpochPosition) -> SkipCount | None:
        """Return the skip count of the machine's pipeline up to a position. Only the leader counts."""

    def resume_skip_count(self, count: SkipCount) -> None:
        """Continue the count of `max_skipped` from a saved position, on the leader."""

    def find_lease(self, address: int, nbytes: int) -> Lease | None:
        """Return the lease that holds these bytes, or None if no lease does."""

    def close(self) -> None:
        """Disconnect and release everything."""


def to_run_error(failure: IterationFailed) -> RunError:
    """Convert a failure message to the error to raise."""
    error = RunError(
        failure.message, stage=failure.stage, worker=failure.worker, item=failure.item, trace=failure.trace
    )
    return with_error_type(error, failure.error_type)
