"""The entries that a sender holds back, to write several small ones as one packet. Every `Sender` has one `Outbox`.

An entry is held back only while the process makes entries quickly: at most one in ten takes longer than 50 us from the
entry before it (so many do where other processes want the same CPU). Every wait of the process writes what is held
first (`flush`), and the `LateWriter` bounds how long a call that is slow after all keeps it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

from stagepipe.core import Key
from stagepipe.timing import DurationRecorder
from stagepipe.transport.hop.held_times import HeldRecorder, HeldTimes, count_entries
from stagepipe.transport.hop.late_writer import LateWriter
from stagepipe.transport.hop.packer import SendCounts
from stagepipe.transport.hop.plain_run import (
    MAX_PACKET_ITEM_BYTES,
    PLAIN_ROOM_BYTES,
    PlainItem,
    RunTimes,
    pack_run,
    pack_runs,
)
from stagepipe.transport.hop.run_block import RUN_BLOCK_BYTES, RunBlocks
from stagepipe.transport.wire import MAX_ENTRY_BYTES, join_entries

_QUICK_NS: Final = 50_000
"""A process that takes longer for an item gains little: the write, which entries share, takes about 2 us."""
_MIN_QUICK: Final = 50
_SLOW_COST: Final = 10
"""A slow entry undoes so many quick ones."""
_MAX_QUICK: Final = _MIN_QUICK + 2 * _SLOW_COST
_MAX_HELD_NS: Final = 200_000
"""An entry made so long after the first one held is the last of its packet."""

_LATE_NS: Final = 1_000_000
"""The process is busy with something slow if it has held an entry so long."""

PacketWriter = Callable[[bytearray, int], int]
"""Writes a packet, from the given time on. Returns how many ns it had to wait; -1 if it was interrupted."""

WriteAttempt = Callable[[bytearray], bool]
"""Writes a packet if that needs no wait. Returns whether it did."""


class Outbox:
    """Holds entries back, up to `max_entries` with the one that is written at once."""

    def __init__(
        self,
        write_packet: PacketWriter,
        try_write: WriteAttempt,
        recorder: DurationRecorder,
        counts: SendCounts,
        run_blocks: RunBlocks | None = None,
    ) -> None:
        """`recorder` takes the rows of SEND_PHASES; plain items add to `counts`.

        The late writer's thread calls `try_write`. `run_blocks`: for plain items above MAX_PACKET_ITEM_BYTES.
        """
        self._write_packet = write_packet
        self._try_write = try_write
        self._recorder = HeldRecorder(recorder, counts)
        self._run_blocks = run_blocks
        self.max_entries = 1
        self.blocked_ns = 0
        self.last_send_ns = 0
        """The cost of the last write for each of its entries."""
        self._lock = threading.Lock()
        """Guards what is held, against the late writer's thread."""
        self._late_writer = LateWriter(self._write_late)
        self._entries: list[bytes] = []
        self._times: list[HeldTimes | RunTimes] = []
        self._plain_items: list[PlainItem] = []
        """They follow `_entries`. Added without the lock: the late writer removes items only at the front."""
        self.has_arrays = False
        """Whether any plain item so far was one of `hold_arrays`."""
        self._generation = 0
        """That of the plain items."""
        self._count = 0
        """How many entries are held, each plain item counted; too many after the late writer took some."""
        self._nbytes = 0
        """The most bytes that they take; the same."""
        self._room_bytes = PLAIN_ROOM_BYTES
        """How many bytes of plain items may be held. More than a packet's room: all that is held are plain items."""
        self._was_held = False
        """Whether anything was held since the late writer has looked."""
        self._late_packets: list[tuple[list[HeldTimes | RunTimes], int]] = []
        """Written by the late writer, and not recorded yet: times, when."""
        self._first_made_ns = 0
        self.hold_until_ns = 0
        """An entry that is made by then may be held back: this process makes them quickly."""
        self._quick_until_ns = 0
        """An entry that is made by then is a quick one; 0 after a wait, when this is not known."""
        self._quick_count = 0

    def add(self, entry: bytes, made_ns: int, times: HeldTimes | None = None, *, is_last: bool = False) -> bool:
        """Hold an entry back, or write it with those that are held; False if that was interrupted, and all are dropped.

        `times`: of an entry with an item. `is_last`: nothing follows, so it is written.
        """
        nbytes = len(entry)
        if self._room_bytes > PLAIN_ROOM_BYTES:  # also if the late writer took them all: `entry` has no place with them
            if not self._write():
                return False
        elif self._plain_items:
            with self._lock:
                self._pack_plain_items()
        if self._nbytes + nbytes > MAX_ENTRY_BYTES and not self._write():
            return False
        may_hold = self.max_entries > 1 and not is_last and made_ns <= self.hold_until_ns
        self._count_pace(made_ns)
        if not self._count:
            if not may_hold:
                return self._write_alone(entry, made_ns, times)
            self._first_made_ns = made_ns
        with self._lock:
            self._entries.append(entry)
            if times is not None:
                self._times.append(times)
        self._count += 1
        self._nbytes = held_bytes = self._nbytes + nbytes
        if (
            not may_hold
            or self._count >= self.max_entries
            or held_bytes + nbytes > MAX_ENTRY_BYTES  # the next entry probably has the size of this one
            or made_ns - self._first_made_ns >= _MAX_HELD_NS
        ):
            return self._write()
        self._was_held = True
        if not self._late_writer.is_watching:
            self._late_writer.watch()
        return True

    def add_plain(self, value: Any, generation: int, key: Key, nbytes: int, begin_ns: int) -> bool:
        """`add` for a plain item of at most `nbytes`, made by `hold_until_ns`; it is pickled later, with others.

        `begin_ns`: when its sending began. Nobody else may change `value`. Much like `add`, without a call more than
        it needs: this is what most small items cost.
        """
        is_large = nbytes > MAX_PACKET_ITEM_BYTES
        if is_large and self._entries and not self._write():
            return False
        if is_large:
            self._room_bytes = RUN_BLOCK_BYTES
        held_bytes = self._nbytes + nbytes
        if held_bytes > self._room_bytes or generation != self._generation:
            if not self._write():
                return False
            self._generation = generation
            held_bytes = nbytes
            if is_large:
                self._room_bytes = RUN_BLOCK_BYTES
        made_ns = perf_counter_ns()
        self._plain_items.append((value, key, begin_ns, made_ns))
        self.hold_until_ns = self._quick_until_ns = made_ns + _QUICK_NS
        if self._quick_count < _MAX_QUICK:
            self._quick_count += 1
        self._nbytes = held_bytes
        self._count = count = self._count + 1
        if count == 1:
            self._first_made_ns = made_ns
        if (
            count >= self.max_entries
            or held_bytes + nbytes > self._room_bytes
            or made_ns - self._first_made_ns >= _MAX_HELD_NS
        ):
            return self._write()
        self._was_held = True
        if not self._late_writer.is_watching:
            self._late_writer.watch()
        return True

    def _pack_plain_items(self) -> None:
        """Make the plain items an entry. Under the lock."""
        if self._plain_items:
            entry, times = self._pack_run(self._plain_items)
            self._plain_items = []
            self._entries.append(entry)
            self._times.append(times)
        self._nbytes = sum(map(len, self._entries))

    def _pack_run(self, items: list[PlainItem]) -> tuple[bytes, RunTimes]:
        return pack_run(items, self._generation, self.last_send_ns, has_arrays=self.has_arrays)

    def _count_pace(self, made_ns: int) -> None:
        """Count an entry as quick or slow."""
        if self._quick_until_ns:
            if made_ns > self._quick_until_ns:
                self._quick_count = max(self._quick_count - _SLOW_COST, 0)
            elif self._quick_count < _MAX_QUICK:
                self._quick_count += 1
        self._quick_until_ns = made_ns + _QUICK_NS
        self.hold_until_ns = self._quick_until_ns if self._quick_count >= _MIN_QUICK else 0

    def _excuse(self, write_ns: int) -> None:
        """A packet's write does not make the next entry slow: the reader that it wakes may take this CPU meanwhile.

        Else a slow process would stay so: as it holds nothing back, each of its entries wakes a reader.
        """
        if self.hold_until_ns:
            self.hold_until_ns += write_ns
        if self._quick_until_ns:
            self._quick_until_ns += write_ns

    def flush(self) -> bool:
        """Write what is held, because the process waits or begins something else; False if that was interrupted."""
        is_written = not self._count or self._write()
        self.hold_until_ns = self._quick_until_ns = 0
        return is_written

    def discard(self) -> None:
        """Drop what is held: a seek has made it obsolete."""
        self._take()
        self.hold_until_ns = self._quick_until_ns = 0

    def _take(self) -> tuple[list[bytes], list[HeldTimes | RunTimes], list[PlainItem]]:
        """Take what is held: the entries, their times, and the plain items after them."""
        with self._lock:
            held = self._entries, self._times, self._plain_items
            self._entries = []
            self._times = []
            self._plain_items = []
        self._count = 0
        self._nbytes = 0
        self._room_bytes = PLAIN_ROOM_BYTES
        return held

    def _write(self) -> bool:
        is_large = self._room_bytes > PLAIN_ROOM_BYTES
        entries, times, items = self._take()
        if is_large:
            return self._write_large(items)
        if items:
            entry, run_times = self._pack_run(items)
            entries.append(entry)
            times.append(run_times)
        return not entries or self._write_together(entries, times)  # none: the late writer was faster

    def _write_large(self, items: list[PlainItem]) -> bool:
        """Write plain items that may exceed a packet: in a block, or in several packets where it has no memory."""
        if not items:
            return True
        blocks, send_ns = self._run_blocks, self.last_send_ns
        packed = None
        if blocks is not None:
            packed = blocks.pack(items, self._generation, send_ns, has_arrays=self.has_arrays)
        if blocks is None or packed is None:
            runs = pack_runs(items, self._generation, send_ns, has_arrays=self.has_arrays)
            return all(self._write_together([entry], [times]) for entry, times in runs)
        packet, times = packed
        try:
            is_written = self._write_and_record(packet, [times], len(items), perf_counter_ns())
        except BaseException:
            blocks.release()
            raise
        if not is_written:
            blocks.release()
        return is_written

    def _write_together(self, entries: list[bytes], times: list[HeldTimes | RunTimes]) -> bool:
        begin_ns = perf_counter_ns()
        packet = join_entries(entries, begin_ns)
        return self._write_and_record(packet, times, count_entries(entries, times), begin_ns)

    def _write_and_record(
        self, packet: bytearray, times: list[HeldTimes | RunTimes], count: int, begin_ns: int
    ) -> bool:
        waited_ns = self._write_packet(packet, begin_ns)
        if waited_ns < 0:
            return False
        self.blocked_ns += waited_ns
        packet_ns = perf_counter_ns() - begin_ns - waited_ns
        self.last_send_ns = packet_ns // count
        self._recorder.record(times, begin_ns, self.last_send_ns, waited_ns // count)
        self._record_late_packets()
        self._excuse(packet_ns + waited_ns)
        return True

    def _write_alone(self, entry: bytes, begin_ns: int, times: HeldTimes | None) -> bool:
        """Write an entry while nothing is held: what an item costs that is not held back."""
        waited_ns = self._write_packet(join_entries((entry,), begin_ns), begin_ns)
        if waited_ns < 0:
            return False
        self.last_send_ns = send_ns = perf_counter_ns() - begin_ns - waited_ns
        self.blocked_ns += waited_ns
        self._excuse(send_ns + waited_ns)
        if times is not None:
            self._recorder.record_alone(times, send_ns, waited_ns)
        if self._late_packets:
            self._record_late_packets()
        return True

    def _record_late_packets(self) -> None:
        while self._late_packets:
            times, begin_ns = self._late_packets.pop()
            self._recorder.record(times, begin_ns, self.last_send_ns, 0)

    def _write_late(self) -> bool:
        """Write what has been held too long. On the late writer's thread; returns what `LateWriter` asks for."""
        with self._lock:
            was_held, self._was_held = self._was_held, False
            now_ns = perf_counter_ns()
            if now_ns - self._first_made_ns > _LATE_NS:
                self._try_write_held(now_ns)
            return was_held or bool(self._entries or self._plain_items)

    def _try_write_held(self, now_ns: int) -> None:
        """Write what is held if that needs no wait. Meanwhile the main thread may add plain items, which stay.

        Only the main thread may allocate a block, so items that exceed a packet go in several.
        """
        items = self._plain_items[:]
        entries, times = self._entries[:], self._times[:]
        runs = pack_runs(items, self._generation, self.last_send_ns, has_arrays=self.has_arrays) if items else iter(())
        for entry, run_times in runs:
            entries.append(entry)
            times.append(run_times)
            if not self._try_write_late(entries, times, now_ns):
                return
            del self._plain_items[: len(run_times.made_ns)]
            entries, times = [], []
        if entries:
            self._try_write_late(entries, times, now_ns)

    def _try_write_late(self, entries: list[bytes], times: list[HeldTimes | RunTimes], now_ns: int) -> bool:
        """Write entries, the first of those that are held, as a packet. Returns whether that needed no wait."""
        if not self._try_write(join_entries(entries, now_ns)):
            return False
        self._late_packets.append((times, now_ns))
        self._entries = []
        self._times = []
        return True
