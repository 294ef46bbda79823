"""The packet pipe of a hop, shared by all its workers, and waits on it. The kernel queues, locks and balances the load.

`os.pipe2(O_DIRECT)` makes a pipe in packet mode (pipe(2)): every write of up to 4,096 bytes is one packet, written
completely or not at all, so a killed process leaves nothing to repair. On kernels without packet mode (gVisor), a
SOCK_SEQPACKET pair supports the same calls and behaves the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
from dataclasses import dataclass

from stagepipe.transport.native import read_ready
from stagepipe.transport.packet import PACKET_BYTES

_F_SETPIPE_SZ = 1031  # F_SETPIPE_SZ, linux/fcntl.h
_F_GETPIPE_SZ = 1032  # F_GETPIPE_SZ, linux/fcntl.h
_MIN_PACKETS = 16
"""The default capacity of a pipe: 16 pages, pipe(7)."""
MAX_PIPE_BYTES = 1 << 20
"""The default of /proc/sys/fs/pipe-max-size, the limit for an unprivileged user."""


@dataclass(frozen=True)
class PipeEnds:
    """The file descriptors of both ends of a hop's pipe, and its capacity."""

    read_fd: int
    write_fd: int
    capacity_packets: int

    def close(self) -> None:
        """Close both ends."""
        for fd in {self.read_fd, self.write_fd}:
            with contextlib.suppress(OSError):
                os.close(fd)


def make_packet_pipe(capacity_packets: int) -> PipeEnds:
    """Make a packet pipe for at least 16 packets, and for `capacity_packets` if the kernel allows it (256 at most)."""
    try:
        read_fd, write_fd = os.pipe2(os.O_DIRECT | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return make_socket_pair(capacity_packets)
    size = min(max(capacity_packets, _MIN_PACKETS) * PACKET_BYTES, MAX_PIPE_BYTES)
    with contextlib.suppress(OSError):  # a smaller pipe only waits more often: the kernel limits a user's pipe pages
        fcntl.fcntl(write_fd, _F_SETPIPE_SZ, size)
    return PipeEnds(read_fd, write_fd, fcntl.fcntl(write_fd, _F_GETPIPE_SZ) // PACKET_BYTES)


_SOCKET_BYTES_PER_PACKET = 3 * PACKET_BYTES
"""The bytes that the kernel charges a socket for a full packet: a buffer of twice its size, and the buffer's header."""


def make_socket_pair(capacity_packets: int) -> PipeEnds:
    """Replace `make_packet_pipe` with a SOCK_SEQPACKET pair, for kernels without packet pipes."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # socket(7): the kernel doubles the requested size, up to net.core.wmem_max.
    writer.setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, max(capacity_packets, _MIN_PACKETS) * _SOCKET_BYTES_PER_PACKET // 2
    )
    granted = writer.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    for end in (reader, writer):
        os.set_blocking(end.fileno(), False)
    return PipeEnds(reader.detach(), writer.detach(), granted // _SOCKET_BYTES_PER_PACKET)


def make_byte_pipe() -> tuple[int, int]:
    """Make a non-blocking byte pipe (read end, write end) for records much smaller than a packet."""
    return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


def read_packet(fd: int) -> bytes | None:
    """Read a packet without waiting. Returns b"" if no writer is left, None if no packet is there."""
    try:
        return os.read(fd, PACKET_BYTES)
    except BlockingIOError:
        return None


class WakeEvent:
    """An eventfd with which one thread or process ends the wait of another."""

    def __init__(self, fd: int | None = None) -> None:
        """Create an eventfd, or take ownership of the inherited `fd`."""
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd

    def set(self) -> None:
        """End the current wait, or the next one if nothing waits. No effect after `close`."""
        if self.fd >= 0:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        """Discard all wake-ups so far."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def wait(self, timeout_s: float) -> None:
        """Wait until the event is set or `timeout_s` has passed, and clear it."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        if poll.poll(timeout_s * 1000):
            self.clear()

    def close(self) -> None:
        """Close the descriptor; `set` has no effect afterwards."""
        os.close(self.fd)
        self.fd = -1


class PipeWaiter:
    """Waits for one pipe end (or none) until it is ready or a wake event is set.

    Each packet written wakes one idle reader. The kernel wakes all writers together, because it reports free space only
    at the first read from a full pipe. If that read woke only one writer, and the writer sent one packet and went back
    to work, the others would sleep while the pipe is empty.
    """

    def __init__(self, fd: int | None, epoll_event: int, *wake_events: WakeEvent) -> None:
        """`epoll_event` is select.EPOLLIN or select.EPOLLOUT."""
        self._fd = -1 if fd is None else fd
        self._epoll = select.epoll()
        self._epoll_fd = self._epoll.fileno()
        if fd is not None:
            self._epoll.register(
                fd, epoll_event | select.EPOLLEXCLUSIVE if epoll_event == select.EPOLLIN else epoll_event
            )
        self._wake_events = {wake_event.fd: wake_event for wake_event in wake_events}
        for wake_event_fd in self._wake_events:
            self._epoll.register(wake_event_fd, select.EPOLLIN)

    def wait(self, timeout_s: float) -> None:
        """Wait until the pipe is ready, a wake event is set (then clear it) or `timeout_s` has passed."""
        for fd, _ in self._epoll.poll(timeout_s):
            if fd in self._wake_events:
                self._wake_events[fd].clear()

    def read(self, timeout_s: float) -> bytes | None:
        """Wait as `wait` does, and read a packet: b"" at the end of file, None if no packet is there."""
        if read_ready is not None:
            data = read_ready(self._epoll_fd, self._fd, timeout_s)
            if data is not None:
                return data
            timeout_s = 0  # a wake event, a signal or the timeout ended the wait
        self.wait(timeout_s)
        return read_packet(self._fd)

    def close(self) -> None:
        """Close the epoll descriptor."""
        self._epoll.close()
