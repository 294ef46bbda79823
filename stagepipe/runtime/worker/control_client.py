"""The worker's end of the control channel.

A thread receives the commands, so that a seek or a stop interrupts any wait of the main thread. It also writes items
that the sender has held too long, because the main thread may be in user code that waits.
"""

from __future__ import annotations

import os
import select
import threading
from functools import partial

import zmq

from stagepipe.core import end_if_forked, this_process
from stagepipe.runtime.protocol import Retire, Seek, Stop, WorkerEvent, decode_command, encode_message
from stagepipe.transport import PipeWaiter, Sender, WakeEvent

_WATCH = b"watch"
_CHECK_INTERVAL_MS = 10
_CHECKS_BEFORE_IDLE = 3
_LINGER_MS = 2000
"""The time that `close` waits for unsent events."""


class ControlClient:
    """Receives commands and sends events.

    The main thread reads `is_stopping`, `is_retiring` and `current_seek`; `wake_event` ends its waits.
    """

    def __init__(self, address: str, process: int, wake_fd: int, supervisor_pidfd: int) -> None:
        """Connect to the supervisor at the zmq address `address` as process `process`.

        `wake_fd` belongs to the wake event, which the supervisor can set too. This process exits when the process of
        `supervisor_pidfd` has exited.
        """
        self._pid = this_process.pid
        self.wake_event = WakeEvent(wake_fd)
        self.is_stopping = False
        self.is_retiring = False
        self.current_seek: Seek | None = None
        self._waiter = PipeWaiter(None, select.EPOLLIN, self.wake_event)
        self._supervisor_pidfd = supervisor_pidfd
        self._sender: Sender | None = None
        self._zmq_context = zmq.Context()
        self._event_socket = self._zmq_context.socket(zmq.PAIR)
        self._event_socket.bind("inproc://events")
        self._thread = threading.Thread(
            target=self._run, args=(address, str(process).encode()), name="stagepipe-control", daemon=True
        )
        self._thread.start()

    def attach_sender(self, sender: Sender) -> None:
        """Call the sender's `write_late` every 10 ms while it holds anything."""
        self._sender = sender
        sender.watch = partial(self._event_socket.send, _WATCH)
        sender.is_watched = False

    def wait(self, timeout_s: float) -> None:
        """Wait for a command, for at most `timeout_s`."""
        self._waiter.wait(timeout_s)

    def send(self, event: WorkerEvent) -> None:
        """Send an event to the supervisor. Only the main thread may call it."""
        end_if_forked(self._pid, "worker")
        self._event_socket.send(encode_message(event))

    def close(self) -> None:
        """Send the pending events, then end the thread."""
        self._event_socket.send(b"")
        self._thread.join(timeout=_LINGER_MS / 1000)
        self._event_socket.close(linger=0)
        if not self._thread.is_alive():
            self._zmq_context.term()

    def _run(self, address: str, identity: bytes) -> None:
        socket = self._zmq_context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, identity)
        socket.setsockopt(zmq.LINGER, _LINGER_MS)
        socket.connect(address)
        events = self._zmq_context.socket(zmq.PAIR)
        events.connect("inproc://events")
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(events, zmq.POLLIN)
        poller.register(self._supervisor_pidfd, zmq.POLLIN)
        checks_left = 0
        try:
            while True:
                ready = dict(poller.poll(_CHECK_INTERVAL_MS if checks_left else None))
                checks_left = self._check_held(checks_left)
                if self._supervisor_pidfd in ready:  # a fork may hold the lifetime pipe open
                    os._exit(1)
                if events in ready:
                    event = events.recv()
                    if not event:
                        return
                    if event == _WATCH:
                        checks_left = _CHECKS_BEFORE_IDLE
                    else:
                        socket.send(event)
                if socket in ready:
                    self._handle_command(socket.recv())
        finally:
            events.close(linger=0)
            socket.close()

    def _check_held(self, checks_left: int) -> int:
        """Write items that the sender has held too long. Returns the number of further checks before they may end."""
        if not checks_left or self._sender is None:
            return checks_left
        if self._sender.write_late():
            return _CHECKS_BEFORE_IDLE
        if checks_left == 1:
            self._sender.is_watched = False
            if self._sender.write_late():  # held between the last check and the previous line
                self._sender.is_watched = True
                return _CHECKS_BEFORE_IDLE
        return checks_left - 1

    def _handle_command(self, data: bytes) -> None:
        command = decode_command(data)
        if isinstance(command, Stop):
            self.is_stopping = True
        elif isinstance(command, Retire):
            self.is_retiring = True
        else:
            self.update_seek(command)
        self.wake_event.set()

    def update_seek(self, seek: Seek) -> None:
        """Take a seek from the channel or from the board, unless a newer one is known."""
        if self.current_seek is None or seek.generation > self.current_seek.generation:
            self.current_seek = seek
