"""The receiving end of a hop. It times every phase. A process has at most one `Receiver`.

It reads packets, checks every descriptor before use, and returns buffers in blocks as views that hold leases.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final

import numpy as np

from stagepipe.core import SKIP, Key, TransportError
from stagepipe.timing import DurationRecorder, TransferKind
from stagepipe.transport.chunk import count_kept, decode_chunk, lease_chunk, shift_key
from stagepipe.transport.codec import decode
from stagepipe.transport.memory import MIN_RELEASES_TO_FLUSH, BlockId, Lease, SharedMemoryPool
from stagepipe.transport.native import unpack
from stagepipe.transport.packet import (
    INLINE_ARENA,
    PICKLE_BUFFER,
    SHARED_BLOCK,
    TABLE_HEADER_BYTES,
    BufferDescriptor,
    Entry,
    FragmentAssembler,
    PacketFlag,
    PacketKind,
    descriptor_table_bytes,
    is_fragment,
    unpack_descriptors,
)
from stagepipe.transport.pipe import PipeWaiter, WakeEvent, read_packet
from stagepipe.transport.sender import IDLE_TICK_INTERVAL_S, LEASED_TICK_INTERVAL_S, InterruptCheck


@dataclass(slots=True)
class ReceivedPacket:
    """A received entry of a packet, with its item decoded.

    For a chunk (kind CHUNK), `value` is the list of its `count` items, with SKIP for a dropped one. `key` belongs to
    the first item; the last number of the key increases by one per item. Each item counts for one sample and has no
    meta.
    """

    kind: int
    key: Key
    samples: int
    count: int
    meta: bytes
    value: Any


class UnreadableItemError(TransportError):
    """An item cannot be unpickled. The cause is its exception; `key`, `samples` and `meta` are from its entry."""

    def __init__(self, entry: Entry, message: str) -> None:
        self.key = entry.key
        self.samples = entry.samples
        self.meta = entry.meta
        super().__init__(message)


UnpackedBuffers = tuple[list[Any], list[int], Any, bool]
"""The buffers, the flags of their descriptors, the pickle, and whether any buffer was copied out of its block."""


def unpack_buffers(entry: Entry, memory: SharedMemoryPool, *, copy_all: bool, copy_shared: bool) -> UnpackedBuffers:
    """Return the buffers of an item. `copy_all` copies all buffers in blocks, `copy_shared` only shared ones.

    Raises TransportError if a descriptor points outside its packet or arena.
    """
    descriptors = entry.descriptors
    if entry.flags & PacketFlag.DESCRIPTOR_TABLE:
        arena, _, _, block, _, _ = descriptors[0]
        descriptors = _read_descriptor_table(entry, memory)
        memory.release_block(arena, block)
    leases = _lease_blocks(descriptors, memory)
    view = memoryview(entry.data)
    pickle_view: Any = view[slice(*entry.pickle_span)]
    pickle_index = len(descriptors) - 1 if entry.flags & PacketFlag.PICKLE_IN_BLOCK else -1
    buffers: list[Any] = []
    flags: list[int] = []
    copied = False
    for buffer_index, (arena, flag, _, block, start, length) in enumerate(descriptors):
        if arena == INLINE_ARENA:
            if start + length > len(entry.data):
                raise TransportError(f"a descriptor points {start + length - len(entry.data)} bytes past its packet")
            buffer: Any = view[start : start + length]
        else:
            lease = leases[arena, block]
            buffer = lease if length == lease.size else lease[start : start + length]
            if buffer_index == pickle_index:
                pickle_view = buffer
                break
            if copy_all or (copy_shared and lease.is_shared):
                buffer = np.array(buffer, subok=False)
                copied = True
        buffers.append(buffer)
        flags.append(flag)
    return buffers, flags, pickle_view, copied


def _lease_blocks(descriptors: tuple[BufferDescriptor, ...], memory: SharedMemoryPool) -> dict[BlockId, Lease]:
    """Lease each block once, up to the last byte that the descriptors use."""
    extents: dict[BlockId, int] = {}
    shared_blocks = set()
    for arena, flag, _, block, start, length in descriptors:
        if arena != INLINE_ARENA:
            block_id = (arena, block)
            extents[block_id] = max(extents.get(block_id, 0), start + length)
            if flag & SHARED_BLOCK:
                shared_blocks.add(block_id)
    return {
        block_id: memory.lease_block(*block_id, extent, is_shared=block_id in shared_blocks)
        for block_id, extent in extents.items()
    }


def referenced_blocks(entry: Entry, memory: SharedMemoryPool) -> set[BlockId]:
    """Return the blocks to which an entry holds a reference.

    A descriptor table of an older era is not read: it may be gone, and its blocks need no release.
    """
    descriptors = entry.descriptors
    if entry.flags & PacketFlag.DESCRIPTOR_TABLE and not memory.is_stale(descriptors):
        descriptors += _read_descriptor_table(entry, memory)
    return {(arena, block) for arena, _, _, block, _, _ in descriptors if arena != INLINE_ARENA}


def _read_descriptor_table(entry: Entry, memory: SharedMemoryPool) -> tuple[BufferDescriptor, ...]:
    if len(entry.descriptors) != 1 or entry.descriptors[0][0] == INLINE_ARENA:
        raise TransportError(
            f"a descriptor table lies in one block, but this entry has {len(entry.descriptors)} buffers"
        )
    arena, _, _, block, start, length = entry.descriptors[0]
    header = memory.read_block(arena, block, start, min(length, TABLE_HEADER_BYTES))
    if descriptor_table_bytes(header) != length:  # checked before memory is allocated for all of it
        raise TransportError(f"{length} bytes at offset {block + start} of arena {arena} are not a descriptor table")
    return unpack_descriptors(memory.read_block(arena, block, start, length))


_ITEM = int(PacketKind.ITEM)
_PIPE = int(TransferKind.PIPE)
_PACKED = int(TransferKind.PACKED)
_COPIED = int(TransferKind.COPIED)

_CHUNK: Final = int(PacketKind.CHUNK)
_TOMBSTONE: Final = int(PacketKind.TOMBSTONE)


def split_chunk(packet: ReceivedPacket) -> list[ReceivedPacket]:
    """Return the items of a chunk as packets."""
    return [
        ReceivedPacket(_ITEM if value is not SKIP else _TOMBSTONE, shift_key(packet.key, offset), 1, 0, b"", value)
        for offset, value in enumerate(packet.value)
    ]


_FRAGMENTED = int(PacketKind.FRAGMENTED)
_REAL_WAIT_NS = 5_000
"""Below this time the packet was already in the pipe, because a wake-up takes longer."""


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
        block, and the user may change it at any time (`mutable: true`). With neither (the training loop), only buffers
        that another process may still lease are copied.
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
        """Called with an item's key before the item is unpickled, because unpickling may kill this process."""
        self.unwanted_keys: frozenset[Key] = frozenset()
        """Items that are not unpickled and arrive as None, because they killed their readers or will be skipped."""
        self._packet_kind = _PIPE
        self._receive_ns = 0
        """The time to unpack the current packet, divided among its entries."""
        self._entries: list[Entry] = []
        """The remaining entries of the current packet, in reverse order."""
        self._chunk_rows: tuple[tuple[int, ...], tuple[int, ...], int, int] | None = None
        """The current chunk, until its times are recorded: durations, ledger entry, items, time of opening."""
        self._singles: deque[ReceivedPacket] = deque()
        """The items of the current chunk, for `receive_one`."""
        self._singles_generation = 0
        self._chunk_sent_ns = 0
        self._expects_wait = False
        """Whether the last packet needed a wait. If so, the next one probably does too: do not read before the wait."""
        self.starved_ns = 0
        self.copied_out_items = 0
        self.queue_ns = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of the packets that were read."""
        return not self._entries and not self._singles

    @property
    def items_in_hand(self) -> int:
        """The number of items that `receive_one` can return without waiting or decoding."""
        return len(self._singles)

    def receive_one(self, generation: int, timeout_s: float | None = None) -> ReceivedPacket | None:
        """Receive as `receive` does, but return the items of a chunk one by one. `on_item` is called with each key."""
        if self._singles and self._singles_generation != generation:
            self._singles.clear()
        if not self._singles:
            packet = self.receive(generation, timeout_s)
            if packet is None or packet.kind != _CHUNK:
                return packet
            self._singles.extend(split_chunk(packet))
            self._singles_generation = generation
        single = self._singles.popleft()
        if single.kind == _ITEM:
            if self.unwanted_keys and single.key in self.unwanted_keys:
                single.value = None
            else:
                self.on_item(single.key)
        self.queue_ns = max(perf_counter_ns() - self._chunk_sent_ns, 0)
        return single

    def receive(  # noqa: C901 - each call that a small item pays takes half a microsecond
        self, generation: int, timeout_s: float | None = None
    ) -> ReceivedPacket | None:
        """Return the next entry of `generation`; None if interrupted, or if nothing arrived for `timeout_s` seconds.

        A chunk is returned whole; `on_item` is not called for its items, because decoding them cannot kill the process.
        Entries of older generations are dropped and their blocks released. An entry of a newer generation is kept until
        this process enters that generation. Raises TransportError if a packet is damaged, and UnreadableItemError if
        the entry's item cannot be unpickled.
        """
        if self._chunk_rows is not None:
            self._record_chunk()
        memory = self._memory
        if len(memory.release_queue) >= MIN_RELEASES_TO_FLUSH:
            memory.flush_releases()
        while True:
            entries = self._entries
            if not entries:
                data = None if self._expects_wait and timeout_s is None else read_packet(self._fd)
                if not data:
                    data = self._wait_and_read(timeout_s)
                    if not data:
                        return None
                begin_ns = perf_counter_ns()
                try:
                    entries = unpack(data)
                except TransportError:
                    if is_fragment(data):  # the rest of a large item that is no longer expected
                        continue
                    raise
                self._receive_ns = (perf_counter_ns() - begin_ns) // len(entries)
                self._packet_kind = _PIPE if len(entries) == 1 else _PACKED
                entries.reverse()
                self._entries = entries
            entry = entries[-1]
            if entry.generation > generation:
                if not self._is_interrupted():
                    # Do not wait on the pipe: it may hold more packets, and this wait would take another reader's
                    # wake-up.
                    self._wake_event.wait(LEASED_TICK_INTERVAL_S)
                return None
            entries.pop()
            if entry.generation == generation:
                return self._open_chunk(entry) if entry.kind == _CHUNK else self._decode_entry(entry)
            for arena, block in referenced_blocks(entry, memory):
                memory.release_block(arena, block)
            memory.flush_releases()

    # ------------------------------------------------------------------ reading

    def _wait_and_read(self, timeout_s: float | None = None) -> bytes:
        """Wait for a packet and read it. Returns b"" if interrupted, or after `timeout_s`."""
        self._tick()  # before the clock starts: it sends held items, which may wait too
        begin_ns = perf_counter_ns()
        deadline_ns = None if timeout_s is None else begin_ns + int(timeout_s * 1e9)
        leased_s = LEASED_TICK_INTERVAL_S
        try:
            while not self._is_interrupted():
                wait_s = leased_s if self._memory.lease_count else IDLE_TICK_INTERVAL_S
                leased_s = min(2 * leased_s, IDLE_TICK_INTERVAL_S)
                if deadline_ns is not None:
                    remaining_s = (deadline_ns - perf_counter_ns()) / 1e9
                    if remaining_s <= 0:
                        return b""
                    wait_s = min(wait_s, remaining_s)
                data = self._waiter.read(wait_s)
                if data:
                    return data
                if data is not None:  # at the end of file the pipe is always ready: wait on the event to avoid spinning
                    self._wake_event.wait(min(wait_s, LEASED_TICK_INTERVAL_S))
                self._tick()
            return read_packet(self._fd) or b""  # keep a packet that came before the interruption
        finally:
            waited_ns = perf_counter_ns() - begin_ns
            self.starved_ns += waited_ns
            self._expects_wait = waited_ns > _REAL_WAIT_NS

    # ------------------------------------------------------------------ decoding

    def _decode_entry(self, entry: Entry) -> ReceivedPacket | None:
        kind = entry.kind
        if kind not in {_ITEM, _FRAGMENTED}:
            return ReceivedPacket(kind, entry.key, entry.samples, entry.count_or_bytes, entry.meta, None)
        key = entry.key
        if self.unwanted_keys and key in self.unwanted_keys:
            return self._drop_item(entry)
        self.on_item(key)
        begin_ns = perf_counter_ns()
        if kind == _FRAGMENTED:
            body = self._read_fragments(entry)
            if body is None:
                return None
            buffers, flags, pickle_view = body.decode_body()
            transfer_kind, nbytes = _PIPE, entry.nbytes + entry.count_or_bytes
        else:
            buffers, flags, pickle_view, transfer_kind, nbytes = self._take_buffers(entry)
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

    def _take_buffers(self, entry: Entry) -> tuple[list[Any], list[int], Any, int, int]:
        """Return an item's buffers, the flags of their descriptors, the pickle, the transfer kind, and the bytes."""
        if not entry.descriptors:
            return [], [], entry.data[slice(*entry.pickle_span)], self._packet_kind, entry.nbytes
        copies_shared = not self.is_readonly
        if len(entry.descriptors) != 1 or entry.flags or entry.descriptors[0][0] == INLINE_ARENA:
            buffers, flags, pickle_view, copied = unpack_buffers(
                entry, self._memory, copy_all=self.copy_all, copy_shared=copies_shared
            )
            self.copied_out_items += copied
            return buffers, flags, pickle_view, *_transfer_kind(entry, buffers)
        # The case that must be fast: an item with one array in a block.
        arena, flag, _, block, offset, length = entry.descriptors[0]
        is_shared = bool(flag & SHARED_BLOCK)
        buffer: Any = self._memory.lease_block(arena, block, offset + length, is_shared=is_shared)
        if offset:
            buffer = buffer[offset:]
        if self.copy_all or (is_shared and copies_shared):
            buffer = np.array(buffer, subok=False)
            self.copied_out_items += 1
        start, end = entry.pickle_span
        return [buffer], [flag & PICKLE_BUFFER], entry.data[start:end], _COPIED, entry.nbytes + length

    def _open_chunk(self, entry: Entry) -> ReceivedPacket:
        begin_ns = perf_counter_ns()
        _, _, _, key, _, count, sender_ns, sent_at_ns, nbytes, descriptors, _, (start, end), data = entry
        if descriptors:
            block = lease_chunk(entry, self._memory)
            nbytes += block.size
            values = decode_chunk(block, count, readonly=self.is_readonly)
            del block
        else:
            values = decode_chunk(data[start:end], count, readonly=self.is_readonly)
        now_ns = perf_counter_ns()
        self._chunk_sent_ns = sent_at_ns
        self.queue_ns = queue_ns = begin_ns - sent_at_ns if begin_ns > sent_at_ns else 0
        kept = count_kept(values)  # tombstones are not messages
        share = max(kept, 1)
        receive_ns, decode_ns = self._receive_ns // share, (now_ns - begin_ns) // share
        row_ns = (queue_ns, receive_ns, decode_ns, sender_ns + receive_ns + decode_ns)
        if kept == count == 1:
            self._recorder.add(row_ns, (self._packet_kind, nbytes, receive_ns))
        elif kept:
            self._chunk_rows = row_ns, (_PACKED, nbytes // share, receive_ns), kept, now_ns
        return ReceivedPacket(_CHUNK, key, 1, count, b"", values)

    def _record_chunk(self) -> None:
        """Record the times of a chunk's items. Each has waited for the items before it, assumed at equal intervals."""
        if self._chunk_rows is None:
            return
        row_ns, ledger_entry, count, opened_ns = self._chunk_rows
        self._chunk_rows = None
        elapsed_ns = perf_counter_ns() - opened_ns
        queue_times_ns = [row_ns[0] + elapsed_ns * index // count for index in range(count)]
        self._recorder.add_alike(row_ns, ledger_entry, 0, queue_times_ns)

    def _drop_item(self, entry: Entry) -> ReceivedPacket | None:
        """Take an item off the hop and release its blocks, without reading its contents."""
        if entry.kind == _FRAGMENTED and self._read_fragments(entry) is None:
            return None
        for arena, block in referenced_blocks(entry, self._memory):
            self._memory.release_block(arena, block)
        return ReceivedPacket(_ITEM, entry.key, entry.samples, 0, entry.meta, None)

    def _pickle_buffers(self, buffers: list[Any], flags: list[int]) -> list[memoryview]:
        """Return the buffers that pickle itself requests, in order."""
        views = [memoryview(buffer) for buffer, flag in zip(buffers, flags, strict=True) if flag & PICKLE_BUFFER]
        return [view.toreadonly() for view in views] if self.is_readonly else views

    def _read_fragments(self, entry: Entry) -> FragmentAssembler | None:
        """Read the fragments after a FRAGMENTED entry; None if interrupted, or if the sender moved on."""
        body = FragmentAssembler(entry)
        while not body.is_complete:
            data = read_packet(self._fd) or self._wait_and_read()
            if not data:
                return None
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
        """Record the last chunk and close the waiter. The pipe stays open."""
        self._record_chunk()
        self._waiter.close()


def _ignore_key(_: Key) -> None:
    """The default of `on_item`."""


def _transfer_kind(entry: Entry, buffers: list[Any]) -> tuple[int, int]:
    """Return the transfer kind of an entry for the receiver, and its bytes, including those in blocks."""
    lengths = [length for arena, _, _, _, _, length in entry.descriptors if arena != INLINE_ARENA]
    if not lengths:
        return _PIPE, entry.nbytes
    block_bytes = sum(map(len, buffers)) if entry.flags & PacketFlag.DESCRIPTOR_TABLE else sum(lengths)
    return _COPIED, entry.nbytes + block_bytes
