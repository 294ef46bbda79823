"""A worker's ear: a thread on the control channel, so that a seek or the end reaches it in the middle of a wait."""

from __future__ import annotations

import os
import select
import threading

import zmq

from stagepipe.runtime.messages import Event, Seek, Stop, decode_command, encode
from stagepipe.transport import Bell, Waiter

_TICK_MS = 1000
_LINGER_MS = 2000


class Control:
    """The worker's end of the control channel. The main thread reads `stopping` and `told`; `bell` ends its waits."""

    def __init__(self, address: str, number: int, ear_fd: int) -> None:
        """Connect to the supervisor at the zmq address `address`, as process `number`, which rings `ear_fd` too."""
        self.bell = Bell(ear_fd)
        self.stopping = False
        self.told: Seek | None = None
        self._waiter = Waiter(None, select.EPOLLIN, self.bell)
        self._parent = os.getppid()
        self._context = zmq.Context()
        self._wake = self._context.socket(zmq.PAIR)
        self._wake.bind("inproc://events")
        self._thread = threading.Thread(
            target=self._run, args=(address, str(number).encode()), name="stagepipe-control", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float) -> None:
        """Until there is a command, or the time is over."""
        self._waiter.wait(timeout_s)

    def send(self, event: Event) -> None:
        """Tell the supervisor. Called on the main thread only."""
        self._wake.send(encode(event))

    def close(self) -> None:
        """End the thread once it has sent what there is."""
        self._wake.send(b"")
        self._thread.join(timeout=_LINGER_MS / 1000)
        self._wake.close(linger=0)
        if not self._thread.is_alive():
            self._context.term()

    def _run(self, address: str, name: bytes) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, name)
        socket.setsockopt(zmq.LINGER, _LINGER_MS)
        socket.connect(address)
        events = self._context.socket(zmq.PAIR)
        events.connect("inproc://events")
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(events, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll(_TICK_MS))
                if os.getppid() != self._parent:  # a second string to the life pipe, should a fork hold that open
                    os._exit(1)
                if events in ready:
                    event = events.recv()
                    if not event:
                        return
                    socket.send(event)
                if socket in ready:
                    self._obey(socket.recv())
        finally:
            events.close(linger=0)
            socket.close()

    def _obey(self, data: bytes) -> None:
        command = decode_command(data)
        if isinstance(command, Stop):
            self.stopping = True
        else:
            self.learn(command)
        self.bell.ring()

    def learn(self, seek: Seek) -> None:
        """A seek was told here, or was read from the board."""
        if self.told is None or seek.generation > self.told.generation:
            self.told = seek
