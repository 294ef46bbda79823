"""The typed connection between two ranks of a machine, and the ear, a thread that listens to some of them."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from array import array
from collections.abc import Callable, Sequence
from time import monotonic

import msgspec

from stagepipe.core import RunError
from stagepipe.torch.node.messages import Handed, Message, decode, encode
from stagepipe.transport import Bell

_CREDENTIALS = struct.Struct("3i")  # struct ucred, see unix(7)
_LARGEST = 64 << 10
"""Bytes of a message: what a socket's buffer takes of a peer that is stopped for a while."""
_FDS = 200
"""Descriptors in a message; the kernel takes 253 (SCM_MAX_FD)."""
_ROOM = socket.CMSG_LEN(_FDS * array("i").itemsize)
_SEND_S = 10.0
_JOIN_S = 5.0


class Line:
    """One end of a connection. `pid` is the process on the other."""

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected SOCK_SEQPACKET socket. RunError where the other side is another user's."""
        self._socket = connected
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid != os.getuid():
            connected.close()
            message = f"process {self.pid} of user {uid} is at the other end of the ranks' socket, and this is user "
            raise RunError(f"{message}{os.getuid()}; all ranks of a machine must run as the same user")
        connected.settimeout(0)  # two threads use it: neither may set a timeout for the other
        self.fd = connected.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """False if the other side is gone, or takes nothing for ten seconds."""
        data = encode(message)
        deadline = monotonic() + _SEND_S
        while True:
            try:
                socket.send_fds(self._socket, [data], fds)
            except BlockingIOError:
                if not self._ready(select.POLLOUT, deadline - monotonic()):
                    return False
            except OSError:
                return False
            else:
                return True

    def _ready(self, event: int, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self.fd, event)
        return timeout_s > 0 and bool(poll.poll(timeout_s * 1000))

    def hand(self, fds: Sequence[int]) -> bool:
        """Send descriptors, any number of them."""
        starts = range(0, len(fds), _FDS)
        return all(self.send(Handed(max(len(fds) - at - _FDS, 0)), fds[at : at + _FDS]) for at in starts)

    def receive(self, timeout_s: float) -> tuple[Message | None, list[int]]:
        """The next message and its descriptors; None when the other side is gone. TimeoutError."""
        if timeout_s and not self._ready(select.POLLIN, timeout_s):
            raise TimeoutError
        try:
            # Not `recv_fds`, which takes flags and does not pass them on.
            data, ancillary, flags, _ = self._socket.recvmsg(_LARGEST, _ROOM, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError as error:
            raise TimeoutError from error
        except OSError:
            return None, []
        if not data:
            return None, []
        fds = array("i", b"".join(found for _, _, found in ancillary)).tolist()
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            message = "a message between ranks was cut short; allow more open files (`ulimit -n 4096`)"
            raise RunError(message)
        try:
            return decode(data), fds
        except msgspec.MsgspecError as error:
            message = f"process {self.pid} says what no rank says ({error}); all ranks need the same stagepipe"
            raise RunError(message) from error

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


Heard = Callable[[Line, Message | None], None]
"""Told of each message; of None when the other side is gone, once."""


class Ear:
    """A thread that listens to some lines, and sees the processes behind them end."""

    def __init__(self, lines: Sequence[Line], heard: Heard) -> None:
        """Begin to listen. `heard` runs on this thread."""
        self._heard, self._wake = heard, Bell()
        self._closing = False
        self._line_of: dict[int, Line] = {}
        self._pidfds: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(self._wake.fd, select.POLLIN)
        for line in lines:
            self._listen(line)
        self._thread = threading.Thread(target=self._run, name="stagepipe-ranks", daemon=True)
        self._thread.start()

    def _listen(self, line: Line) -> None:
        self._line_of[line.fd] = line
        self._poll.register(line.fd, select.POLLIN)
        # A second string: where the process has forked, its children keep the socket open when it dies.
        with contextlib.suppress(OSError):
            pidfd = self._pidfds[line.fd] = os.pidfd_open(line.pid)
            self._line_of[pidfd] = line
            self._poll.register(pidfd, select.POLLIN)

    def _run(self) -> None:
        while not self._closing:
            for fd, _ in self._poll.poll():
                line = self._line_of.get(fd)
                if line is not None and not self._hear(line, ended=fd != line.fd):
                    self._forget(line)
                    self._heard(line, None)

    def _hear(self, line: Line, *, ended: bool) -> bool:
        """Hear what there is; False if there will be no more."""
        try:
            while True:
                message, _ = line.receive(0.0)
                if message is None:
                    return False
                self._heard(line, message)
        except TimeoutError:
            return not ended
        except RunError:
            return False

    def _forget(self, line: Line) -> None:
        self._poll.unregister(line.fd)
        self._line_of.pop(line.fd)
        pidfd = self._pidfds.pop(line.fd, -1)
        if pidfd >= 0:
            self._poll.unregister(pidfd)
            self._line_of.pop(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        """End the thread. Not from `heard`."""
        self._closing = True
        self._wake.ring()
        self._thread.join(_JOIN_S)
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()
        self._wake.close()
