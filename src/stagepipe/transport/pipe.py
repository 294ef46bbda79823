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

F_SETPIPE_SZ = 1031
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
    size = min(max(packets, 16) * PACKET_BYTES, PIPE_BYTES_MAX)
    with contextlib.suppress(OSError):  # a user's pipe pages are limited; a smaller pipe only waits more often
        fcntl.fcntl(write_fd, F_SETPIPE_SZ, size)
    return PipeEnds(read_fd, write_fd, fcntl.fcntl(write_fd, F_SETPIPE_SZ + 1) // PACKET_BYTES)


def make_socket_pair(packets: int) -> PipeEnds:
    """The same by a SOCK_SEQPACKET pair, for kernels without packet pipes."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(packets, 16) * PACKET_BYTES)
    for end in (reader, writer):
        end.setblocking(False)
    return PipeEnds(reader.detach(), writer.detach(), packets)


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
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.fd, 1)

    def hush(self) -> None:
        """Forget the rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


class Waiter:
    """A wait for one pipe end (or none) that a bell can end. Idle workers on one pipe are woken one at a time."""

    def __init__(self, fd: int | None, event: int, *bells: Bell) -> None:
        """`event` is select.EPOLLIN or select.EPOLLOUT."""
        self.epoll = select.epoll()
        if fd is not None:
            self.epoll.register(fd, event | select.EPOLLEXCLUSIVE)
        self.bells = {bell.fd: bell for bell in bells}
        for bell_fd in self.bells:
            self.epoll.register(bell_fd, select.EPOLLIN)

    def wait(self, timeout_s: float) -> None:
        """Until the pipe is ready, a bell rings or the time is over."""
        try:
            for fd, _ in self.epoll.poll(timeout_s):
                bell = self.bells.get(fd)
                if bell is not None:
                    bell.hush()
        except InterruptedError:
            return

    def close(self) -> None:
        """Close the epoll descriptor."""
        self.epoll.close()
