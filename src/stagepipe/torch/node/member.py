"""Any rank of a machine but the first: it reads what is dealt to it from a packet pipe. In its training process."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from time import monotonic

import numpy as np

from stagepipe.core import RunError, TransportError, cursor_to_plain
from stagepipe.engine.state import Position
from stagepipe.plan import SINK
from stagepipe.timing import RECEIVE_PHASES, Recorder
from stagepipe.timing.histogram import WORDS
from stagepipe.torch.node.line import Ear, Line
from stagepipe.torch.node.messages import Ask, Closing, Failed, Handed, Hello, Length, Message, Refused, Welcome
from stagepipe.torch.node.rendezvous import DEADLINE_S, connect
from stagepipe.torch.node.seat import Dealt, to_error
from stagepipe.torch.node.world import World
from stagepipe.transport import Bell, Kind, Lease, Memory, Receiver

_LOOK_S = 0.1
_FEW = 4
_LOOK_EVERY = 4
_SHARE = 6
"""All these ranks together may keep a sixth of the pipeline's memory before they get copies; the first one a third."""


class Member:
    """See `Seat`."""

    def __init__(self, world: World, folder: Path, config: str, wait_s: float = DEADLINE_S) -> None:
        """Wait for the first rank, which owns the pipeline. `config` is what all must have alike."""
        self._first = f"rank {world.first_rank}"
        self._fds: list[int] = []
        line = connect(folder, monotonic() + wait_s)
        if line is None:
            message = f"{self._first}, which owns this machine's pipeline, did not start it within {wait_s:.0f} s; "
            raise RunError(f"{message}make the same loaders, in the same order, on all ranks")
        self._line, self._first = line, f"{self._first} (pid {line.pid})"
        try:
            welcome = self._welcomed(Hello(world.local_rank, config), monotonic() + wait_s)
        except BaseException:
            self._close_descriptors()
            raise
        arenas, count = welcome.arenas, len(welcome.arenas)
        arena_fds = dict(zip(arenas, self._fds[1 : 1 + count], strict=True))
        release_fds = dict(zip(arenas, self._fds[1 + count :], strict=True))
        self._memory = Memory(None, arena_fds, release_fds, writable=True, limit=welcome.memory_bytes)
        self._bell = Bell()
        rows = Recorder(np.zeros(len(RECEIVE_PHASES) * WORDS, np.uint64), len(RECEIVE_PHASES))
        self._receiver = Receiver(self._fds[0], self._memory, self._bell, lambda: self._cut, rows, readonly=False)
        self._keep_bytes = welcome.memory_bytes // (_SHARE * (world.local_world_size - 1))
        self._asked = self._taken = 0
        self._length: Length | None = None
        self._failed: Failed | None = None
        self._over: RunError | None = None
        self._owner_closed = self._closed = False
        self._told = threading.Event()
        self._ear = Ear([line], self._heard)

    def _welcomed(self, hello: Hello, deadline: float) -> Welcome:
        self._line.send(hello)
        welcome: Welcome | None = None
        while True:
            try:
                message, fds = self._line.receive(max(deadline - monotonic(), _LOOK_S))
            except TimeoutError as error:
                text = f"{self._first} did not start this machine's pipeline in time; see what it waits for"
                raise RunError(text) from error
            self._fds += fds
            if isinstance(message, Refused):
                raise RunError(message.reason)
            if message is None:
                raise RunError(f"{self._first}, which owns this machine's pipeline, went before it had started it")
            if isinstance(message, Welcome):
                welcome = message
            if isinstance(message, Handed) and welcome is not None and not message.left:
                return welcome

    # ------------------------------------------------------------------ on the ear's thread

    def _heard(self, _: Line, message: Message | None) -> None:
        if isinstance(message, Length):
            self._length = message
        elif isinstance(message, Failed) and message.ask:
            self._failed = message
        elif isinstance(message, Failed):
            self._over = to_error(message)
        elif isinstance(message, Closing):
            self._owner_closed = True
        elif message is None and not self._owner_closed:
            self._over = self._over or RunError(
                f"{self._first}, which owns this machine's pipeline, is gone without closing its loader; "
                "what ended it stands in its own output"
            )
        self._told.set()
        self._bell.ring()

    @property
    def _cut(self) -> bool:
        """Whether there is no use in waiting for another packet."""
        failed = self._failed
        return self._over is not None or self._owner_closed or (failed is not None and failed.ask == self._asked)

    def _check(self, ask: int) -> None:
        """Raise what ended the iteration."""
        if self._over is not None:
            raise self._over
        if self._failed is not None and self._failed.ask == ask:
            raise to_error(self._failed)
        if self._owner_closed:
            message = f"{self._first}, which owns this machine's pipeline, has closed its loader, and all that was "
            raise RunError(f"{message}dealt until then is out; iterate on all ranks alike")

    # ------------------------------------------------------------------ the training loop's

    def ask(self, position: Position) -> int:
        """See `Seat`."""
        self._asked += 1
        cursor = cursor_to_plain(position.cursor)
        self._line.send(Ask(self._asked, position.epoch, position.items, cursor))
        return self._asked

    def take(self, ask: int) -> Dealt | None:
        """See `Seat`."""
        while True:
            if self._over is not None:
                raise self._over
            self._look_at_held()
            try:
                received = self._receiver.receive(ask)
            except TransportError as error:
                raise RunError(f"{SINK}: {error}", stage=SINK, worker=0) from error
            if received is None:
                self._check(ask)
                continue
            if received.kind == Kind.END:
                self._memory.flush()
                return None
            cursor, item = received.value
            received.value, box = None, [item]
            del item
            self._taken += 1
            return Dealt(received.key[0], cursor, box)

    def _look_at_held(self) -> None:
        """A rank that keeps items gets copies from some point on, so that shared memory is left to work with."""
        if self._memory.leased <= _FEW:
            self._receiver.private = False
        elif not self._taken % _LOOK_EVERY:
            self._receiver.private = self._memory.held_bytes() > self._keep_bytes

    def length(self) -> int | None:
        """See `Seat`."""
        while self._length is None:
            self._check(-1)
            self._told.clear()
            if self._length is None:
                self._told.wait(_LOOK_S)
        return self._length.items

    def block_of(self, address: int, nbytes: int) -> Lease | None:
        """See `Seat`."""
        return self._memory.find(address, nbytes)

    def close(self) -> None:
        """See `Seat`. Tensors that were taken stay valid."""
        if self._closed:
            return
        self._closed = True
        self._memory.flush()
        self._line.send(Closing())
        self._ear.close()
        self._receiver.close()
        self._bell.close()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        self._line.close()
        for fd in self._fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._fds = []
