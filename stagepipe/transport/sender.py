"""The sending end of a hop. It times every phase. A process has at most one `Sender`.

Small items share a message. Consecutive plain items form a chunk (`chunk.py`); other small items, and packets without
an item, are entries; a packet holds several of both, in order. The caller limits the items in a message
(`limit_message`), and calls `flush` before every wait. User code may also wait. While it runs, another thread may call
`write_late`, which writes items held for 10 ms, unless user code keeps the interpreter's lock.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import numpy as np

from stagepipe.core import SKIP, ArenaFullError, Key
from stagepipe.timing import DurationRecorder, TransferKind
from stagepipe.transport.chunk import (
    CHUNK_BLOCK_BYTES,
    CHUNK_BYTES,
    GAP_BYTES,
    KEY_PART_BYTES,
    MAX_PACKET_ITEM_BYTES,
    PLAIN_ROOM_BYTES,
    count_kept,
    encode_chunk,
    encode_single,
    hold_arrays,
    shift_key,
)
from stagepipe.transport.codec import Encoder
from stagepipe.transport.memory import SharedMemoryPool
from stagepipe.transport.native import measure_plain, pack_small
from stagepipe.transport.packet import (
    MAX_ENTRY_BYTES,
    PICKLE_BUFFER,
    PacketFlag,
    PacketHeader,
    PacketKind,
    check_entry_fits,
    encode_body,
    join_entries,
    pack,
    pack_entry,
    split_into_fragments,
    write_sent_at,
    write_timestamps,
)
from stagepipe.transport.packing import CarriedBlocks, Packer, SendCounts
from stagepipe.transport.pipe import PipeWaiter, WakeEvent
from stagepipe.transport.rule import SHARED_MEMORY, TransportRule

LEASED_TICK_INTERVAL_S = 0.01
"""The first tick interval of a wait while this process holds leases; it doubles with each tick. A block that another
thread releases meanwhile stays in use until the next tick."""
IDLE_TICK_INTERVAL_S = 0.25
"""The tick interval of a wait without leases, and the longest with leases."""

_CHANGEABLE: Final = frozenset({dict, list})
"""The mutable plain containers."""
_SINGLE_TYPES: Final = frozenset({dict, list, tuple, int, str, float, bool, bytes, type(None)})
"""The types of held items without arrays."""
_LATE_NS: Final = 10_000_000
"""Items held for this long are late: the process is busy with something slow."""
_CHUNK: Final = int(PacketKind.CHUNK)
_PIPE: Final = int(TransferKind.PIPE)
_PACKED: Final = int(TransferKind.PACKED)

InterruptCheck = Callable[[], bool]
"""Called at every tick of a wait. True ends the wait, because a seek or the end of the run comes first."""


class EntryTimes(NamedTuple):
    """The times of an entry, per item. `first_ns` is the time at which its first item was held."""

    encode_ns: int
    copy_ns: int
    nbytes: int
    first_ns: int
    items: int = 0
    """The items of a chunk, with tombstones; 0 for a single item."""
    kept: int = 0
    """The number of `items` that are not tombstones."""


class Sender:
    """The sending end of a hop."""

    max_items = 1
    """The limit of small items in a message: see `limit_message`."""
    blocked_ns = 0
    """The total time that this process waited for room in the pipe."""
    last_send_ns = 0
    """The time of the last write, per item."""
    is_watched = True
    watch: Callable[[], None] | None = None
    """Called, with `is_watched` set, when something is held and nothing calls `write_late` regularly."""

    # Held data: entries, then the chunk in the making. `_lock` guards it against `write_late`.
    _count = 0
    """The number of held items and packets; too high after `write_late`."""
    _nbytes = 0
    """An upper bound of their bytes; too high after `write_late`. Undefined if `_count` is 0, like `_next_key`."""
    _room_bytes = MAX_ENTRY_BYTES
    """If above MAX_ENTRY_BYTES, the chunk goes into a block and no entries are held."""
    _first_ns = 0
    """The time at which the first was held."""
    _chunk_key: Key = ()
    _chunk_ns = 0
    _next_key: Key = ()
    """The key that continues the chunk."""
    _hold_ns = 0
    """The time to hold an item: the second item of a message if it has two, because the first finds cold caches."""
    _was_held = False
    """Whether anything was held since the last call of `write_late`."""

    _generation = 0
    _max_array_bytes = 0
    """Smaller arrays travel in a chunk."""

    def __init__(  # noqa: PLR0917 - the resources of the process, in the order in which it creates them
        self,
        fd: int,
        memory: SharedMemoryPool,
        rule: TransportRule,
        wake_event: WakeEvent,
        is_interrupted: InterruptCheck,
        recorder: DurationRecorder,
        tick: Callable[[], None] | None = None,
        rule_word: Sequence[int] = (),
    ) -> None:
        """`recorder` takes rows of (encode, copy, pack_wait, send, send_wait) in ns; `tick` runs while waiting.

        `rule_word` is the place where the supervisor may change the rule during the run, see `TransportRule.word`.
        `wake_event` ends the current wait, so that `is_interrupted` is checked again.
        """
        self._fd = fd
        self._memory = memory
        self._is_interrupted = is_interrupted
        self._recorder = recorder
        self._tick = tick or memory.flush_releases
        self._waiter = PipeWaiter(fd, select.EPOLLOUT, wake_event)
        self.counts = SendCounts()
        self._encoder = Encoder(memory, rule.min_out_of_band_bytes)
        self._packer = Packer(self._encoder, memory, rule, rule_word or (rule.word,), self.counts)
        self._chunk_blocks = CarriedBlocks(self._encoder, memory)
        """Carries the block of a chunk."""
        self._min_out_of_band_bytes = rule.min_out_of_band_bytes
        has_blocks = rule.uses_blocks and memory.arena is not None
        self._max_plain_bytes = PLAIN_ROOM_BYTES if has_blocks else MAX_PACKET_ITEM_BYTES
        self._makes_chunks = rule.mode != SHARED_MEMORY
        self._lock = threading.Lock()
        self._entries: list[bytes] = []
        self._times: list[EntryTimes] = []
        self._values: list[Any] = []
        self._late_records: list[tuple[list[EntryTimes], int]] = []
        """Writes of `write_late` that are not recorded yet: (times, time of writing)."""

    # ------------------------------------------------------------------ holding items

    def limit_message(self, max_items: int) -> None:
        """Let up to `max_items` small items share a message; 1 writes each at once. Call `flush` before every wait."""
        self.max_items = max_items
        self._max_array_bytes = self._min_out_of_band_bytes if max_items > 1 else 0

    def start_generation(self, generation: int) -> None:
        """Begin a generation. Drops held data, which belongs to an older one."""
        with self._lock:
            self._entries = []
            self._times = []
            self._values = []
        self._count = 0
        self._room_bytes = MAX_ENTRY_BYTES
        self._generation = generation

    def add(self, value: Any, key: Key) -> bool | None:  # noqa: C901, PLR0912 - inlined: calls cost time
        """Hold a plain item, or SKIP for a dropped one, as the next item of a chunk. False if `send` must take it.

        The item counts for one sample. Returns None if a write was interrupted; all held data is then dropped.
        """
        if not self._makes_chunks:
            return False
        count = self._count
        begin_ns = perf_counter_ns() if count <= 1 else 0  # two items of each message are timed
        if value is SKIP:
            nbytes = GAP_BYTES
        else:
            nbytes = measure_plain(value, self._max_array_bytes, self._max_plain_bytes)
            if not nbytes:
                return False
            if nbytes < 0:
                value, nbytes = hold_arrays(value), -nbytes
            elif type(value) in _CHANGEABLE:
                value = value.copy()  # the stage may change the original
            if nbytes > MAX_PACKET_ITEM_BYTES and CHUNK_BYTES + KEY_PART_BYTES * len(key) + nbytes > MAX_ENTRY_BYTES:
                return False  # with so long a key, a chunk of it does not fit a packet
        if not count:
            self._nbytes = CHUNK_BYTES + KEY_PART_BYTES * len(key)
            if nbytes > MAX_PACKET_ITEM_BYTES:
                self._room_bytes = CHUNK_BLOCK_BYTES
        elif key != self._next_key or self._nbytes + nbytes > self._room_bytes:
            if not self._begin_chunk(nbytes, key):
                return None
            begin_ns, count = 0, self._count  # do not count the write as time of this item
        with self._lock:
            values = self._values
            if not values:
                self._chunk_key = key
                self._chunk_ns = now_ns = perf_counter_ns()
                if not count:
                    self._first_ns = now_ns
                if begin_ns:
                    self._hold_ns = now_ns - begin_ns
            values.append(value)
        self._next_key = (key[0] + 1,) if len(key) == 1 else (*key[:-1], key[-1] + 1)
        self._count = count = count + 1
        self._nbytes = held_bytes = self._nbytes + nbytes
        if begin_ns and count > 1:
            self._hold_ns = perf_counter_ns() - begin_ns
        if count >= self.max_items or held_bytes + nbytes > self._room_bytes:  # assumes the next item has this size
            return self._write_held() or None
        if not self.is_watched:
            self._start_watch()
        return True

    def add_numbers(self, numbers: Sequence[int], key: Key) -> bool | None:
        """Write consecutive items, `int` values of at most 64 bits, as one chunk. Returns the same results as `add`."""
        if not self._makes_chunks:
            return False
        if not self.flush():
            return None
        with self._lock:
            self._chunk_key = key
            self._chunk_ns = self._first_ns = perf_counter_ns()
            self._hold_ns = 0
            self._values = list(numbers)
            self._count = len(numbers)
        return self._write_held() or None

    def _write_single(self, item: int, value: Any) -> bool:
        """Write a chunk of one item without parts. Fast, because a reader waits for this item."""
        begin_ns = perf_counter_ns()
        data = encode_single(value)
        encoded_ns = perf_counter_ns()
        encode_ns = self._hold_ns + encoded_ns - begin_ns
        packet = pack_small(_CHUNK, self._generation, item, encode_ns + self.last_send_ns, data, encoded_ns)
        waited_ns = self._write_packet(packet, encoded_ns)
        if waited_ns < 0:
            return False
        self.blocked_ns += waited_ns
        self.last_send_ns = send_ns = perf_counter_ns() - encoded_ns - waited_ns
        nbytes = len(packet)
        counts = self.counts
        counts.pipe_messages += 1
        counts.inline_bytes += len(data)
        self._recorder.add((encode_ns, 0, begin_ns - self._chunk_ns, send_ns, waited_ns), (_PIPE, nbytes, send_ns))
        return True

    def _begin_chunk(self, nbytes: int, key: Key) -> bool:
        """Make room for an item that does not continue the chunk. Returns False if interrupted."""
        chunk_bytes = CHUNK_BYTES + KEY_PART_BYTES * len(key)
        is_large = nbytes > MAX_PACKET_ITEM_BYTES
        with self._lock:
            self._close_chunk()
        is_full = self._values or (is_large and self._entries) or self._nbytes + chunk_bytes + nbytes > MAX_ENTRY_BYTES
        if is_full and not self._write_held():
            return False
        if is_large:
            self._room_bytes = CHUNK_BLOCK_BYTES
        self._nbytes += chunk_bytes
        return True

    def _close_chunk(self) -> None:
        """Turn the chunk into an entry, so that others can follow. A chunk for a block stays. Needs the lock."""
        if self._values and self._room_bytes == MAX_ENTRY_BYTES:
            entry, times = self._pack_chunk(self._chunk_key, self._values)
            self._values = []
            self._entries.append(entry)
            self._times.append(times)
        if not self._values:
            self._nbytes = sum(map(len, self._entries))
            self._room_bytes = MAX_ENTRY_BYTES
        self._next_key = ()

    def _hold_entry(self, entry: bytes, times: EntryTimes | None, *, is_last: bool = False) -> bool:
        """Hold an entry, or write it with all held data. False if interrupted. `is_last`: write now."""
        now_ns = perf_counter_ns() if times is None else times.first_ns
        if self.max_items == 1 and not self._count:  # avoids the cost of holding
            return self._write_and_record(join_entries((entry,), now_ns), [] if times is None else [times], now_ns, 1)
        with self._lock:
            self._close_chunk()
        if (self._values or self._nbytes + len(entry) > MAX_ENTRY_BYTES) and not self._write_held():
            return False
        with self._lock:
            self._entries.append(entry)
            if times is not None:
                self._times.append(times)
            if not self._count:
                self._first_ns = now_ns
            self._nbytes = held_bytes = self._nbytes + len(entry)
            self._count = count = self._count + 1
        if is_last or count >= self.max_items or held_bytes + len(entry) > MAX_ENTRY_BYTES:
            return self._write_held()
        if not self.is_watched:
            self._start_watch()
        return True

    def _start_watch(self) -> None:
        self.is_watched = True
        if self.watch is not None:
            self.watch()

    def flush(self) -> bool:
        """Write all held data. Returns False if interrupted; the data is then dropped."""
        return not self._count or self._write_held()

    # ------------------------------------------------------------------ sending items that are not plain

    def send(self, item_box: list[Any], generation: int, key: Key, samples: int, meta: bytes) -> bool:
        """Send or hold the item in `item_box`, and empty the box. False if interrupted; the item is then dropped.

        The box releases the item before it is sent, so that buffers without another holder are handed over without a
        copy. Raises the exception of pickling, ArenaFullError or TransportError; then no part of the item is kept.
        """
        begin_ns = perf_counter_ns()
        self._encoder.encode(item_box[0])
        item_box.clear()
        encoded_at_ns = perf_counter_ns()
        header = (generation, key, samples, meta)
        encode_ns = encoded_at_ns - begin_ns
        entry = None
        if not self._encoder.buffers:
            entry = self._packer.pack_entry(header, encode_ns + self.last_send_ns)
        if entry is None:
            return self._send_alone(header, encode_ns)
        made_ns = perf_counter_ns()
        return self._hold_entry(entry, EntryTimes(encode_ns, made_ns - encoded_at_ns, len(entry), made_ns))

    def _send_alone(self, header: PacketHeader, encode_ns: int) -> bool:
        """Send the encoded item in its own packet, after all held data."""
        encoder = self._encoder
        packer = self._packer
        try:
            if self._count and not self._write_held():
                encoder.clear()
                return False
            begin_ns = perf_counter_ns()
            packet = packer.pack(header)
            body = None
            if packet is None:
                packet, body = self._pack_announcement(header)
            encoder.clear()
            copied_at_ns = perf_counter_ns()
            copy_ns = copied_at_ns - begin_ns
            write_timestamps(packet, encode_ns + copy_ns + self.last_send_ns, copied_at_ns)
            waited_ns = self._write_packet(packet, copied_at_ns)
            if body is not None and waited_ns >= 0:
                waited_ns = self._write_fragments(body, header[0], waited_ns)
        except BaseException:
            encoder.clear()
            packer.carried.release()
            raise
        if waited_ns < 0:
            packer.carried.release()
            return False
        self.last_send_ns = send_ns = perf_counter_ns() - copied_at_ns - waited_ns
        nbytes = len(packet) + (packer.bytes_in_blocks if body is None else len(body))
        self._recorder.add(
            (encode_ns, copy_ns, 0, send_ns, waited_ns), (packer.transfer_kind, nbytes, copy_ns + send_ns)
        )
        self.blocked_ns += waited_ns
        return True

    def send_marker(
        self, kind: PacketKind, generation: int, key: Key, *, samples: int = 1, count: int = 0, meta: bytes = b""
    ) -> bool:
        """Send or hold an entry without an item. Returns False if interrupted. The end of a segment is sent at once."""
        header = (generation, key, samples, meta)
        entry = pack_entry(kind, header, 0, count_or_bytes=count)
        check_entry_fits(entry, header)
        return self._hold_entry(entry, None, is_last=kind == PacketKind.END_OF_SEGMENT)

    # ------------------------------------------------------------------ writing held data

    def _write_held(self) -> bool:
        with self._lock:
            entries, times, key, values = self._entries, self._times, self._chunk_key, self._values
            self._entries = []
            self._times = []
            self._values = []
            self._was_held = True
        is_large = self._room_bytes > MAX_ENTRY_BYTES
        self._count = 0
        self._room_bytes = MAX_ENTRY_BYTES
        while self._late_records:
            self._record(*self._late_records.pop(), 0)
        if is_large and values:
            return self._write_large_chunk(key, values)
        if len(values) == 1 and len(key) == 1 and not entries and type(values[0]) in _SINGLE_TYPES:
            return self._write_single(key[0], values[0])
        if values:
            entry, chunk_times = self._pack_chunk(key, values)
            entries.append(entry)
            times.append(chunk_times)
        if not entries:  # `write_late` was faster
            return True
        begin_ns = perf_counter_ns()
        return self._write_and_record(join_entries(entries, begin_ns), times, begin_ns, len(entries))

    def _pack_chunk(self, key: Key, values: list[Any]) -> tuple[bytes, EntryTimes]:
        """Return the entry of a chunk, and its times."""
        begin_ns = perf_counter_ns()
        data = encode_chunk(values)
        kept = count_kept(values)
        count = max(kept, 1)
        encode_ns = self._hold_ns + (perf_counter_ns() - begin_ns) // count
        entry = pack_entry(
            _CHUNK,
            (self._generation, key, 1, b""),
            encode_ns + self.last_send_ns,
            count_or_bytes=len(values),
            pickle_data=data,
        )
        return entry, EntryTimes(encode_ns, 0, len(entry) // count, self._chunk_ns, len(values), kept)

    def _write_large_chunk(self, key: Key, values: list[Any]) -> bool:
        """Write a chunk that may exceed a packet: in a block, or in several packets if the arena is full."""
        blocks, kept = self._chunk_blocks, count_kept(values)
        count = max(kept, 1)
        blocks.block_ids = []
        begin_ns = perf_counter_ns()
        data = np.frombuffer(encode_chunk(values), np.uint8)
        encoded_ns = perf_counter_ns()
        encode_ns = self._hold_ns + (encoded_ns - begin_ns) // count
        try:
            arena, block, target = blocks.allocate(data.size, for_several_items=True)
        except ArenaFullError:
            return all(
                self._write_and_record(join_entries((entry,), now_ns := perf_counter_ns()), [times], now_ns, 1)
                for entry, times in self._split_chunk(key, values)
            )
        try:
            target[:] = data
            packet = pack(
                _CHUNK,
                (self._generation, key, 1, b""),
                flags=PacketFlag.PICKLE_IN_BLOCK,
                count_or_bytes=len(values),
                descriptors=[(arena, 0, 0, block, 0, data.size)],
            )
            now_ns = perf_counter_ns()
            copy_ns = (now_ns - encoded_ns) // count
            write_timestamps(packet, encode_ns + copy_ns + self.last_send_ns, now_ns)
            times = EntryTimes(encode_ns, copy_ns, data.size // count, self._chunk_ns, len(values), kept)
            is_written = self._write_and_record(packet, [times], now_ns, 1)
        except BaseException:
            blocks.release()
            raise
        if not is_written:
            blocks.release()
        return is_written

    def _split_chunk(self, key: Key, values: list[Any]) -> list[tuple[bytes, EntryTimes]]:
        """Pack a chunk that may exceed a packet into entries that each fit a packet."""
        entry, times = self._pack_chunk(key, values)
        if len(entry) <= MAX_ENTRY_BYTES:
            return [(entry, times)]
        middle = len(values) // 2
        return self._split_chunk(key, values[:middle]) + self._split_chunk(shift_key(key, middle), values[middle:])

    def _write_and_record(self, packet: bytearray, times: list[EntryTimes], begin_ns: int, entry_count: int) -> bool:
        waited_ns = self._write_packet(packet, begin_ns)
        if waited_ns < 0:
            return False
        count = entry_count + sum([entry_times.items - 1 for entry_times in times if entry_times.items])
        self.blocked_ns += waited_ns
        self.last_send_ns = (perf_counter_ns() - begin_ns - waited_ns) // count
        self._record(times, begin_ns, waited_ns // count)
        return True

    def _record(self, times: list[EntryTimes], begin_ns: int, wait_ns: int) -> None:
        """Record the entries of a packet written at `begin_ns`. `wait_ns` is each item's share of the wait.

        The items of a chunk are assumed to have been held one after the other, at equal intervals.
        """
        recorder, send_ns, counts = self._recorder, self.last_send_ns, self.counts
        kind = _PIPE if len(times) == 1 and times[0].items <= 1 else _PACKED
        for encode_ns, copy_ns, nbytes, first_ns, items, count in times:
            ledger_entry = (kind, nbytes, copy_ns + send_ns)
            held_ns = begin_ns - first_ns
            if not items:
                recorder.add((encode_ns, copy_ns, held_ns, send_ns, wait_ns), ledger_entry)
            if not count:
                continue
            if copy_ns:
                counts.shared_memory_messages += count
                counts.copied_bytes += nbytes * count
            else:
                counts.pipe_messages += count
                counts.inline_bytes += nbytes * count
            held_times_ns = [held_ns * index // count for index in range(count, 0, -1)]
            recorder.add_alike((encode_ns, copy_ns, 0, send_ns, wait_ns), ledger_entry, 2, held_times_ns)

    def write_late(self) -> bool:
        """Write data that was held too long, if that needs no wait. Returns whether anything is or was held.

        This runs on another thread, which must not allocate blocks: a chunk that exceeds a packet is split into
        several.
        """
        with self._lock:
            was_held = self._was_held or bool(self._entries or self._values)
            self._was_held = False
            now_ns = perf_counter_ns()
            if now_ns - self._first_ns > _LATE_NS:
                self._try_write_held(now_ns)
            return was_held

    def _try_write_held(self, now_ns: int) -> None:
        if self._entries:
            if not self._try_write(join_entries(self._entries, now_ns)):
                return
            self._late_records.append((self._times, now_ns))
            self._entries = []
            self._times = []
        for entry, times in self._split_chunk(self._chunk_key, self._values) if self._values else ():
            if not self._try_write(join_entries((entry,), now_ns)):
                return
            self._late_records.append(([times], now_ns))
            self._values = self._values[times.items :]
            self._chunk_key = shift_key(self._chunk_key, times.items)

    # ------------------------------------------------------------------ a large item through the pipe

    def _pack_announcement(self, header: PacketHeader) -> tuple[bytearray, bytearray]:
        """Return the packet that announces a large item, and the item's body."""
        encoder = self._encoder
        counts = self.counts
        body = encode_body(
            (
                (encoder.raw_bytes(buffer), PICKLE_BUFFER if buffer.is_pickle_buffer else 0)
                for buffer in encoder.buffers
            ),
            encoder.pickle_data,
        )
        counts.pipe_messages += 1
        counts.inline_bytes += len(body)
        return pack(PacketKind.FRAGMENTED, header, count_or_bytes=len(body)), body

    def _write_fragments(self, body: bytearray, generation: int, waited_ns: int) -> int:
        """Write a body in fragments. Returns `waited_ns` plus the waits of this call; -1 if interrupted."""
        for fragment in split_into_fragments(body, generation):
            try:
                os.writev(self._fd, fragment)
            except BlockingIOError:
                wait_ns = self._write_when_ready(fragment, perf_counter_ns())
                if wait_ns < 0:
                    return -1
                waited_ns += wait_ns
        return waited_ns

    # ------------------------------------------------------------------ writing packets

    def _write_packet(self, packet: bytes | bytearray, begin_ns: int) -> int:
        """Write a packet. Returns the wait for room in the pipe, in ns since `begin_ns`; -1 if interrupted."""
        try:
            os.write(self._fd, packet)
        except BlockingIOError:
            return self._write_when_ready((bytearray(packet),), begin_ns)
        return 0

    def _try_write(self, packet: bytearray) -> bool:
        """Write a packet if the pipe has room. Returns whether it had."""
        try:
            os.write(self._fd, packet)
        except BlockingIOError:
            return False
        return True

    def _write_when_ready(self, buffers: Sequence[bytearray | bytes | memoryview], begin_ns: int) -> int:
        packet = buffers[0]
        leased_s = LEASED_TICK_INTERVAL_S
        while not self._is_interrupted():
            self._tick()
            self._waiter.wait(leased_s if self._memory.lease_count else IDLE_TICK_INTERVAL_S)
            leased_s = min(2 * leased_s, IDLE_TICK_INTERVAL_S)
            now_ns = perf_counter_ns()
            if isinstance(packet, bytearray):  # a whole packet; fragments have no timestamps
                write_sent_at(packet, now_ns)
            try:
                os.writev(self._fd, buffers)
            except BlockingIOError:
                continue
            return now_ns - begin_ns
        return -1

    def close(self) -> None:
        """Close the waiter. The pipe stays open."""
        self._waiter.close()
