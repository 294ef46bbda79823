"""The supervisor's end of the control channel. Commands may be left by any thread; its thread sends and hears."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from time import monotonic

import zmq

from stagepipe.runtime.door import Door
from stagepipe.runtime.messages import Event, decode_event

_MOST = 256


class Channel:
    """Typed commands to the workers by their numbers, and their events."""

    def __init__(self, owned: contextlib.ExitStack) -> None:
        """`owned` closes it."""
        self._door = Door(owned)
        self.socket, self.door_fd = self._door.socket, self._door.fd
        self._outbox: deque[tuple[int, bytes]] = deque()

    def leave(self, number: int, data: bytes) -> None:
        """Leave a command, encoded, for a worker."""
        self._outbox.append((number, data))

    def send(self) -> None:
        """Send what was left. What a worker that is gone would get is dropped."""
        while self._outbox:
            number, data = self._outbox.popleft()
            with contextlib.suppress(zmq.Again):
                self.socket.send_multipart((str(number).encode(), data), zmq.NOBLOCK)

    def events(self, wait_s: float = 0.0) -> Iterator[Event]:
        """The events that are here, or come within that time."""
        deadline = monotonic() + wait_s
        for _ in range(_MOST):  # a flood of them may not keep the supervisor from all else
            if not self.socket.poll(max(int(1000 * (deadline - monotonic())), 0)):
                return
            yield decode_event(self.socket.recv_multipart()[1])
