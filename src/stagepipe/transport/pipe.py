"""The packet pipe: one a hop, shared by all workers of both sides. The kernel is queue, lock and load balancer.

`os.pipe2(O_DIRECT)` makes a pipe in packet mode (pipe(2)): every write of up to 4,096 bytes is one packet, whole or not
at all, so there is nothing to repair when a process is killed. Where a kernel refuses it (gVisor), a SOCK_SEQPACKET
pair does the same with the same calls.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
from dataclasses import dataclass

from stagepipe.transport.packet import PACKET_BYTES

_SET_SIZE, _GET_SIZE = 1031, 1032  # F_SETPIPE_SZ and F_GETPIPE_SZ, linux/fcntl.h
_FEWEST = 16
"""Packets that a pipe holds by default."""
PIPE_BYTES_MAX = 1 << 20
"""What /proc/sys/fs/pipe-max-size allows a user by default."""


@dataclass(frozen=True)
class PipeEnds:
    """Both ends of a hop's pipe, as file descriptors, and how many packets it holds."""

    read_fd: int
    write_fd: int
    capacity: int

    def close(self) -> None:
        """Close both ends."""
        for fd in {self.read_fd, self.write_fd}:
            with contextlib.suppress(OSError):
                os.close(fd)


def make_pipe(packets: int) -> PipeEnds:
    """A packet pipe that holds at least 16 packets, and `packets` where the kernel allows it (256 at most)."""
    try:
        read_fd, write_fd = os.pipe2(os.O_DIRECT | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return make_socket_pair(packets)
    size = min(max(packets, _FEWEST) * PACKET_BYTES, PIPE_BYTES_MAX)
    with contextlib.suppress(OSError):  # a user's pipe pages are limited; a smaller pipe only waits more often
        fcntl.fcntl(write_fd, _SET_SIZE, size)
    return PipeEnds(read_fd, write_fd, fcntl.fcntl(write_fd, _GET_SIZE) // PACKET_BYTES)


_RECORD_COST = 3 * PACKET_BYTES
"""What the kernel counts for a full packet on a socket: its bytes in a buffer twice as large, and its head."""


def make_socket_pair(packets: int) -> PipeEnds:
    """The same by a SOCK_SEQPACKET pair, for kernels without packet pipes."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # socket(7): the kernel doubles what is asked for, and net.core.wmem_max bounds it.
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(packets, _FEWEST) * _RECORD_COST // 2)
    granted = writer.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    for end in (reader, writer):
        os.set_blocking(end.fileno(), False)
    return PipeEnds(reader.detach(), writer.detach(), granted // _RECORD_COST)


def make_byte_pipe() -> tuple[int, int]:
    """A non-blocking byte pipe (read end, write end) for records much smaller than a packet."""
    return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


class Bell:
    """An eventfd that ends a wait of another thread or process."""

    def __init__(self, fd: int | None = None) -> None:
        """Make one, or take over the inherited `fd`."""
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd

    def ring(self) -> None:
        """End the wait that is going on, or the next one."""
        if self.fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self.fd, 1)

    def hush(self) -> None:
        """Forget the rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def wait(self, timeout_s: float) -> None:
        """Until it rings or the time is over."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        if poll.poll(timeout_s * 1000):
            self.hush()

    def close(self) -> None:
        """Close the descriptor. A ring after that reaches nobody."""
        os.close(self.fd)
        self.fd = -1


class Waiter:
    """A wait for one pipe end (or none) that a bell can end.

    Idle readers of one pipe are woken one at a time: each packet written wakes one. Writers are all woken, because
    the kernel tells of room only when a full pipe is first read from: were one woken, which then writes one packet and
    goes back to its work, the others would sleep beside an empty pipe.
    """

    def __init__(self, fd: int | None, event: int, *bells: Bell) -> None:
        """`event` is select.EPOLLIN or select.EPOLLOUT."""
        self.epoll = select.epoll()
        if fd is not None:
            self.epoll.register(fd, event | select.EPOLLEXCLUSIVE if event == select.EPOLLIN else event)
        self.bells = {bell.fd: bell for bell in bells}
        for bell_fd in self.bells:
            self.epoll.register(bell_fd, select.EPOLLIN)

    def wait(self, timeout_s: float) -> None:
        """Until the pipe is ready, a bell rings or the time is over."""
        for fd, _ in self.epoll.poll(timeout_s):
            bell = self.bells.get(fd)
            if bell is not None:
                bell.hush()

    def close(self) -> None:
        """Close the epoll descriptor."""
        self.epoll.close()
