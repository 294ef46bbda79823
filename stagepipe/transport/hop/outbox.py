"""The entries that a sender holds back, to write several small ones as one packet. Every `Sender` has one `Outbox`.

An entry is held back only while the process makes entries quickly: at most one in ten takes longer than 50 us from the
entry before it (so many do where other processes want the same CPU). Every wait of the process writes what is held
first (`flush`), and the `LateWriter` bounds how long a call that is slow after all keeps it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Final

from stagepipe.timing import DurationRecorder, TransferKind
from stagepipe.transport.hop.late_writer import LateWriter
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

HeldTimes = tuple[int, int, int, int]
"""Of an entry with an item: encode ns, copy ns, when it was made (`perf_counter_ns`), bytes."""

PacketWriter = Callable[[bytearray, int], int]
"""Writes a packet, from the given time on. Returns how many ns it had to wait; -1 if it was interrupted."""

WriteAttempt = Callable[[bytearray], bool]
"""Writes a packet if that needs no wait. Returns whether it did."""


class Outbox:
    """Holds entries back, up to `max_entries` with the one that is written at once."""

    def __init__(self, write_packet: PacketWriter, try_write: WriteAttempt, recorder: DurationRecorder) -> None:
        """`recorder` takes the rows of SEND_PHASES. The late writer's thread calls `try_write`."""
        self._write_packet = write_packet
        self._try_write = try_write
        self._recorder = recorder
        self.max_entries = 1
        self.blocked_ns = 0
        self.last_send_ns = 0
        """The cost of the last write for each of its entries."""
        self._lock = threading.Lock()
        """Guards what is held, against the late writer's thread."""
        self._late_writer = LateWriter(self._write_late)
        self._entries: list[bytes] = []
        self._times: list[HeldTimes] = []
        self._nbytes = 0
        self._was_held = False
        """Whether anything was held since the late writer has looked."""
        self._late_packets: list[tuple[list[HeldTimes], int, int]] = []
        """Written by the late writer, and not recorded yet: times, entries, when."""
        self._first_made_ns = 0
        self._last_made_ns = 0
        self._quick_count = 0

    def add(self, entry: bytes, made_ns: int, times: HeldTimes | None = None, *, is_last: bool = False) -> bool:
        """Hold an entry back, or write it with those that are held; False if that was interrupted, and all are dropped.

        `times`: of an entry with an item. `is_last`: nothing follows, so it is written.
        """
        nbytes = len(entry)
        if self._nbytes + nbytes > MAX_ENTRY_BYTES and not self._write():
            return False
        may_hold = self._is_quick(made_ns)
        with self._lock:
            entries = self._entries
            if not entries:
                self._first_made_ns = made_ns
            entries.append(entry)
            if times is not None:
                self._times.append(times)
            self._nbytes = held_bytes = self._nbytes + nbytes
        if (
            not may_hold
            or is_last
            or len(entries) >= self.max_entries
            or held_bytes + nbytes > MAX_ENTRY_BYTES  # the next entry probably has the size of this one
            or made_ns - self._first_made_ns >= _MAX_HELD_NS
        ):
            return self._write()
        self._was_held = True
        if not self._late_writer.is_watching:
            self._late_writer.watch()
        return True

    def _is_quick(self, made_ns: int) -> bool:
        """Count an entry as quick or slow. Returns whether entries may be held back after it."""
        last_made_ns = self._last_made_ns
        self._last_made_ns = made_ns
        quick_count = self._quick_count
        if not last_made_ns:  # after a wait: another one may follow
            return False
        if made_ns - last_made_ns > _QUICK_NS:
            self._quick_count = max(quick_count - _SLOW_COST, 0)
            return False
        if quick_count < _MAX_QUICK:
            self._quick_count = quick_count + 1
        return quick_count >= _MIN_QUICK

    def flush(self) -> bool:
        """Write what is held, because the process waits or begins something else; False if that was interrupted."""
        self._last_made_ns = 0
        return not self._entries or self._write()

    def discard(self) -> None:
        """Drop what is held: a seek has made it obsolete."""
        self._take()
        self._last_made_ns = 0

    def _take(self) -> tuple[list[bytes], list[HeldTimes]]:
        """Take what is held."""
        with self._lock:
            held = self._entries, self._times
            self._entries = []
            self._times = []
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
        self._record(times, len(entries), begin_ns, send_ns, waited_ns)
        while self._late_packets:
            times, count, begin_ns = self._late_packets.pop()
            self._record(times, count, begin_ns, send_ns, 0)
        return True

    def _write_late(self) -> bool:
        """Write what has been held too long. On the late writer's thread; returns what `LateWriter` asks for."""
        with self._lock:
            was_held, self._was_held = self._was_held, False
            now_ns = perf_counter_ns()
            is_late = self._entries and now_ns - self._first_made_ns > _LATE_NS
            if is_late and self._try_write(join_entries(self._entries, now_ns)):
                self._late_packets.append((self._times, len(self._entries), now_ns))
                self._entries = []
                self._times = []
                self._nbytes = 0
            return was_held or bool(self._entries)

    def _record(self, times: Sequence[HeldTimes], count: int, begin_ns: int, packet_ns: int, waited_ns: int) -> None:
        """Record the phases of each item: the write and its wait are divided among the entries of the packet."""
        self.last_send_ns = send_ns = packet_ns // count
        wait_ns = waited_ns // count
        has_ledger = self._recorder.has_ledger
        rows: list[int] = []
        for encode_ns, copy_ns, made_ns, nbytes in times:
            rows += (encode_ns, copy_ns, begin_ns - made_ns, send_ns, wait_ns)
            if has_ledger:
                rows += (TransferKind.PIPE, nbytes, copy_ns + send_ns)
        self._recorder.add_rows(rows)
