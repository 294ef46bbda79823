"""The supervisor's end of the control channel. In the caller's process.

Any thread may queue commands, which wakes the supervisor's thread. Only that thread sends them and receives events: a
ZeroMQ socket belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from time import monotonic

import zmq

from stagepipe.runtime.protocol import ControlSocket, WorkerEvent, decode_event
from stagepipe.transport import WakeEvent

_MAX_EVENTS_PER_READ = 256


class ControlServer:
    """Sends commands to workers by their process index, and receives the workers' events."""

    def __init__(self, exit_stack: contextlib.ExitStack) -> None:
        """Bind the control socket; `exit_stack` closes it."""
        self._control_socket = ControlSocket(exit_stack)
        self.socket = self._control_socket.socket
        self.control_socket_fd = self._control_socket.fd
        self.wake_event = WakeEvent()
        """Ends the wait of the supervisor's thread."""
        exit_stack.callback(self.wake_event.close)
        self._outbox: deque[tuple[int, bytes]] = deque()

    def queue_command(self, process_index: int, encoded_command: bytes) -> None:
        """Queue an encoded command for a worker. From any thread."""
        self._outbox.append((process_index, encoded_command))
        self.wake_event.set()

    def send_queued(self) -> None:
        """Send all queued commands. Commands to workers that are gone are dropped."""
        while self._outbox:
            process_index, encoded_command = self._outbox.popleft()
            with contextlib.suppress(zmq.Again):
                self.socket.send_multipart((str(process_index).encode(), encoded_command), zmq.NOBLOCK)

    def receive_events(self, timeout_s: float = 0.0) -> Iterator[WorkerEvent]:
        """The events that have arrived, or arrive within `timeout_s`."""
        deadline = monotonic() + timeout_s
        for _ in range(_MAX_EVENTS_PER_READ):  # a flood of events must not starve the supervisor's other work
            if not self.socket.poll(max(int(1000 * (deadline - monotonic())), 0)):
                return
            yield decode_event(self.socket.recv_multipart()[1])
