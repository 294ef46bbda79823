"""Sending and receiving on a hop, with every phase timed. One `Sender` and one `Receiver` a process at most."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np

from stagepipe.core import Key, TransportError
from stagepipe.timing import Recorder
from stagepipe.transport.codec import Buffer, Encoder, decode
from stagepipe.transport.lease import Lease, Memory
from stagepipe.transport.packet import (
    INLINE,
    OUT_OF_BAND,
    PACKET_BYTES,
    SHARED,
    Flag,
    Kind,
    Packet,
    fragment,
    fragments,
    overhead_bytes,
    pack,
    stamp,
    unpack,
)
from stagepipe.transport.pipe import Bell, Waiter

_ALIGN = 64
_TICK_S = 0.01
_IDLE_S = 0.25

Interrupted = Callable[[], bool]
"""Asked at every tick of a wait: is there something more important (a seek, the end)?"""


@dataclass(frozen=True)
class Policy:
    """How a hop carries buffers: from `threshold_bytes` up in shared memory; `large_in_pipe` forces all through it."""

    threshold_bytes: int
    force_shared: bool = False
    large_in_pipe: bool = False


@dataclass(slots=True)
class Counts:
    """What a sender has sent."""

    pipe: int = 0
    shared_memory: int = 0
    mixed: int = 0
    inline_bytes: int = 0
    copied_bytes: int = 0
    zero_copy_bytes: int = 0


class Sender:
    """The writing side of a hop."""

    def __init__(
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
        self._fd, self._memory, self._policy, self._interrupted = fd, memory, policy, interrupted
        self._tick = tick or memory.flush
        self._waiter = Waiter(fd, select.EPOLLOUT, bell)
        self._encoder = Encoder(memory)
        self._recorder = recorder
        self._last_send_ns = 0
        self.counts = Counts()
        self.blocked_ns = 0

    def send(self, box: list[Any], generation: int, key: Key, samples: int, meta: bytes) -> bool:
        """Send the item in `box` and leave the box empty; False if it was interrupted, and the item dropped.

        The box lets go of the item before it is sent, so that what nobody else holds is handed over uncopied.
        """
        begin = perf_counter_ns()
        encoder = self._encoder
        encoder.encode(box[0])
        box.clear()
        encoded = perf_counter_ns()
        large: memoryview | None = None
        packet, taken, large = self._packet(generation, key, samples, meta)
        encoder.clear()
        copied = perf_counter_ns()
        spent = copied - begin + self._last_send_ns
        packet[4:8] = min(spent, 0xFFFFFFFF).to_bytes(4, "little")
        waited = self._write(packet, copied)
        if waited < 0:
            if taken >= 0:
                self._memory.give(taken)
            return False
        if large is not None:
            waited += self._write_large(large, generation)
        self._last_send_ns = perf_counter_ns() - copied - waited
        self._recorder.add((encoded - begin, copied - encoded, self._last_send_ns, waited))
        self.blocked_ns += waited
        return True

    def tell(self, kind: Kind, generation: int, key: Key, *, samples: int = 1, count: int = 0, meta: bytes = b"") -> bool:
        """Send a packet without an item; False if it was interrupted."""
        packet = pack(kind, generation, key, samples=samples, count=count, meta=meta)
        waited = self._write(packet, perf_counter_ns())
        self.blocked_ns += max(waited, 0)
        return waited >= 0

    # ------------------------------------------------------------------ what goes where

    def _packet(
        self, generation: int, key: Key, samples: int, meta: bytes
    ) -> tuple[bytearray, int, memoryview | None]:
        """The packet, the block that was taken for it (or -1), and what follows it through a forced pipe."""
        encoder, policy, counts = self._encoder, self._policy, self.counts
        data, buffers = encoder.pickle, encoder.buffers
        if not buffers and len(data) + overhead_bytes(key, 0, meta) <= PACKET_BYTES and not policy.force_shared:
            counts.pipe += 1
            counts.inline_bytes += len(data)
            return pack(Kind.ITEM, generation, key, samples=samples, meta=meta, pickle=data), -1, None
        passed = self._pass_on()
        moved, stream = self._choose(passed, len(data), overhead_bytes(key, len(buffers) + 1, meta))
        if policy.large_in_pipe and (stream or moved):
            return self._through_pipe(generation, key, samples, meta)
        return self._assemble(passed, moved, stream=stream, head=(generation, key, samples, meta))

    def _pass_on(self) -> list[bool]:
        """For each lease that the item lies in, whether it is described as it is."""
        if self._policy.large_in_pipe:
            return [False] * len(self._encoder.leases)
        leases, pass_on = self._encoder.leases, self._memory.pass_on
        tokens = [lease.token for lease in leases]
        del leases
        passed = [pass_on(self._encoder.leases[at]) for at in range(len(tokens))]
        self._tokens = tokens
        return passed

    def _choose(self, passed: list[bool], stream_bytes: int, overhead: int) -> tuple[list[int], bool]:
        """Which buffers are copied into a block (their numbers), and whether the pickle goes there too."""
        policy, buffers = self._policy, self._encoder.buffers
        threshold = 1 if policy.force_shared else policy.threshold_bytes
        moved, inline, room = [], [], PACKET_BYTES - overhead - stream_bytes
        for number, buffer in enumerate(buffers):
            if buffer.lease >= 0 and passed[buffer.lease]:
                continue
            if buffer.nbytes >= threshold:
                moved.append(number)
            else:
                inline.append(number)
                room -= buffer.nbytes + 16
        inline.sort(key=lambda number: buffers[number].nbytes)
        while inline and room < 0:
            number = inline.pop()
            room += buffers[number].nbytes + 16
            moved.append(number)
        return sorted(moved), room < 0 or policy.force_shared

    def _assemble(
        self, passed: list[bool], moved: list[int], *, stream: bool, head: tuple[int, Key, int, bytes]
    ) -> tuple[bytearray, int, None]:
        encoder, memory, counts = self._encoder, self._memory, self.counts
        buffers, data = encoder.buffers, encoder.pickle
        places, block, block_bytes = {}, -1, 0
        for number in moved:
            places[number] = block_bytes
            block_bytes += -(-buffers[number].nbytes // _ALIGN) * _ALIGN
        stream_at = block_bytes
        if stream:
            block_bytes += len(data)
        arena = 0
        if block_bytes:
            own = memory.arena
            assert own is not None
            block, arena = memory.take(block_bytes), own.number
            try:
                for number, at in places.items():
                    self._copy(buffers[number], own.bytes, block + at)
            except BaseException:
                memory.give(block)
                raise
            if stream:
                own.bytes[block + stream_at : block + stream_at + len(data)] = np.frombuffer(data, np.uint8)
            counts.copied_bytes += block_bytes
        descriptors, inline, inline_bytes = [], [], 0
        for number, buffer in enumerate(buffers):
            flags = OUT_OF_BAND if buffer.out_of_band else 0
            if number in places:
                descriptors.append((arena, flags, 0, block, places[number], buffer.nbytes))
            elif buffer.lease >= 0 and passed[buffer.lease]:
                lease = encoder.leases[buffer.lease]
                owner, at = self._tokens[buffer.lease]
                flags |= SHARED if lease.shared else 0
                descriptors.append((owner, flags, 0, at, buffer.start, buffer.nbytes))
                counts.zero_copy_bytes += buffer.nbytes
            else:
                raw = self._raw(buffer).tobytes()
                descriptors.append((INLINE, flags, 0, 0, inline_bytes, buffer.nbytes))
                padding = -len(raw) % 16
                inline.append(raw + bytes(padding) if padding else raw)
                inline_bytes += len(raw) + padding
        if stream:
            descriptors.append((arena, 0, 0, block, stream_at, len(data)))
        in_blocks = len(descriptors) - len(inline)
        if not in_blocks:
            counts.pipe += 1
        elif inline:
            counts.mixed += 1
        else:
            counts.shared_memory += 1
        counts.inline_bytes += inline_bytes + (0 if stream else len(data))
        generation, key, samples, meta = head
        packet = pack(
            Kind.ITEM,
            generation,
            key,
            flags=Flag.STREAM if stream else 0,
            samples=samples,
            descriptors=descriptors,
            meta=meta,
            pickle=b"" if stream else data,
            inline=inline,
        )
        if len(packet) > PACKET_BYTES:
            message = f"an item of {len(buffers)} separate arrays does not fit a packet; stack them, or send fewer"
            raise TransportError(message)
        return packet, block, None

    def _raw(self, buffer: Buffer) -> np.ndarray[Any, Any]:
        """The bytes of a buffer, wherever it lies."""
        if buffer.source is not None:
            return np.ascontiguousarray(buffer.source).reshape(-1).view(np.uint8)
        lease = self._encoder.leases[buffer.lease]
        return np.asarray(lease[buffer.start : buffer.start + buffer.nbytes])

    def _copy(self, buffer: Buffer, target: np.ndarray[Any, Any], at: int) -> None:
        source, room = buffer.source, target[at : at + buffer.nbytes]
        if source is None or source.flags.c_contiguous:
            room[...] = self._raw(buffer)
        else:
            room.view(source.dtype).reshape(source.shape)[...] = source

    # ------------------------------------------------------------------ the writes

    def _write(self, packet: bytearray, begin: int) -> int:
        """Write, and say for how many ns that had to wait; -1 if interrupted."""
        stamp(packet, begin)
        try:
            os.write(self._fd, packet)
        except BlockingIOError:
            return self._write_waiting(packet)
        return 0

    def _write_waiting(self, packet: bytes | bytearray) -> int:
        begin = perf_counter_ns()
        while not self._interrupted():
            self._tick()
            self._waiter.wait(_TICK_S if self._memory.leased else _IDLE_S)
            now = perf_counter_ns()
            if isinstance(packet, bytearray):
                stamp(packet, now)
            try:
                os.write(self._fd, packet)
            except BlockingIOError:
                continue
            return now - begin
        return -1

    def _through_pipe(
        self, generation: int, key: Key, samples: int, meta: bytes
    ) -> tuple[bytearray, int, memoryview]:
        """A forced pipe between two single processes: the item as a packet that announces it, and its bytes after it."""
        encoder, counts = self._encoder, self.counts
        body = bytearray()
        spans = []
        for buffer in encoder.buffers:
            body += bytes(-len(body) % _ALIGN)
            spans.append((len(body), buffer.nbytes, buffer.out_of_band))
            body += self._raw(buffer).data
        data = encoder.pickle
        body += bytes(-len(body) % _ALIGN)
        start = len(body)
        body += data
        counts.pipe += 1
        counts.inline_bytes += len(body)
        descriptors = [(INLINE, OUT_OF_BAND if oob else 0, 0, 0, at, n) for at, n, oob in spans]
        table = b"".join(_span(*d[4:], d[1]) for d in descriptors) + _span(start, len(data), 0)
        body += table
        packet = pack(
            Kind.LARGE, generation, key, samples=samples, count=len(body), meta=meta, pickle=len(spans).to_bytes(4, "little")
        )
        return packet, -1, memoryview(body)

    def _write_large(self, body: memoryview, generation: int) -> int:
        """The fragments of a large item. Once begun it is finished: its reader takes them all, wanted or not."""
        waited = 0
        for head, piece in fragments(body, generation):
            while True:
                try:
                    os.writev(self._fd, (head, piece))
                except BlockingIOError:
                    begin = perf_counter_ns()
                    self._waiter.wait(_TICK_S)
                    waited += perf_counter_ns() - begin
                    if self._interrupted() and self._is_over():
                        return waited
                    continue
                break
        return waited

    def _is_over(self) -> bool:
        """Whether the reader is gone for good: a poll of the pipe says so."""
        poll = select.poll()
        poll.register(self._fd, select.POLLERR)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the wait."""
        self._waiter.close()


def _span(at: int, length: int, flags: int) -> bytes:
    return at.to_bytes(8, "little") + length.to_bytes(8, "little") + flags.to_bytes(8, "little")


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

    def __init__(
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
        set (the training loop) only what somebody else may still lease is copied.
        """
        self._fd, self._memory, self._interrupted, self._recorder = fd, memory, interrupted, recorder
        self._readonly, self._private = readonly, private
        self._tick = tick or memory.flush
        self._waiter = Waiter(fd, select.EPOLLIN, bell)
        self._hand: Packet | None = None
        self._read_ns = 0
        self.starved_ns = 0
        self.copied_out = 0
        self.queue_ns = 0

    def receive(self, generation: int, timeout_s: float | None = None) -> Received | None:
        """The next packet of `generation`; None when it was interrupted, or nothing came for `timeout_s`.

        Packets of the past are dropped and their blocks given back. One of the future stays in hand until its reader
        has entered that generation.
        """
        self._memory.flush_if_many()
        while True:
            packet = self._hand
            if packet is None:
                packet = self._read(timeout_s)
                if packet is None:
                    return None
            self._hand = None
            if packet.generation == generation:
                return self._open(packet)
            if packet.generation > generation:
                self._hand = packet
                if self._interrupted():
                    return None
                self._waiter.wait(_TICK_S)
                return None
            self._drop(packet)

    def _read(self, timeout_s: float | None) -> Packet | None:
        data = bytearray(PACKET_BYTES)
        try:
            length = os.readv(self._fd, (data,))
        except BlockingIOError:
            length = self._wait_and_read(data, timeout_s)
            if not length:
                return None
        if not length:
            return None
        now = perf_counter_ns()
        del data[length:]
        packet = unpack(data)
        self._read_ns = now
        return packet

    def _wait_and_read(self, data: bytearray, timeout_s: float | None) -> int:
        begin = perf_counter_ns()
        try:
            while not self._interrupted():
                self._tick()
                wait_s = _TICK_S if self._memory.leased else _IDLE_S
                if timeout_s is not None:
                    left = timeout_s - (perf_counter_ns() - begin) / 1e9
                    if left <= 0:
                        return 0
                    wait_s = min(wait_s, left)
                self._waiter.wait(wait_s)
                try:
                    return os.readv(self._fd, (data,))
                except BlockingIOError:
                    continue
            return 0
        finally:
            self.starved_ns += perf_counter_ns() - begin

    def _drop(self, packet: Packet) -> None:
        if packet.kind == Kind.LARGE:
            self._read_large(packet)
            return
        for arena, block in {(d.arena, d.block) for d in packet.descriptors if d.arena != INLINE}:
            self._memory.refuse(arena, block)
        self._memory.flush_if_many()

    def _open(self, packet: Packet) -> Received:
        if packet.kind not in (Kind.ITEM, Kind.LARGE):
            return Received(packet.kind, packet.key, packet.samples, packet.count, packet.meta, None)
        begin = perf_counter_ns()
        if packet.kind == Kind.LARGE:
            buffers, flags, stream = self._read_large(packet)
        elif packet.descriptors:
            buffers, flags, stream = self._buffers(packet)
        else:
            at, end = packet.pickle
            buffers, flags, stream = [], [], memoryview(packet.data)[at:end]
        received = perf_counter_ns()
        out_of_band = [buffer for buffer, flag in zip(buffers, flags, strict=True) if flag & OUT_OF_BAND]
        value = decode(stream, buffers, out_of_band, readonly=self._readonly)
        del stream, buffers, out_of_band
        end_ns = perf_counter_ns()
        queue = max(self._read_ns - packet.sent_ns, 0)
        self.queue_ns = queue
        receive, decoding = received - begin, end_ns - received
        self._recorder.add((queue, receive, decoding, packet.spent_ns + receive + decoding))
        return Received(Kind.ITEM, packet.key, packet.samples, 0, packet.meta, value)

    def _buffers(self, packet: Packet) -> tuple[list[Any], list[int], memoryview | Lease]:
        """The packet's buffers, their flags and the pickle, each as a view that holds a lease where it lies in a block."""
        leases: dict[tuple[int, int], Lease] = {}
        extents: dict[tuple[int, int], int] = {}
        for arena, _, _, block, start, length in packet.descriptors:
            if arena != INLINE:
                place = (arena, block)
                extents[place] = max(extents.get(place, 0), start + length)
        shared = {(d.arena, d.block) for d in packet.descriptors if d.flags & SHARED}
        for place, extent in extents.items():
            leases[place] = self._memory.lease(*place, extent, shared=place in shared)
        view = memoryview(packet.data)
        buffers: list[Any] = []
        flags: list[int] = []
        copied = False
        for arena, flag, _, block, start, length in packet.descriptors:
            if arena == INLINE:
                buffer: Any = view[start : start + length]
            else:
                lease = leases[arena, block]
                buffer = lease if length == lease.size else lease[start : start + length]
                if self._private or (lease.shared and not self._readonly):
                    buffer, copied = np.array(buffer, subok=False), True
            buffers.append(buffer)
            flags.append(flag)
        self.copied_out += copied
        if packet.flags & Flag.STREAM:
            flags.pop()
            return buffers, flags, buffers.pop()
        at, end = packet.pickle
        return buffers, flags, view[at:end]

    def _read_large(self, packet: Packet) -> tuple[list[Any], list[int], memoryview]:
        """The fragments that follow a packet of kind LARGE."""
        body = bytearray(packet.count)
        at = number = 0
        while at < packet.count:
            data = bytearray(PACKET_BYTES)
            try:
                length = os.readv(self._fd, (data,))
            except BlockingIOError:
                if self._interrupted() and not _has_writer(self._fd):
                    message = "the sender of a large item went away in the middle of it"
                    raise TransportError(message) from None
                self._waiter.wait(_TICK_S)
                continue
            del data[length:]
            piece = fragment(data, number)
            body[at : at + len(piece)] = piece
            at, number = at + len(piece), number + 1
        start, _ = packet.pickle
        count = int.from_bytes(packet.data[start : start + 4], "little")
        view = memoryview(body)
        words = view[packet.count - 24 * (count + 1) :].cast("Q")
        spans = [tuple(words[3 * n : 3 * n + 3]) for n in range(count + 1)]
        buffers = [np.frombuffer(body, np.uint8, length, place) for place, length, _ in spans[:-1]]
        place, length, _ = spans[-1]
        return buffers, [flag for *_, flag in spans[:-1]], view[place : place + length]

    def close(self) -> None:
        """Close the wait."""
        self._waiter.close()


def _has_writer(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLHUP)
    return not poll.poll(0)


__all__ = ["Counts", "Policy", "Received", "Receiver", "Sender"]
assert sys.byteorder == "little", "the board and the wire format are little-endian"
