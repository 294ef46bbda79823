"""The reading side of a hop, with every phase timed. One `Receiver` a process at most."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from stagepipe.core import Key, TransportError
from stagepipe.timing import Recorder, Way
from stagepipe.transport.codec import decode
from stagepipe.transport.large import Body, is_fragment
from stagepipe.transport.lease import Memory
from stagepipe.transport.packet import INLINE, OUT_OF_BAND, PACKET_BYTES, Flag, Kind, Packet, unpack
from stagepipe.transport.pipe import Bell, Waiter
from stagepipe.transport.sender import IDLE_S, TICK_S, Interrupted
from stagepipe.transport.unpacker import blocks_of, views_of


@dataclass(slots=True)
class Received:
    """A packet as its reader wants it."""

    kind: int
    key: Key
    samples: int
    count: int
    meta: bytes
    value: Any


class Receiver:
    """The reading side of a hop."""

    def __init__(  # noqa: PLR0917 - what the process lends it, in the order in which it is made
        self,
        fd: int,
        memory: Memory,
        bell: Bell,
        interrupted: Interrupted,
        recorder: Recorder,
        tick: Callable[[], None] | None = None,
        *,
        readonly: bool = True,
        private: bool = False,
    ) -> None:
        """`recorder` takes rows of (queue, receive, decode, cost) in ns.

        `readonly` marks arrays so (a stage); `private` copies every buffer out (`mutable: true`). Where neither is
        set (the training loop) only what somebody else may still lease is copied. `private` may be set at any time.
        """
        self._fd, self._memory, self._interrupted, self._recorder = fd, memory, interrupted, recorder
        self._readonly, self.private = readonly and not private, private
        self._tick, self._bell = tick or memory.flush, bell
        self._waiter = Waiter(fd, select.EPOLLIN, bell)
        self._hand: Packet | None = None
        self._read_ns = 0
        self.starved_ns = 0
        self.copied_out = 0
        self.queue_ns = 0

    def receive(self, generation: int, timeout_s: float | None = None) -> Received | None:
        """The next packet of `generation`; None when it was interrupted, or nothing came for `timeout_s`.

        Packets of the past are dropped and their blocks given back. One of the future stays in hand until its reader
        has entered that generation. TransportError if a packet is damaged or cannot be rebuilt.
        """
        self._memory.flush_if_many()
        while True:
            packet = self._hand
            if packet is None:
                packet = self._read(timeout_s)
                if packet is None:
                    return None
            if packet.generation > generation:
                self._hand = packet
                if not self._interrupted():
                    # Not on the pipe: there may be more in it, and a wake-up that is meant for another reader.
                    self._bell.wait(TICK_S)
                return None
            self._hand = None
            if packet.generation == generation:
                return self._open(packet)
            for arena, block in blocks_of(packet, self._memory):
                self._memory.refuse(arena, block)
            self._memory.flush_if_many()

    # ------------------------------------------------------------------ reading

    def _read(self, timeout_s: float | None) -> Packet | None:
        while True:
            data = bytearray(PACKET_BYTES)
            try:
                length = os.readv(self._fd, (data,))
            except BlockingIOError:
                length = 0
            if not length:
                begin = perf_counter_ns()
                length = self._wait_and_read(data, timeout_s)
                self.starved_ns += perf_counter_ns() - begin
                if not length:
                    return None
            now = perf_counter_ns()
            del data[length:]
            try:
                packet = unpack(data)
            except TransportError:
                if is_fragment(data):  # what is left of a large item that nobody waits for any more
                    continue
                raise
            self._read_ns = now
            return packet

    def _wait_and_read(self, data: bytearray, timeout_s: float | None = None) -> int:
        """Wait until something can be read into `data`: how many bytes; 0 if interrupted, or after `timeout_s`."""
        deadline = None if timeout_s is None else perf_counter_ns() + int(timeout_s * 1e9)
        while not self._interrupted():
            self._tick()
            wait_s = TICK_S if self._memory.leased else IDLE_S
            if deadline is not None:
                left_s = (deadline - perf_counter_ns()) / 1e9
                if left_s <= 0:
                    return 0
                wait_s = min(wait_s, left_s)
            self._waiter.wait(wait_s)
            try:
                length = os.readv(self._fd, (data,))
            except BlockingIOError:
                continue
            if length:
                return length
            self._bell.wait(min(wait_s, TICK_S))  # no writer is left, and that never ends a wait on the pipe
        return 0

    # ------------------------------------------------------------------ opening

    def _open(self, packet: Packet) -> Received | None:
        kind = packet.kind
        if kind not in (Kind.ITEM, Kind.LARGE):
            return Received(kind, packet.key, packet.samples, packet.number, packet.meta, None)
        begin = perf_counter_ns()
        buffers: list[Any] = []
        flags: list[int] = []
        way, nbytes = Way.PIPE, len(packet.data)
        if kind == Kind.LARGE:
            body = self._read_body(packet)
            if body is None:
                return None
            buffers, flags, stream = body.open()
            nbytes += packet.number
        elif packet.descriptors:
            buffers, flags, stream, copied = views_of(
                packet, self._memory, private=self.private, own_shared=not self._readonly
            )
            self.copied_out += copied
            way, nbytes = _way_of(packet, buffers, nbytes)
        else:
            at, end = packet.pickle
            stream = memoryview(packet.data)[at:end]
        received = perf_counter_ns()
        out_of_band = self._out_of_band(buffers, flags) if any(flags) else ()
        value = decode(stream, buffers, out_of_band, readonly=self._readonly)
        del stream, buffers, out_of_band
        end_ns = perf_counter_ns()
        queue = max(self._read_ns - packet.sent_ns, 0)
        self.queue_ns = queue
        receive, decoding = received - begin, end_ns - received
        row = (queue, receive, decoding, packet.spent_ns + receive + decoding)
        self._recorder.add(row, (way, nbytes, receive))
        return Received(Kind.ITEM, packet.key, packet.samples, 0, packet.meta, value)

    def _out_of_band(self, buffers: list[Any], flags: list[int]) -> list[memoryview]:
        """What pickle itself asks for, in order."""
        views = [memoryview(buffer) for buffer, flag in zip(buffers, flags, strict=True) if flag & OUT_OF_BAND]
        return [view.toreadonly() for view in views] if self._readonly else views

    def _read_body(self, packet: Packet) -> Body | None:
        """The fragments that follow a packet of kind LARGE; None if they are not wanted or not sent any more."""
        body = Body(packet)
        while not body.complete:
            data = bytearray(PACKET_BYTES)
            try:
                length = os.readv(self._fd, (data,))
            except BlockingIOError:
                length = 0
            length = length or self._wait_and_read(data)
            if not length:
                return None
            del data[length:]
            if is_fragment(data):
                if not body.add(data):
                    return None
                continue
            following = unpack(data)
            if following.generation <= packet.generation:
                raise TransportError(f"item {packet.key[0]}: its sender stopped in the middle of it")
            self._hand = following
            return None
        return body

    def close(self) -> None:
        """Close the wait."""
        self._waiter.close()


def _way_of(packet: Packet, buffers: list[Any], inline_bytes: int) -> tuple[Way, int]:
    """How a packet came, as far as its reader can tell, and how many bytes it brought, those in blocks with it."""
    lengths = [length for arena, _, _, _, _, length in packet.descriptors if arena != INLINE]
    if not lengths:
        return Way.PIPE, inline_bytes
    block_bytes = sum(map(len, buffers)) if packet.flags & Flag.TABLE else sum(lengths)
    return Way.COPIED, inline_bytes + block_bytes
