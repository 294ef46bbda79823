"""The writing side of a hop, with every phase timed. One `Sender` a process at most."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from stagepipe.core import Key
from stagepipe.timing import Recorder
from stagepipe.transport.codec import Encoder
from stagepipe.transport.large import fragments, make_body
from stagepipe.transport.lease import Memory
from stagepipe.transport.packer import Counts, Packer
from stagepipe.transport.packet import OUT_OF_BAND, Head, Kind, pack, stamp
from stagepipe.transport.pipe import Bell, Waiter
from stagepipe.transport.policy import Policy

TICK_S = 0.01
"""A wait's length while leases are out: so long may a block that nobody needs any more stay taken."""
IDLE_S = 0.25

Interrupted = Callable[[], bool]
"""Asked at every tick of a wait: is there something more important (a seek, the end)?"""


class Sender:
    """The writing side of a hop."""

    def __init__(  # noqa: PLR0917 - what the process lends it, in the order in which it is made
        self,
        fd: int,
        memory: Memory,
        policy: Policy,
        bell: Bell,
        interrupted: Interrupted,
        recorder: Recorder,
        tick: Callable[[], None] | None = None,
    ) -> None:
        """`recorder` takes rows of (encode, copy, send, send_wait) in ns; `bell` ends a wait; `tick` runs in waits."""
        self._fd, self._memory, self._interrupted = fd, memory, interrupted
        self._tick = tick or memory.flush
        self._waiter = Waiter(fd, select.EPOLLOUT, bell)
        self.counts = Counts()
        self._encoder = Encoder(memory, policy.small_bytes)
        self._packer = Packer(self._encoder, memory, policy, self.counts)
        self._recorder = recorder
        self._last_send_ns = 0
        self.blocked_ns = 0

    def send(self, box: list[Any], generation: int, key: Key, samples: int, meta: bytes) -> bool:
        """Send the item in `box` and leave the box empty; False if it was interrupted, and the item dropped.

        The box lets go of the item before it is sent, so that what nobody else holds is handed over uncopied. Raises
        what the item's pickling raises, ArenaFullError, or TransportError; nothing of the item is sent or held then.
        """
        begin = perf_counter_ns()
        encoder, packer, head = self._encoder, self._packer, (generation, key, samples, meta)
        encoder.encode(box[0])
        box.clear()
        encoded = perf_counter_ns()
        try:
            packet, body = packer.pack(head), None
            if packet is None:
                packet, body = self._announce(head)
            encoder.clear()
            copied = perf_counter_ns()
            spent = copied - begin + self._last_send_ns
            waited = self._write(packet, spent, copied)
            if body is not None and waited >= 0:
                waited = self._write_body(body, generation, waited)
        except BaseException:
            encoder.clear()
            packer.take_back()
            raise
        if waited < 0:
            packer.take_back()
            return False
        self._last_send_ns = perf_counter_ns() - copied - waited
        nbytes = len(packet) + (packer.block_bytes if body is None else len(body))
        copy, send = copied - encoded, self._last_send_ns
        entry = (packer.way, nbytes, copy + send)
        self._recorder.add((encoded - begin, copy, send, waited), entry)
        self.blocked_ns += waited
        return True

    def tell(
        self, kind: Kind, generation: int, key: Key, *, samples: int = 1, count: int = 0, meta: bytes = b""
    ) -> bool:
        """Send a packet without an item; False if it was interrupted."""
        packet = pack(kind, (generation, key, samples, meta), number=count)
        waited = self._write(packet, 0, perf_counter_ns())
        self.blocked_ns += max(waited, 0)
        return waited >= 0

    # ------------------------------------------------------------------ a large item through the pipe

    def _announce(self, head: Head) -> tuple[bytearray, bytearray]:
        """The packet that announces an item, and the item."""
        encoder, counts = self._encoder, self.counts
        body = make_body(
            ((encoder.raw(buffer), OUT_OF_BAND if buffer.out_of_band else 0) for buffer in encoder.buffers),
            encoder.pickle,
        )
        counts.pipe += 1
        counts.inline_bytes += len(body)
        return pack(Kind.LARGE, head, number=len(body)), body

    def _write_body(self, body: bytearray, generation: int, waited: int) -> int:
        """The fragments of a large item: for how many ns all its writes waited; -1 if interrupted in the middle."""
        for pieces in fragments(body, generation):
            try:
                os.writev(self._fd, pieces)
            except BlockingIOError:
                more = self._write_waiting(pieces, 0)
                if more < 0:
                    return -1
                waited += more
        return waited

    # ------------------------------------------------------------------ the writes

    def _write(self, packet: bytearray, spent: int, begin: int) -> int:
        """Write, and say for how many ns that had to wait; -1 if interrupted."""
        stamp(packet, spent, begin)
        try:
            os.write(self._fd, packet)
        except BlockingIOError:
            return self._write_waiting((packet,), spent)
        return 0

    def _write_waiting(self, pieces: Sequence[bytearray | bytes | memoryview], spent: int) -> int:
        begin = perf_counter_ns()
        packet = pieces[0]
        while not self._interrupted():
            self._tick()
            self._waiter.wait(TICK_S if self._memory.leased else IDLE_S)
            now = perf_counter_ns()
            if isinstance(packet, bytearray):  # a whole packet; fragments carry no stamp
                stamp(packet, spent, now)
            try:
                os.writev(self._fd, pieces)
            except BlockingIOError:
                continue
            return now - begin
        return -1

    def close(self) -> None:
        """Close the wait."""
        self._waiter.close()
