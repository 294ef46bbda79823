"""A typed connection between two ranks of a machine, and the thread that listens to connections. On every rank."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from array import array
from collections.abc import Callable, Sequence
from time import monotonic

import msgspec

from stagepipe.core import RunError
from stagepipe.runtime import read_peer_credentials
from stagepipe.torch.shared_pipeline.messages import DescriptorBatch, RankMessage, decode_message, encode_message
from stagepipe.transport import WakeEvent

_MAX_MESSAGE_BYTES = 64 << 10
"""Largest message. A socket buffer must hold messages while the peer is stopped for a while."""
_MAX_FDS_PER_MESSAGE = 200
"""Descriptors per message; the kernel allows 253 (SCM_MAX_FD)."""
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
        """Send a message. False if the peer is gone or accepts nothing for 10 s."""
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
        """Send any number of descriptors. False if the peer is gone or accepts nothing for 10 s."""
        starts = range(0, len(fds), _MAX_FDS_PER_MESSAGE)
        return all(
            self.send(
                DescriptorBatch(max(len(fds) - start - _MAX_FDS_PER_MESSAGE, 0)),
                fds[start : start + _MAX_FDS_PER_MESSAGE],
            )
            for start in starts
        )

    def receive(self, timeout_s: float) -> tuple[RankMessage | None, list[int]]:
        """Return the next message and its descriptors; None as the message if the peer is gone.

        Raises TimeoutError if no message arrives within `timeout_s`, and RunError for a message that was truncated or
        cannot be decoded.
        """
        if timeout_s and not self._wait_until_ready(select.POLLIN, timeout_s):
            raise TimeoutError
        try:
            # Not `socket.recv_fds`: it accepts flags but does not pass them on.
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
            message = "a message between ranks was truncated; allow more open files (`ulimit -n 4096`)"
            raise RunError(message)
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
        # The pidfd as well: if the peer has forked, its children keep the socket open when it dies.
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
        """Read all messages that have arrived. False if there will be no more."""
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
