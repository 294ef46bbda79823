"""The receiving end of a hop, with every phase timed. A process has at most one `Receiver`."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from stagepipe.core import Key, TransportError
from stagepipe.timing import DurationRecorder, TransferKind
from stagepipe.transport.codec import decode
from stagepipe.transport.hop.open_run import RunItems, open_run
from stagepipe.transport.hop.plain_run import PLAIN_RUN
from stagepipe.transport.hop.received import ReceivedPacket, UnreadableItemError
from stagepipe.transport.hop.sender import IDLE_TICK_INTERVAL_S, LEASED_TICK_INTERVAL_S, InterruptCheck
from stagepipe.transport.hop.unpacker import referenced_blocks, unpack_buffers
from stagepipe.transport.memory import SharedMemoryPool
from stagepipe.transport.wire import (
    INLINE_ARENA,
    PACKET_BYTES,
    PICKLE_BUFFER,
    Entry,
    FragmentAssembler,
    PacketFlag,
    PacketKind,
    PipeWaiter,
    WakeEvent,
    is_fragment,
    unpack,
)

# As plain integers: each look-up of a member of an enum, and each use of one as a number, takes 0.1 us.
_ITEM = int(PacketKind.ITEM)
_FRAGMENTED = int(PacketKind.FRAGMENTED)
_PIPE = int(TransferKind.PIPE)
_REAL_WAIT_NS = 5_000
"""A shorter wait found its packet in the pipe: a wake-up takes longer."""


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
        self.is_readonly = readonly and not copy_all
        self.copy_all = copy_all
        self._tick = tick or memory.flush_releases
        self._wake_event = wake_event
        self._waiter = PipeWaiter(fd, select.EPOLLIN, wake_event)
        self.on_item: Callable[[Key], None] = _ignore_key
        """Called with an item's key before the item is unpickled, which may kill this process."""
        self.unwanted_keys: frozenset[Key] = frozenset()
        """Items that are not unpickled: they arrive as None. They have killed their readers, or will be skipped."""
        self._receive_ns = 0
        """The time to unpack the packet in hand, for each of its entries."""
        self._entries: list[Entry] = []
        """The entries of the packet in hand whose turn has not come, the last one first."""
        self._run: RunItems | None = None
        """The items of the run in hand."""
        self._run_generation = 0
        self.items_in_hand = 0
        """Items of the last generation that need no wait and no decoding."""
        self._expects_wait = False
        """Whether the last packet was waited for: then the next one too, and a read before that would find nothing."""
        self.starved_ns = 0
        self.copied_out_items = 0
        self.queue_ns = 0

    def receive(  # noqa: C901 - the frequent case comes first, without a call of its own
        self, generation: int, timeout_s: float | None = None
    ) -> ReceivedPacket | None:
        """The next entry of `generation`; None if interrupted, or if nothing arrived for `timeout_s` seconds.

        Entries of older generations are dropped and their blocks released. One of a newer generation is kept until
        this process has entered that generation. Raises TransportError if a packet is damaged, and UnreadableItemError
        if the entry's item cannot be unpickled.
        """
        run = self._run
        if run is not None:
            if self._run_generation == generation:
                for item in run:
                    return item
            run.close()
            self._run = None
            self.items_in_hand = 0
        self._memory.flush_releases_if_many()
        while True:
            entries = self._entries
            if not entries:
                packet = self._read_packet(timeout_s)
                if packet is None:
                    return None
                self._entries = entries = packet
            if entries[-1].generation > generation:
                if not self._is_interrupted():
                    # Not on the pipe: it may hold more packets, and this wait would take another reader's wake-up.
                    self._wake_event.wait(LEASED_TICK_INTERVAL_S)
                return None
            entry = entries.pop()
            if entry.generation == generation:
                return self._decode_entry(entry)
            for arena, block in referenced_blocks(entry, self._memory):
                self._memory.release_block(arena, block)
            self._memory.flush_releases_if_many()

    # ------------------------------------------------------------------ reading

    def _read_packet(self, timeout_s: float | None) -> list[Entry] | None:
        """Read the entries of the next packet, the last one first."""
        while True:
            data = bytearray(PACKET_BYTES)
            length = -1 if self._expects_wait and timeout_s is None else self._read(data)
            if length <= 0:
                length = self._wait_and_read(data, timeout_s)
                if not length:
                    return None
            begin_ns = perf_counter_ns()
            del data[length:]
            try:
                entries = unpack(data)
            except TransportError:
                if is_fragment(data):  # the rest of a large item that is no longer expected
                    continue
                raise
            self._receive_ns = (perf_counter_ns() - begin_ns) // len(entries)
            entries.reverse()
            return entries

    def _read(self, data: bytearray) -> int:
        """Read a packet into `data` without a wait. Returns its bytes; 0 if no writer is left, -1 if there is none."""
        try:
            return os.readv(self._fd, (data,))
        except BlockingIOError:
            return -1

    def _wait_and_read(self, data: bytearray, timeout_s: float | None = None) -> int:
        """Wait for a packet and read it into `data`. Returns its bytes; 0 if interrupted, or after `timeout_s`."""
        self._tick()  # before the clock starts: it sends what this process holds back, which may wait too
        begin_ns = perf_counter_ns()
        deadline_ns = None if timeout_s is None else begin_ns + int(timeout_s * 1e9)
        try:
            return self._wait_until(data, deadline_ns)
        finally:
            waited_ns = perf_counter_ns() - begin_ns
            self.starved_ns += waited_ns
            self._expects_wait = waited_ns > _REAL_WAIT_NS

    def _wait_until(self, data: bytearray, deadline_ns: int | None) -> int:
        while not self._is_interrupted():
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
            self._tick()
        return max(self._read(data), 0)  # what came before the interruption is not lost

    # ------------------------------------------------------------------ decoding

    def _decode_entry(self, entry: Entry) -> ReceivedPacket | None:
        kind = entry.kind
        if kind == PLAIN_RUN:
            self._run = open_run(entry, self._receive_ns, self, self._recorder, self._memory)
            self._run_generation = entry.generation
            return next(self._run)
        if kind not in {_ITEM, _FRAGMENTED}:
            return ReceivedPacket(kind, entry.key, entry.samples, entry.count_or_bytes, entry.meta, None)
        key = entry.key
        if self.unwanted_keys and key in self.unwanted_keys:
            return self._drop_item(entry)
        self.on_item(key)
        if kind == _ITEM and not entry.descriptors:
            return self._decode_small(entry)
        begin_ns = perf_counter_ns()
        if kind == _FRAGMENTED:
            body = self._read_fragments(entry)
            if body is None:
                return None
            buffers, flags, pickle_view = body.decode_body()
            transfer_kind, nbytes = TransferKind.PIPE, entry.nbytes + entry.count_or_bytes
        else:
            buffers, flags, pickle_view, copied = unpack_buffers(
                entry, self._memory, copy_all=self.copy_all, copy_shared=not self.is_readonly
            )
            self.copied_out_items += copied
            transfer_kind, nbytes = _transfer_kind(entry, buffers)
        received_at_ns = perf_counter_ns()
        pickle_buffers = self._pickle_buffers(buffers, flags) if any(flags) else ()
        try:
            value = decode(pickle_view, buffers, pickle_buffers, readonly=self.is_readonly)
        except TransportError as error:
            raise UnreadableItemError(entry, str(error)) from error.__cause__
        del pickle_view, buffers, pickle_buffers
        decoded_at_ns = perf_counter_ns()
        self.queue_ns = queue_ns = max(begin_ns - entry.sent_at_ns, 0)
        receive_ns = received_at_ns - begin_ns + self._receive_ns
        decode_ns = decoded_at_ns - received_at_ns
        durations_ns = (queue_ns, receive_ns, decode_ns, entry.sender_ns + receive_ns + decode_ns)
        self._recorder.add(durations_ns, (transfer_kind, nbytes, receive_ns))
        return ReceivedPacket(_ITEM, entry.key, entry.samples, 0, entry.meta, value)

    def _decode_small(self, entry: Entry) -> ReceivedPacket:
        """`_decode_entry` for an item without buffers, the case that must be fast."""
        begin_ns = perf_counter_ns()
        _, _, _, key, samples, _, sender_ns, sent_at_ns, nbytes, _, meta, (start, end), data = entry
        try:
            value = decode(data[start:end], (), (), readonly=self.is_readonly)
        except TransportError as error:
            raise UnreadableItemError(entry, str(error)) from error.__cause__
        decode_ns = perf_counter_ns() - begin_ns
        self.queue_ns = queue_ns = begin_ns - sent_at_ns if begin_ns > sent_at_ns else 0
        receive_ns = self._receive_ns
        self._recorder.add(
            (queue_ns, receive_ns, decode_ns, sender_ns + receive_ns + decode_ns), (_PIPE, nbytes, receive_ns)
        )
        return ReceivedPacket(_ITEM, key, samples, 0, meta, value)

    def _drop_item(self, entry: Entry) -> ReceivedPacket | None:
        """Take an item off the hop and release its blocks, without a look at its contents."""
        if entry.kind == _FRAGMENTED and self._read_fragments(entry) is None:
            return None
        for arena, block in referenced_blocks(entry, self._memory):
            self._memory.release_block(arena, block)
        return ReceivedPacket(_ITEM, entry.key, entry.samples, 0, entry.meta, None)

    def _pickle_buffers(self, buffers: list[Any], flags: list[int]) -> list[memoryview]:
        """The buffers that pickle itself asks for, in order."""
        views = [memoryview(buffer) for buffer, flag in zip(buffers, flags, strict=True) if flag & PICKLE_BUFFER]
        return [view.toreadonly() for view in views] if self.is_readonly else views

    def _read_fragments(self, entry: Entry) -> FragmentAssembler | None:
        """Read the fragments after a FRAGMENTED entry; None if interrupted, or if the sender moved on."""
        body = FragmentAssembler(entry)
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
            next_entries = unpack(data)
            if next_entries[0].generation <= entry.generation:
                raise TransportError(f"item {entry.key[0]}: its sender stopped in the middle of the item")
            next_entries.reverse()
            self._entries = next_entries
            return None
        return body

    def close(self) -> None:
        """Close the waiter. The pipe stays open."""
        self._waiter.close()


def _ignore_key(_: Key) -> None:
    """The default of `on_item`."""


def _transfer_kind(entry: Entry, buffers: list[Any]) -> tuple[TransferKind, int]:
    """The transfer kind of an entry as the receiver sees it, and its bytes, including those in blocks."""
    lengths = [length for arena, _, _, _, _, length in entry.descriptors if arena != INLINE_ARENA]
    if not lengths:
        return TransferKind.PIPE, entry.nbytes
    block_bytes = sum(map(len, buffers)) if entry.flags & PacketFlag.DESCRIPTOR_TABLE else sum(lengths)
    return TransferKind.COPIED, entry.nbytes + block_bytes
