"""The entries that a sender holds back, to write several small ones as one packet. Every `Sender` has one `Outbox`.

An entry is held back only while the process makes entries quickly: at most one in ten takes longer than 50 us from the
entry before it (so many do where other processes want the same CPU). Every wait of the process writes what is held
first (`flush`), and the `LateWriter` bounds how long a call that is slow after all keeps it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, Final

from stagepipe.core import Key
from stagepipe.timing import DurationRecorder, TransferKind
from stagepipe.transport.hop.late_writer import LateWriter
from stagepipe.transport.hop.packer import SendCounts
from stagepipe.transport.hop.plain_run import PLAIN_ROOM_BYTES, PlainItem, RunTimes, pack_run
from stagepipe.transport.wire import MAX_ENTRY_BYTES, join_entries

_QUICK_NS: Final = 50_000
"""A process that takes longer for an item gains little: the write, which entries share, takes about 2 us."""
_MIN_QUICK: Final = 50
_SLOW_COST: Final = 10
"""A slow entry undoes so many quick ones."""
_MAX_QUICK: Final = _MIN_QUICK + 2 * _SLOW_COST
_MAX_HELD_NS: Final = 200_000
"""An entry made so long after the first one held is the last of its packet."""

_PIPE: Final = int(TransferKind.PIPE)
_LATE_NS: Final = 1_000_000
"""The process is busy with something slow if it has held an entry so long."""

HeldTimes = tuple[int, int, int, int]
"""Of an entry with an item: encode ns, copy ns, when it was made (`perf_counter_ns`), bytes."""

PacketWriter = Callable[[bytearray, int], int]
"""Writes a packet, from the given time on. Returns how many ns it had to wait; -1 if it was interrupted."""

WriteAttempt = Callable[[bytearray], bool]
"""Writes a packet if that needs no wait. Returns whether it did."""


class Outbox:
    """Holds entries back, up to `max_entries` with the one that is written at once."""

    def __init__(
        self, write_packet: PacketWriter, try_write: WriteAttempt, recorder: DurationRecorder, counts: SendCounts
    ) -> None:
        """`recorder` takes the rows of SEND_PHASES; plain items add to `counts`.

        The late writer's thread calls `try_write`.
        """
        self._write_packet = write_packet
        self._try_write = try_write
        self._recorder = recorder
        self._counts = counts
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
        self._was_held = False
        """Whether anything was held since the late writer has looked."""
        self._late_packets: list[tuple[list[HeldTimes | RunTimes], int, int]] = []
        """Written by the late writer, and not recorded yet: times, entries, when."""
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
        if self._plain_items:
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
        held_bytes = self._nbytes + nbytes
        if held_bytes > PLAIN_ROOM_BYTES or generation != self._generation:
            if not self._write():
                return False
            self._generation = generation
            held_bytes = nbytes
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
            or held_bytes + nbytes > PLAIN_ROOM_BYTES
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
            entry, times = pack_run(self._plain_items, self._generation, self.last_send_ns, has_arrays=self.has_arrays)
            self._plain_items = []
            self._entries.append(entry)
            self._times.append(times)
        self._nbytes = sum(map(len, self._entries))

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

    def _take(self) -> tuple[list[bytes], list[HeldTimes | RunTimes]]:
        """Take what is held: the entries, and their times."""
        with self._lock:
            self._pack_plain_items()
            held = self._entries, self._times
            self._entries = []
            self._times = []
        self._count = 0
        self._nbytes = 0
        return held

    def _write(self) -> bool:
        entries, times = self._take()
        if not entries:  # the late writer was faster
            return True
        begin_ns = perf_counter_ns()
        waited_ns = self._write_packet(join_entries(entries, begin_ns), begin_ns)
        if waited_ns < 0:
            return False
        self.blocked_ns += waited_ns
        send_ns = perf_counter_ns() - begin_ns - waited_ns
        self._record(times, _count_entries(entries, times), begin_ns, send_ns, waited_ns)
        self._record_late_packets()
        self._excuse(send_ns + waited_ns)
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
            encode_ns, copy_ns, _, nbytes = times
            self._recorder.add((encode_ns, copy_ns, 0, send_ns, waited_ns), (_PIPE, nbytes, copy_ns + send_ns))
        if self._late_packets:
            self._record_late_packets()
        return True

    def _record_late_packets(self) -> None:
        while self._late_packets:
            times, count, begin_ns = self._late_packets.pop()
            self._record(times, count, begin_ns, self.last_send_ns * count, 0)

    def _write_late(self) -> bool:
        """Write what has been held too long. On the late writer's thread; returns what `LateWriter` asks for."""
        with self._lock:
            was_held, self._was_held = self._was_held, False
            now_ns = perf_counter_ns()
            if now_ns - self._first_made_ns > _LATE_NS:
                self._try_write_held(now_ns)
            return was_held or bool(self._entries or self._plain_items)

    def _try_write_held(self, now_ns: int) -> None:
        """Write what is held if that needs no wait. Meanwhile the main thread may add plain items, which stay."""
        items = self._plain_items[:]
        entries, times = self._entries[:], self._times[:]
        if items:
            entry, run_times = pack_run(items, self._generation, self.last_send_ns, has_arrays=self.has_arrays)
            entries.append(entry)
            times.append(run_times)
        if entries and self._try_write(join_entries(entries, now_ns)):
            self._late_packets.append((times, _count_entries(entries, times), now_ns))
            self._entries = []
            self._times = []
            del self._plain_items[: len(items)]

    def _record(
        self, times: Sequence[HeldTimes | RunTimes], count: int, begin_ns: int, packet_ns: int, waited_ns: int
    ) -> None:
        """Record the phases of each item: the write and its wait are divided among the entries of the packet."""
        self.last_send_ns = send_ns = packet_ns // count
        wait_ns = waited_ns // count
        recorder = self._recorder
        for entry_times in times:
            if isinstance(entry_times, RunTimes):
                encode_ns, nbytes, made_ns = entry_times
                self._counts.pipe_messages += len(made_ns)
                self._counts.inline_bytes += nbytes * len(made_ns)
                recorder.add_alike(
                    (encode_ns, 0, 0, send_ns, wait_ns),
                    (_PIPE, nbytes, send_ns),
                    2,
                    [begin_ns - item_ns for item_ns in made_ns],
                )
            else:
                encode_ns, copy_ns, item_ns, nbytes = entry_times
                recorder.add(
                    (encode_ns, copy_ns, begin_ns - item_ns, send_ns, wait_ns), (_PIPE, nbytes, copy_ns + send_ns)
                )


def _count_entries(entries: Sequence[bytes], times: Sequence[HeldTimes | RunTimes]) -> int:
    """How many entries these are, each item of a run counted."""
    runs = [len(entry_times.made_ns) for entry_times in times if isinstance(entry_times, RunTimes)]
    return len(entries) - len(runs) + sum(runs)
