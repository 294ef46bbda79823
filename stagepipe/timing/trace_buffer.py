"""The trace of a process: a ring of records in a memfd.

The supervisor creates the ring. If the process dies, its successor continues the same ring.

A record is 64 bytes. It is in shared memory as soon as `add` returns, so it outlives a kill of its writer. When the
ring is full, a new record overwrites the oldest. Times are from `perf_counter_ns`.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from time import perf_counter_ns
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stagepipe.core import Key

TRACE_CAPACITY: Final = 1 << 16
"""The records of a ring: 4 MiB, about 16,000 items of a stage. Unwritten pages take no memory."""
_RECORD: Final = struct.Struct("<QQqQQQQQ")
_HEADER_BYTES: Final = 64
"""The first word of the header counts all records ever written."""
_NO_KEY: Final = (-1,)
_FAILED_BIT: Final = 1 << 28
_MAX_WORD: Final = 0xFFFFFFFF
_ROWS_PER_STEP: Final = 1024


class TraceKind(IntEnum):
    """The action of a process that a record describes. `first`, `second` and `items` are fields of `TraceRecord`."""

    START = 1  # from its fork until its stages were built
    WAIT_FOR_INPUT = 2
    RECEIVE = 3  # first: ns of decoding, second: ns in the queue, items: the number that arrived together
    STAGE = 4  # a call of a stage's function; items: length of a list, first: 1 + the thread if there are several
    ITEM = 5  # all stages of a process, and the sending of their results; first: as in STAGE
    SEND = 6  # first: ns of encoding and copying, second: ns of the write and its wait; items: written
    WRITE = 7  # writing held items
    WAIT_FOR_ADMISSION = 8  # the window is full
    CONSUME = 9  # the caller's work on an item


class TraceRecord(NamedTuple):
    """A span of time in a process, with the key of its item; -1 if it has none."""

    kind: int
    begin_ns: int
    end_ns: int
    key: Key
    stage: int
    is_failed: bool
    generation: int
    pid: int
    first: int
    second: int
    items: int


@dataclass(frozen=True)
class TraceRing:
    """The records of a ring at one moment, and the number of records that were overwritten."""

    rows: NDArray[np.uint64]
    dropped: int

    def iter_records(self) -> Iterator[TraceRecord]:
        """Yield the records, in the order of their ends."""
        for start in range(0, len(self.rows), _ROWS_PER_STEP):
            yield from map(_unpack, self.rows[start : start + _ROWS_PER_STEP].tolist())


class TraceBuffer:
    """The writer of a ring. Only one process and one thread may write at a time."""

    def __init__(self, fd: int, capacity: int = TRACE_CAPACITY) -> None:
        """Map `fd`, a memfd from `make_trace_fd` with the same `capacity`, and continue after its last record."""
        self._memory = mmap.mmap(fd, _HEADER_BYTES + capacity * _RECORD.size)
        self._words = memoryview(self._memory).cast("Q")
        self._count = self._words[0]
        self._capacity = capacity
        self._pid = os.getpid()
        self.generation = 0
        self._origin = self._pid
        self._begun_key: Key = ()
        self._begun_ns = 0

    def enter_generation(self, generation: int) -> None:
        """Write `generation` into all records from now on."""
        self.generation = generation
        self._origin = (generation & _MAX_WORD) << 32 | self._pid

    def begin_item(self, key: Key, begin_ns: int) -> None:
        """Remember when the work on an item began."""
        self._begun_key = key
        self._begun_ns = begin_ns

    def take_item_begin(self, key: Key) -> int:
        """Return the time at which the work on an item began: now, unless `begin_item` recorded it."""
        if key != self._begun_key:
            return perf_counter_ns()
        self._begun_key = ()
        return self._begun_ns

    def add(  # noqa: PLR0913, PLR0917 - the fields of a record; keywords would double its cost
        self,
        kind: int,
        begin_ns: int,
        end_ns: int,
        key: Key = _NO_KEY,
        stage: int = 0,
        first: int = 0,
        second: int = 0,
        items: int = 1,
        *,
        is_failed: bool = False,
    ) -> None:
        """Add a record. Takes about a microsecond."""
        written = self._count
        depth = min(len(key) - 1, 4)
        _RECORD.pack_into(
            self._memory,
            _HEADER_BYTES + written % self._capacity * 64,
            begin_ns,
            end_ns,
            key[0],
            kind | stage << 8 | depth << 24 | is_failed << 28 | items << 32,
            self._origin,
            _pack_parts(key[: depth + 1]) if depth else 0,
            first,
            second,
        )
        self._count = self._words[0] = written + 1


def make_trace_fd(capacity: int = TRACE_CAPACITY) -> int:
    """Create a memfd for a ring of `capacity` records."""
    fd = os.memfd_create("stagepipe-trace", os.MFD_CLOEXEC)
    os.ftruncate(fd, _HEADER_BYTES + capacity * _RECORD.size)
    return fd


def read_trace(fd: int, capacity: int = TRACE_CAPACITY) -> TraceRing:
    """Return the records of a ring, even if its writer has died.

    A full ring returns one record less than its capacity: a kill may have come while the oldest was being overwritten.

    >>> fd = make_trace_fd()
    >>> TraceBuffer(fd).add(TraceKind.STAGE, 1000, 2000, (17, 3))
    >>> [record.key for record in read_trace(fd).iter_records()]
    [(17, 3)]
    >>> os.close(fd)
    """
    with mmap.mmap(fd, _HEADER_BYTES + capacity * _RECORD.size, prot=mmap.PROT_READ) as memory:
        written = int.from_bytes(memory[:8], "little")
        kept = min(written, capacity - 1)
        slots = np.arange(written - kept, written, dtype=np.uint64) % capacity
        rows = np.frombuffer(memory[:], np.uint64, offset=_HEADER_BYTES).reshape(capacity, -1)[slots]
    return TraceRing(rows, written - kept)


def pack_durations(first_ns: int, second_ns: int) -> int:
    """Pack two durations into one field of a record. Durations above 4 seconds count as 4."""
    return min(first_ns, _MAX_WORD) << 32 | min(second_ns, _MAX_WORD)


def unpack_durations(packed: int) -> tuple[int, int]:
    """Unpack the two durations of `pack_durations`.

    >>> unpack_durations(pack_durations(5, 7))
    (5, 7)
    """
    return packed >> 32, packed & _MAX_WORD


def _unpack(row: list[int]) -> TraceRecord:
    begin_ns, end_ns, item, meta, origin, parts, first, second = row
    if item >> 63:
        item -= 1 << 64
    return TraceRecord(
        kind=meta & 0xFF,
        begin_ns=begin_ns,
        end_ns=end_ns,
        key=(item, *_unpack_parts(parts, meta >> 24 & 0xF)),
        stage=meta >> 8 & 0xFFFF,
        is_failed=bool(meta & _FAILED_BIT),
        generation=origin >> 32,
        pid=origin & _MAX_WORD,
        first=first,
        second=second,
        items=meta >> 32,
    )


def _pack_parts(key: Key) -> int:
    """Pack at most four parts of a key into 64 bits. With more than two parts, only the last 16 bits of each fit."""
    bits = _part_bits(len(key) - 1)
    packed = 0
    for part in key[:0:-1]:
        packed = packed << bits | part & (1 << bits) - 1
    return packed


def _unpack_parts(packed: int, depth: int) -> Key:
    bits = _part_bits(depth)
    return tuple(packed >> bits * index & (1 << bits) - 1 for index in range(depth))


def _part_bits(depth: int) -> int:
    return 32 if depth <= 2 else 16  # noqa: PLR2004 - two parts of 32 bits share 64 bits
