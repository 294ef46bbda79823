"""The receiving end of a hop, with every phase timed. A process has at most one `Receiver`."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from stagepipe.core import Key, TransportError
from stagepipe.timing import DurationRecorder, TransferKind
from stagepipe.transport.codec import decode
from stagepipe.transport.hop.sender import IDLE_TICK_INTERVAL_S, LEASED_TICK_INTERVAL_S, InterruptCheck
from stagepipe.transport.hop.unpacker import referenced_blocks, unpack_buffers
from stagepipe.transport.memory import SharedMemoryPool
from stagepipe.transport.wire import (
    INLINE_ARENA,
    PACKET_BYTES,
    PICKLE_BUFFER,
    FragmentAssembler,
    Packet,
    PacketFlag,
    PacketKind,
    PipeWaiter,
    WakeEvent,
    is_fragment,
    unpack,
)


@dataclass(slots=True)
class ReceivedPacket:
    """A received packet, with its item decoded. `count`: the items of a chunk, set by an order point that knows it."""

    kind: int
    key: Key
    samples: int
    count: int
    meta: bytes
    value: Any


class UnreadableItemError(TransportError):
    """An item cannot be unpickled, from the exception of its class. `key`, `samples`, `meta`: those of its packet."""

    def __init__(self, packet: Packet, message: str) -> None:
        self.key = packet.key
        self.samples = packet.samples
        self.meta = packet.meta
        super().__init__(message)


class Receiver:
    """The receiving end of a hop."""

    def __init__(  # noqa: PLR0917 - the resources of the process, in the order in which it creates them
        self,
        fd: int,
        memory: SharedMemoryPool,
        wake_event: WakeEvent,
        is_interrupted: InterruptCheck,
        recorder: DurationRecorder,
        tick: Callable[[], None] | None = None,
        *,
        readonly: bool = True,
        copy_all: bool = False,
    ) -> None:
        """`recorder` takes rows of (queue, receive, decode, cost) in ns; `tick` runs while waiting.

        With `readonly`, arrays are marked read-only (for stages). With `copy_all`, every buffer is copied out of its
        block (`mutable: true`); it may be changed at any time. With neither (the training loop), only buffers that
        another process may still lease are copied.
        """
        self._fd = fd
        self._memory = memory
        self._is_interrupted = is_interrupted
        self._recorder = recorder
        self._is_readonly = readonly and not copy_all
        self.copy_all = copy_all
        self._tick = tick or memory.flush_releases
        self._wake_event = wake_event
        self._waiter = PipeWaiter(fd, select.EPOLLIN, wake_event)
        self.on_item: Callable[[Key], None] = _ignore_key
        """Called with an item's key before the item is unpickled, which may kill this process."""
        self.unwanted_keys: frozenset[Key] = frozenset()
        """Items that are not unpickled: they arrive as None. They have killed their readers, or will be skipped."""
        self._pending_packet: Packet | None = None
        self._read_at_ns = 0
        self.starved_ns = 0
        self.copied_out_items = 0
        self.queue_ns = 0

    def receive(self, generation: int, timeout_s: float | None = None) -> ReceivedPacket | None:
        """The next packet of `generation`; None if interrupted, or if nothing arrived for `timeout_s` seconds.

        Packets of older generations are dropped and their blocks released. A packet of a newer generation is kept until
        this process has entered that generation. Raises TransportError if a packet is damaged, and UnreadableItemError
        if its item cannot be unpickled.
        """
        self._memory.flush_releases_if_many()
        while True:
            packet = self._pending_packet
            if packet is None:
                packet = self._read_packet(timeout_s)
                if packet is None:
                    return None
            if packet.generation > generation:
                self._pending_packet = packet
                if not self._is_interrupted():
                    # Not on the pipe: it may hold more packets, and this wait would take another reader's wake-up.
                    self._wake_event.wait(LEASED_TICK_INTERVAL_S)
                return None
            self._pending_packet = None
            if packet.generation == generation:
                return self._decode_packet(packet)
            for arena, block in referenced_blocks(packet, self._memory):
                self._memory.release_block(arena, block)
            self._memory.flush_releases_if_many()

    # ------------------------------------------------------------------ reading

    def _read_packet(self, timeout_s: float | None) -> Packet | None:
        while True:
            data = bytearray(PACKET_BYTES)
            length = self._read(data)
            if length <= 0:
                begin_ns = perf_counter_ns()
                length = self._wait_and_read(data, timeout_s)
                self.starved_ns += perf_counter_ns() - begin_ns
                if not length:
                    return None
            now_ns = perf_counter_ns()
            del data[length:]
            try:
                packet = unpack(data)
            except TransportError:
                if is_fragment(data):  # the rest of a large item that is no longer expected
                    continue
                raise
            self._read_at_ns = now_ns
            return packet

    def _read(self, data: bytearray) -> int:
        """Read a packet into `data` without a wait. Returns its bytes; 0 if no writer is left, -1 if there is none."""
        try:
            return os.readv(self._fd, (data,))
        except BlockingIOError:
            return -1

    def _wait_and_read(self, data: bytearray, timeout_s: float | None = None) -> int:
        """Wait for a packet and read it into `data`. Returns its bytes; 0 if interrupted, or after `timeout_s`."""
        deadline_ns = None if timeout_s is None else perf_counter_ns() + int(timeout_s * 1e9)
        while not self._is_interrupted():
            self._tick()
            wait_s = LEASED_TICK_INTERVAL_S if self._memory.lease_count else IDLE_TICK_INTERVAL_S
            if deadline_ns is not None:
                remaining_s = (deadline_ns - perf_counter_ns()) / 1e9
                if remaining_s <= 0:
                    return 0
                wait_s = min(wait_s, remaining_s)
            self._waiter.wait(wait_s)
            length = self._read(data)
            if length > 0:
                return length
            if not length:  # at the end of file the pipe is always ready: wait on the event instead, not to spin
                self._wake_event.wait(min(wait_s, LEASED_TICK_INTERVAL_S))
        return 0

    # ------------------------------------------------------------------ decoding

    def _decode_packet(self, packet: Packet) -> ReceivedPacket | None:
        kind = packet.kind
        if kind not in (PacketKind.ITEM, PacketKind.FRAGMENTED):
            return ReceivedPacket(kind, packet.key, packet.samples, packet.count_or_bytes, packet.meta, None)
        if self.unwanted_keys and packet.key in self.unwanted_keys:
            return self._drop_item(packet)
        self.on_item(packet.key)
        begin_ns = perf_counter_ns()
        buffers: list[Any] = []
        flags: list[int] = []
        transfer_kind = TransferKind.PIPE
        nbytes = len(packet.data)
        if kind == PacketKind.FRAGMENTED:
            body = self._read_fragments(packet)
            if body is None:
                return None
            buffers, flags, pickle_view = body.decode_body()
            nbytes += packet.count_or_bytes
        elif packet.descriptors:
            buffers, flags, pickle_view, copied = unpack_buffers(
                packet, self._memory, copy_all=self.copy_all, copy_shared=not self._is_readonly
            )
            self.copied_out_items += copied
            transfer_kind, nbytes = _transfer_kind(packet, buffers, nbytes)
        else:
            start, end = packet.pickle_span
            pickle_view = memoryview(packet.data)[start:end]
        received_at_ns = perf_counter_ns()
        pickle_buffers = self._pickle_buffers(buffers, flags) if any(flags) else ()
        try:
            value = decode(pickle_view, buffers, pickle_buffers, readonly=self._is_readonly)
        except TransportError as error:
            raise UnreadableItemError(packet, str(error)) from error.__cause__
        del pickle_view, buffers, pickle_buffers
        decoded_at_ns = perf_counter_ns()
        queue_ns = max(self._read_at_ns - packet.sent_at_ns, 0)
        self.queue_ns = queue_ns
        receive_ns = received_at_ns - begin_ns
        decode_ns = decoded_at_ns - received_at_ns
        durations_ns = (queue_ns, receive_ns, decode_ns, packet.sender_ns + receive_ns + decode_ns)
        self._recorder.add(durations_ns, (transfer_kind, nbytes, receive_ns))
        return ReceivedPacket(PacketKind.ITEM, packet.key, packet.samples, 0, packet.meta, value)

    def _drop_item(self, packet: Packet) -> ReceivedPacket | None:
        """Take an item off the hop and release its blocks, without a look at its contents."""
        if packet.kind == PacketKind.FRAGMENTED and self._read_fragments(packet) is None:
            return None
        for arena, block in referenced_blocks(packet, self._memory):
            self._memory.release_block(arena, block)
        return ReceivedPacket(PacketKind.ITEM, packet.key, packet.samples, 0, packet.meta, None)

    def _pickle_buffers(self, buffers: list[Any], flags: list[int]) -> list[memoryview]:
        """The buffers that pickle itself asks for, in order."""
        views = [memoryview(buffer) for buffer, flag in zip(buffers, flags, strict=True) if flag & PICKLE_BUFFER]
        return [view.toreadonly() for view in views] if self._is_readonly else views

    def _read_fragments(self, packet: Packet) -> FragmentAssembler | None:
        """Read the fragments after a FRAGMENTED packet; None if interrupted, or if the sender moved on."""
        body = FragmentAssembler(packet)
        while not body.is_complete:
            data = bytearray(PACKET_BYTES)
            length = self._read(data)
            if length <= 0:
                length = self._wait_and_read(data)
            if not length:
                return None
            del data[length:]
            if is_fragment(data):
                if not body.add_fragment(data):
                    return None
                continue
            next_packet = unpack(data)
            if next_packet.generation <= packet.generation:
                raise TransportError(f"item {packet.key[0]}: its sender stopped in the middle of the item")
            self._pending_packet = next_packet
            return None
        return body

    def close(self) -> None:
        """Close the waiter. The pipe stays open."""
        self._waiter.close()


def _ignore_key(_: Key) -> None:
    """The default of `on_item`."""


def _transfer_kind(packet: Packet, buffers: list[Any], inline_bytes: int) -> tuple[TransferKind, int]:
    """The transfer kind of a packet as the receiver sees it, and its bytes, including those in blocks."""
    lengths = [length for arena, _, _, _, _, length in packet.descriptors if arena != INLINE_ARENA]
    if not lengths:
        return TransferKind.PIPE, inline_bytes
    block_bytes = sum(map(len, buffers)) if packet.flags & PacketFlag.DESCRIPTOR_TABLE else sum(lengths)
    return TransferKind.COPIED, inline_bytes + block_bytes
