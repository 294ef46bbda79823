"""The board: counters in shared memory for all processes of a run. Every word has one writer, so it needs no lock.

The layout, in 8-byte words:

    run          the generation, the shared memory of older eras, the version of the layout, the end of the run
    deliveries   the consumer's delivery counts, as the supervisor's thread last saw them (`DeliveryCounter`)
    seek         the current seek message, with its generation and checksum
    segments     the progress and the admission state of each segment
    rules        the transport rule of each hop, which the supervisor may change during the run
    processes    a region for each process (`ProcessRegion`), which it writes and all processes read

The region of a process has its counters (`ProcessCounter`). For each of its stages it has counters (`StageCounter`), a
histogram of run times and the slowest items. The histograms and the ledgers of its sending and receiving side follow,
then a slot for each of its threads that work on items (`ItemSlot`).

Progress words carry the generation in which they were written; readers ignore other generations. Words are written
through a cast memoryview, which makes a single aligned store (`struct.pack_into` writes zeros first).
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stagepipe.timing.histogram import BUCKET_COUNT, HISTOGRAM_WORDS, LEDGER_WORDS, CostLedger, Histogram, add_durations

# ------------------------------------------------------------------ the names of the counters

# The names of report fields. `cost_ns` is the work of both sides for an item, without queues and waits.
SEND_PHASES = ("encode_ns", "copy_ns", "pack_wait_ns", "send_ns", "send_wait_ns")
RECEIVE_PHASES = ("queue_ns", "receive_ns", "decode_ns", "cost_ns")


class ProcessCounter(IntEnum):
    """The counters of a process, by their offset in words. Durations and times are in ns."""

    STARTED_NS = 0
    READY_NS = 1
    STARVED_NS = 2
    BLOCKED_NS = 3
    CPU_NS = 4
    LIVE_BYTES = 5
    PEAK_BYTES = 6
    PIPE_MESSAGES = 7
    SHARED_MEMORY_MESSAGES = 8
    MIXED_MESSAGES = 9
    INLINE_BYTES = 10
    COPIED_BYTES = 11
    ZERO_COPY_BYTES = 12
    COPIED_OUT_ITEMS = 13
    ITEMS_IN = 14
    EPOCH_ITEMS_PLUS_ONE = 15  # 1 + the number of items of an epoch; 0 while unknown
    EPOCH_END_NS = 16
    CURRENT_ITEM_PLUS_ONE = 17  # 1 + the number of the item being processed
    ITEMS_SENT = 18  # items that the source sent, in all epochs; an item that is read again counts once
    PROCESS_STATE = 19
    STOPPED_NS = 20
    HELD_BYTES = 21  # in blocks that it leases; for the consumer, in blocks that its caller holds
    LARGEST_BLOCK_BYTES = 22  # the largest block that it has allocated
    DOWNTIME_NS = 23  # sum of the times from each death of the worker until its successor was ready
    CURRENT_STAGE = 24  # the index of the stage that is processing the current item
    CURRENT_PARTS_PLUS_ONE = 25  # four words: 1 + the part of the item, the part of the part ...; 0 after the last
    LAST_CURRENT_ITEM_PLUS_ONE = 29  # 1 + the number of the last of several items that are processed together
    HEARTBEAT_NS = 30  # the last tick of a wait
    CURRENT_EPOCH = 31  # the epoch of the current item
    CHUNK_ITEM_NS = 32  # mean time of an item in the last chunk; only for a worker that sends chunks
    CHUNK_ITEM_BYTES = 33  # mean bytes of a row in the last chunk
    FLUSHED_NS = 34  # when these counters were last written
    PID = 35  # of the worker
    INCARNATION = 36  # 0 for the first worker in a slot, 1 for its successor
    PLANNED_STARTS = 37  # the successors that followed a retired worker, not a dead one
    LAST_RESERVED = 39


class DeliveryCounter(IntEnum):
    """The consumer's counts, by their offset in words. Durations and times are in ns."""

    STARTED_NS = 0  # the beginning of the run's startup
    WALL_NS = 1  # from STARTED_NS until these words were written
    ITEMS = 2
    SAMPLES = 3
    FIRST_ITEM_NS = 4
    WAIT_NS = 5
    BUSY_NS = 6
    OUTSIDE_NS = 7
    FILES = 8  # files that sinks have written in this run


MAX_KEY_PARTS = 4
"""The parts of a key that fit the board."""


class ProcessState(IntEnum):
    """The state of a process."""

    STARTING = 0
    RUNNING = 1
    STOPPED = 2
    DORMANT = 3  # the slot has no process
    RETIRING = 4  # takes no more items, and ends when no process uses its memory


def is_present(state: int) -> bool:
    """Whether a process in this state takes items: its slot is not dormant, and it is not retiring."""
    return state < ProcessState.DORMANT


class StageCounter(IntEnum):
    """The counters of a stage in a process, by their offset in words."""

    ITEMS = 0
    SKIPPED = 1
    FAILED_ATTEMPTS = 2
    BUSY_NS = 3
    RETRIES = 4
    DEAD_LETTERS = 5
    PASSED_BY = 6  # items that `when` does not match
    REPEATED_NS = 7  # in failed attempts that were repeated; not in BUSY_NS
    LAST_RESERVED = 15


# ------------------------------------------------------------------ the region of a process

MAX_SLOW_ITEMS = 5
"""The number of slowest items that a stage keeps."""

_SLOW_ITEM_WORDS = 3
_LABEL_WORDS = 12
"""The size of a slow item's label: 96 bytes of UTF-8. A longer label keeps its end, which is the name of a file."""

STAGE_WORDS = int(StageCounter.LAST_RESERVED) + 1 + HISTOGRAM_WORDS + (_SLOW_ITEM_WORDS + _LABEL_WORDS) * MAX_SLOW_ITEMS
_QUEUE_WORD = RECEIVE_PHASES.index("queue_ns") * HISTOGRAM_WORDS
QUEUE_COUNT_WORDS = slice(_QUEUE_WORD, _QUEUE_WORD + BUCKET_COUNT)
"""Words of `ProcessRegion.receive_histogram_words`. Their sum is the number of received messages."""

QUEUE_SUM_WORD = _QUEUE_WORD + BUCKET_COUNT
"""The word with the total time that the received messages waited, in ns."""

_PROCESS_WORDS = int(ProcessCounter.LAST_RESERVED) + 1
_SLOT_WORDS = 2 + MAX_KEY_PARTS


def region_word_count(stage_count: int, slot_count: int = 0) -> int:
    """Return the number of words of a process with `stage_count` stages and `slot_count` threads that work on items."""
    return (
        _PROCESS_WORDS
        + stage_count * STAGE_WORDS
        + (len(SEND_PHASES) + len(RECEIVE_PHASES)) * HISTOGRAM_WORDS
        + 2 * LEDGER_WORDS
        + slot_count * _SLOT_WORDS
    )


AWAITING = 1
"""The value of a slot's time while no code works on its item, because the item waits for something outside."""


class ItemSlot:
    """The current item of one of several threads in a process."""

    def __init__(self, words: memoryview) -> None:
        """`words` has 1 + the item's number, 1 + each part (0 after the last), and the time at which the work began."""
        self._words = words

    @property
    def key(self) -> tuple[int, ...]:
        """The key of the thread's item, without parts deeper than `MAX_KEY_PARTS`; `()` for none."""
        numbers = self._words[:-1].tolist()
        return tuple(number - 1 for number in numbers if number) if numbers[0] else ()

    @key.setter
    def key(self, key: tuple[int, ...]) -> None:
        self._words[0] = 0  # while its parts change: a slot never names a wrong item
        for depth in range(1, MAX_KEY_PARTS + 1):
            self._words[depth] = key[depth] + 1 if depth < len(key) else 0
        if key:
            self._words[0] = key[0] + 1

    @property
    def running_since_ns(self) -> int:
        """The time at which the stage's code began on the item; AWAITING, or 0 while it waits for the process."""
        return self._words[-1]

    @running_since_ns.setter
    def running_since_ns(self, now_ns: int) -> None:
        self._words[-1] = now_ns


class ProcessRegion:
    """The region of a process on the board. Only its process writes; every process may read."""

    def __init__(
        self, words: memoryview, array: NDArray[np.uint64], base: int, stage_count: int, slot_count: int = 0
    ) -> None:
        """`words` and `array` are from the board; the region begins at word `base`. See `Board.region`."""
        self._words = words
        self._array = array
        self._base = base
        self._current_item_word = word = base + int(ProcessCounter.CURRENT_ITEM_PLUS_ONE)
        self.current_item_word = words[word : word + 1]
        """1 + the number of the current item, 0 for none, as a view of length 1."""
        self.stage_count = stage_count
        start = base + region_word_count(stage_count)
        ends = range(start + _SLOT_WORDS, start + slot_count * _SLOT_WORDS + 1, _SLOT_WORDS)
        self.slots = tuple(ItemSlot(words[end - _SLOT_WORDS : end]) for end in ends)
        """The slots of the threads that work on items; empty if the process works on one item at a time."""

    def __getitem__(self, counter: ProcessCounter) -> int:
        """Read a counter of the process."""
        return self._words[self._base + counter]

    def __setitem__(self, counter: ProcessCounter, value: int) -> None:
        """Write a counter; only the owning process does."""
        self._words[self._base + counter] = value

    def read_counters(self) -> tuple[int, ...]:
        """Return the current counters of the process, indexed by `ProcessCounter`."""
        return tuple(self._words[self._base : self._base + _PROCESS_WORDS])

    @property
    def has_worker(self) -> bool:
        """Whether the process takes items."""
        return is_present(self[ProcessCounter.PROCESS_STATE])

    def set_current_keys(self, keys: Sequence[tuple[int, ...]]) -> None:
        """Set the keys of items that are processed together."""
        self.set_current_key(keys[0])
        items = [key[0] for key in keys]
        self._words[self._base + ProcessCounter.CURRENT_ITEM_PLUS_ONE] = min(items) + 1
        if len(keys) > 1:
            self._words[self._base + ProcessCounter.LAST_CURRENT_ITEM_PLUS_ONE] = max(items) + 1

    def set_current_item(self, key: tuple[int, ...]) -> None:
        """Set the current key, ten times as fast as `set_current_key`. Each call needs a `clear_current_item`."""
        if len(key) == 1:
            self._words[self._current_item_word] = key[0] + 1
        else:
            self.set_current_key(key)

    def clear_current_item(self, key: tuple[int, ...]) -> None:
        """Undo `set_current_item`."""
        if len(key) == 1:
            self._words[self._current_item_word] = 0
        else:
            self.set_current_key(())

    @property
    def current_stage_word(self) -> memoryview:
        """The index of the current stage, as a view of length 1."""
        word = self._base + ProcessCounter.CURRENT_STAGE
        return self._words[word : word + 1]

    def set_current_key(self, key: tuple[int, ...]) -> None:
        """Set the key of the current item or part; `()` for none."""
        words = self._words
        base = self._base
        words[base + ProcessCounter.LAST_CURRENT_ITEM_PLUS_ONE] = words[base + ProcessCounter.CURRENT_STAGE] = 0
        words[base + ProcessCounter.CURRENT_ITEM_PLUS_ONE] = key[0] + 1 if key else 0
        if len(key) > 1 or words[base + ProcessCounter.CURRENT_PARTS_PLUS_ONE]:
            parts = (*key[1 : MAX_KEY_PARTS + 1], *(-1,) * MAX_KEY_PARTS)[:MAX_KEY_PARTS]
            for depth, part in enumerate(parts):
                words[base + ProcessCounter.CURRENT_PARTS_PLUS_ONE + depth] = part + 1

    @property
    def current_key(self) -> tuple[int, ...]:
        """The key from `set_current_key`, without parts deeper than `MAX_KEY_PARTS`."""
        words = self._words
        base = self._base
        parts = [words[base + ProcessCounter.CURRENT_PARTS_PLUS_ONE + depth] for depth in range(MAX_KEY_PARTS)]
        item = words[base + ProcessCounter.CURRENT_ITEM_PLUS_ONE]
        return (item - 1, *(part - 1 for part in parts if part)) if item else ()

    def stage_region(self, index: int) -> StageRegion:
        """Return the region of the process's stage `index`."""
        return StageRegion(self._array, self._words, self._base + _PROCESS_WORDS + index * STAGE_WORDS)

    @property
    def send_histogram_words(self) -> NDArray[np.uint64]:
        """The words of the histograms of SEND_PHASES, one after another."""
        start = self._base + _PROCESS_WORDS + self.stage_count * STAGE_WORDS
        return self._array[start : start + len(SEND_PHASES) * HISTOGRAM_WORDS]

    @property
    def receive_histogram_words(self) -> NDArray[np.uint64]:
        """The words of the histograms of RECEIVE_PHASES, one after another."""
        start = self._base + _PROCESS_WORDS + self.stage_count * STAGE_WORDS + len(SEND_PHASES) * HISTOGRAM_WORDS
        return self._array[start : start + len(RECEIVE_PHASES) * HISTOGRAM_WORDS]

    @property
    def send_ledger(self) -> CostLedger:
        """The cost of messages on the sending side, by transfer kind and size."""
        return self._ledger(0)

    @property
    def receive_ledger(self) -> CostLedger:
        """The cost of messages on the receiving side, by transfer kind and size."""
        return self._ledger(1)

    def _ledger(self, side: int) -> CostLedger:
        phase_words = (len(SEND_PHASES) + len(RECEIVE_PHASES)) * HISTOGRAM_WORDS
        start = self._base + _PROCESS_WORDS + self.stage_count * STAGE_WORDS + phase_words + side * LEDGER_WORDS
        return CostLedger(self._array[start : start + LEDGER_WORDS])

    def phase_histograms(self) -> dict[str, Histogram]:
        """Return the histograms of both sides, by phase."""
        names = SEND_PHASES + RECEIVE_PHASES
        rows = np.concatenate((self.send_histogram_words, self.receive_histogram_words)).reshape(
            len(names), HISTOGRAM_WORDS
        )
        return {name: Histogram.from_words(row) for name, row in zip(names, rows, strict=True)}


class SlowItemRow(NamedTuple):
    """One of a stage's slowest items: its number, its times in ns, and its label in errors, such as its path."""

    item: int
    run_ns: int
    queue_ns: int
    label: str = ""


class StageRegion:
    """The region of a stage within the region of its process."""

    def __init__(self, array: NDArray[np.uint64], words: memoryview, base: int) -> None:
        """See `ProcessRegion.stage_region`."""
        self._words = words
        self._base = base
        start = base + StageCounter.LAST_RESERVED + 1
        end = start + HISTOGRAM_WORDS
        self.run_histogram_words = array[start:end]
        labels = end + _SLOW_ITEM_WORDS * MAX_SLOW_ITEMS
        label_words = array[labels : labels + _LABEL_WORDS * MAX_SLOW_ITEMS]
        self._slow_labels = label_words.view(np.uint8).reshape(MAX_SLOW_ITEMS, 8 * _LABEL_WORDS)
        self.slow_items = array[end:labels].reshape(MAX_SLOW_ITEMS, _SLOW_ITEM_WORDS)
        """uint64 of shape (MAX_SLOW_ITEMS, 3): run time in ns, time in the queue in ns, 1 + item number."""

    def __getitem__(self, counter: StageCounter) -> int:
        """Read a counter of the stage."""
        return self._words[self._base + counter]

    def __setitem__(self, counter: StageCounter, value: int) -> None:
        """Write a counter; only the owning process does."""
        self._words[self._base + counter] = value

    def add_durations(self, durations_ns: list[int]) -> None:
        """Add run times to the stage's histogram. Negative times count as zero."""
        if durations_ns:
            add_durations(self.run_histogram_words, durations_ns)

    def read_counters(self) -> tuple[int, ...]:
        """Return the current counters of the stage, indexed by `StageCounter`."""
        return tuple(self._words[self._base : self._base + StageCounter.LAST_RESERVED + 1])

    def read_slow_items(self) -> tuple[SlowItemRow, ...]:
        """Return the slowest items so far."""
        rows = zip(self.slow_items.tolist(), self._slow_labels, strict=True)
        return tuple(
            SlowItemRow(item_plus_one - 1, run_ns, queue_ns, label.tobytes().rstrip(b"\0").decode(errors="replace"))
            for (run_ns, queue_ns, item_plus_one), label in rows
            if item_plus_one
        )

    def record_slow_item(self, item: int, run_ns: int, queue_ns: int, label: str = "") -> None:
        """Keep an item in `slow_items` if it is among the slowest."""
        fastest_row = int(np.argmin(self.slow_items[:, 0]))
        if run_ns > int(self.slow_items[fastest_row, 0]):
            self.slow_items[fastest_row] = (run_ns, queue_ns, item + 1)
            encoded = label.encode(errors="replace")
            if len(encoded) > 8 * _LABEL_WORDS:
                encoded = b"..." + encoded[3 - 8 * _LABEL_WORDS :]
            self._slow_labels[fastest_row] = np.frombuffer(encoded.ljust(8 * _LABEL_WORDS, b"\0"), np.uint8)


# ------------------------------------------------------------------ the board

LAYOUT_VERSION = 6
"""The version of this layout and of the counters' meaning. An attaching process reads only boards of its own version.

Raise it with each change of the layout: `tests/unit/runtime/attach/test_run.py` explains when.
"""
# The words of the run, written by the supervisor.
GENERATION_WORD = 0
"""The current generation."""
_STALE_BYTES_WORD = 1
"""The bytes of shared memory that older eras still use."""
_LAYOUT_VERSION_WORD = 2
"""The `LAYOUT_VERSION` of the process that made the board. It has this place in every version."""
_ENDED_WORD = 3
"""1 once the workers are asked to stop."""
_DELIVERY_WORD = 8
"""The first word of `DeliveryCounter`."""
_RUN_WORDS = _DELIVERY_WORD + len(DeliveryCounter)
_SEEK_WORDS = 128
"""The current seek: generation, length and checksum, bytes. A simple seek has less than 100 bytes."""
_SEEK_BYTES = 8 * (_SEEK_WORDS - 2)
# The words of a segment. Its order point writes the first two, its feeder the others.
_SEGMENT_WORDS = 8  # a cache line; its two writers share it, because both write rarely
_CONSUMED_WORD = 0
_EARLY_WORD = 1
_WAKE_COUNT_WORD = 4
_ITEM_BYTES_WORD = 5
_FITTING_ITEMS_WORD = 6
_BLOCKED_AT_NS_WORD = 7
_COUNT_BITS = 40
"""The bits of a progress word for the count. The bits above hold the generation."""


@dataclass(frozen=True)
class BoardLayout:
    """The counts that determine the layout: segments, stages in each process, hops, threads that work on items."""

    segment_count: int
    stages_per_process: tuple[int, ...]
    hop_count: int = 0
    slots_per_process: tuple[int, ...] = ()
    """For the first processes; the others have no slots."""

    def process_offset(self, process: int) -> int:
        """Return the offset of a process's region, in words."""
        counts = itertools.zip_longest(self.stages_per_process[:process], self.slots_per_process[:process], fillvalue=0)
        return self.rule_offset(self.hop_count) + sum(itertools.starmap(region_word_count, counts))

    def count_slots(self, process: int) -> int:
        """Return the number of a process's threads that work on items; 0 if its main thread does."""
        return self.slots_per_process[process] if process < len(self.slots_per_process) else 0

    def rule_offset(self, hop: int) -> int:
        """Return the offset of a hop's rule word, in words."""
        return _RUN_WORDS + _SEEK_WORDS + _SEGMENT_WORDS * self.segment_count + hop

    @property
    def word_count(self) -> int:
        """The number of words of the whole board."""
        return self.process_offset(len(self.stages_per_process))


class Board:
    """The board, mapped into one process."""

    def __init__(self, fd: int, layout: BoardLayout, *, is_writable: bool = True) -> None:
        """Map `fd`, a memfd from `make_board_fd`. Without `is_writable` a write raises TypeError or ValueError."""
        self.layout = layout
        access = mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ
        self._mmap = mmap.mmap(fd, layout.word_count * 8, access=access)
        self.words = memoryview(self._mmap).cast("Q")
        self.array: NDArray[np.uint64] = np.frombuffer(self._mmap, np.uint64)
        start = 8 * (_RUN_WORDS + 2)
        self._seek_bytes = memoryview(self._mmap)[start : start + _SEEK_BYTES]
        self._live_bytes_offsets = [
            layout.process_offset(process) + ProcessCounter.LIVE_BYTES
            for process in range(len(layout.stages_per_process))
        ]

    @property
    def generation(self) -> int:
        """The current generation. Only the supervisor writes it."""
        return self.words[GENERATION_WORD]

    @generation.setter
    def generation(self, value: int) -> None:
        self.words[GENERATION_WORD] = value

    def publish_seek(self, generation: int, data: bytes) -> bool:
        """Publish the seek of a generation before the generation begins; False if it is too long for the board."""
        words = self.words
        words[_RUN_WORDS] = 0  # readers ignore the seek while it is being written
        if len(data) > _SEEK_BYTES:
            return False
        self._seek_bytes[: len(data)] = data
        words[_RUN_WORDS + 1] = zlib.crc32(data, generation) << 32 | len(data)
        words[_RUN_WORDS] = generation
        return True

    def read_seek(self, generation: int) -> bytes | None:
        """Return the seek of a generation; None if it was not published, or has been overwritten."""
        words = self.words
        if words[_RUN_WORDS] != generation:
            return None
        checksum_and_length = words[_RUN_WORDS + 1]
        data = bytes(self._seek_bytes[: checksum_and_length & 0xFFFF])
        is_intact = zlib.crc32(data, generation) == checksum_and_length >> 32 and words[_RUN_WORDS] == generation
        return data if is_intact else None

    def live_bytes(self) -> int:
        """Return the bytes of shared memory in use in all arenas, including older eras."""
        words = self.words
        return sum([words[offset] for offset in self._live_bytes_offsets]) + words[_STALE_BYTES_WORD]

    @property
    def stale_bytes(self) -> int:
        """The bytes of shared memory that older eras still use. Only the supervisor writes it."""
        return self.words[_STALE_BYTES_WORD]

    @stale_bytes.setter
    def stale_bytes(self, nbytes: int) -> None:
        self.words[_STALE_BYTES_WORD] = nbytes

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended: its workers were asked to stop."""
        return bool(self.words[_ENDED_WORD])

    def publish_end(self) -> None:
        """Publish that the run has ended. Only the supervisor calls this."""
        self.words[_ENDED_WORD] = 1

    @property
    def delivery_words(self) -> memoryview:
        """The words of `DeliveryCounter`. Only the supervisor's thread writes them."""
        return self.words[_DELIVERY_WORD : _DELIVERY_WORD + len(DeliveryCounter)]

    def largest_block_bytes(self, processes: Sequence[int]) -> int:
        """Return the size in bytes of the largest block that any of `processes` has allocated."""
        words = self.words
        offsets = self._live_bytes_offsets
        return max(
            [
                words[offsets[process] - ProcessCounter.LIVE_BYTES + ProcessCounter.LARGEST_BLOCK_BYTES]
                for process in processes
            ]
        )

    def consumer_held_bytes(self) -> int:
        """Return the bytes of shared memory that the consumer's caller holds. The consumer is the last process."""
        return self.words[self._live_bytes_offsets[-1] - ProcessCounter.LIVE_BYTES + ProcessCounter.HELD_BYTES]

    def rule_word(self, hop: int) -> memoryview:
        """Return the rule of a hop (see `TransportRule.word`), as a view of length 1.

        Only the supervisor writes it.
        """
        offset = self.layout.rule_offset(hop)
        return self.words[offset : offset + 1]

    def read_consumed(self, segment: int, generation: int) -> int | None:
        """Return the number of items that a segment's order point consumed; None before it enters this generation."""
        return self._read_progress(segment, _CONSUMED_WORD, generation)

    def publish_consumed(self, segment: int, generation: int, count: int) -> None:
        """Publish the number of consumed items. Only the order point at the end of the segment calls this."""
        self.words[self._segment_offset(segment) + _CONSUMED_WORD] = generation << _COUNT_BITS | count

    def read_early(self, segment: int, generation: int) -> int | None:
        """Return the number of items that reached their order point before their turn; None as in `read_consumed`."""
        return self._read_progress(segment, _EARLY_WORD, generation)

    def publish_early(self, segment: int, generation: int, count: int) -> None:
        """Publish the number of items that arrived before their turn. Only the segment's order point calls this."""
        self.words[self._segment_offset(segment) + _EARLY_WORD] = generation << _COUNT_BITS | count

    def read_wake_count(self, segment: int, generation: int) -> int | None:
        """Return the consumed count at which a segment's feeder wants to be woken; None if it does not wait."""
        return self._read_progress(segment, _WAKE_COUNT_WORD, generation)

    def publish_wake_count(self, segment: int, generation: int, count: int | None) -> None:
        """Publish the consumed count that wakes the feeder; None if it no longer waits. Only the feeder calls this."""
        self.words[self._segment_offset(segment) + _WAKE_COUNT_WORD] = (
            0 if count is None else generation << _COUNT_BITS | count
        )

    def publish_admission_blocked(self, segment: int, now_ns: int) -> None:
        """Publish that an item had to wait for admission at `now_ns`. Only the feeder of the segment calls this."""
        self.words[self._segment_offset(segment) + _BLOCKED_AT_NS_WORD] = now_ns

    def last_admission_blocked_ns(self) -> int:
        """Return the last time at which an item had to wait for admission, in any segment, in ns; 0 if never."""
        return max(
            [
                self.words[self._segment_offset(segment) + _BLOCKED_AT_NS_WORD]
                for segment in range(self.layout.segment_count)
            ]
        )

    def publish_memory_pressure(self, segment: int, item_bytes: int, fitting_items: int) -> None:
        """Publish the number of items of `item_bytes` that fit `memory`, if below the window. Only the feeder does."""
        offset = self._segment_offset(segment)
        self.words[offset + _ITEM_BYTES_WORD] = item_bytes
        self.words[offset + _FITTING_ITEMS_WORD] = fitting_items

    def read_memory_pressure(self, segment: int) -> tuple[int, int] | None:
        """Return (bytes of an item, items that fitted) when `memory` last limited the window; None if it never did."""
        offset = self._segment_offset(segment)
        fitting_items = self.words[offset + _FITTING_ITEMS_WORD]
        return (self.words[offset + _ITEM_BYTES_WORD], fitting_items) if fitting_items else None

    def _segment_offset(self, segment: int) -> int:
        return _RUN_WORDS + _SEEK_WORDS + _SEGMENT_WORDS * segment

    def _read_progress(self, segment: int, word: int, generation: int) -> int | None:
        value = self.words[self._segment_offset(segment) + word]
        return value & ((1 << _COUNT_BITS) - 1) if value >> _COUNT_BITS == generation else None

    def region(self, process: int) -> ProcessRegion:
        """Return the region of a process."""
        return ProcessRegion(
            self.words,
            self.array,
            self.layout.process_offset(process),
            self.layout.stages_per_process[process],
            self.layout.count_slots(process),
        )


def make_board_fd(layout: BoardLayout) -> int:
    """Create a memfd for a board. All words are zero, except the version of the layout."""
    fd = os.memfd_create("stagepipe-board", os.MFD_CLOEXEC)
    os.ftruncate(fd, layout.word_count * 8)
    os.pwrite(fd, struct.pack("Q", LAYOUT_VERSION), 8 * _LAYOUT_VERSION_WORD)
    return fd


def read_layout_version(fd: int) -> int:
    """Return the `LAYOUT_VERSION` of the process that made the board `fd`; 0 if `fd` is not a board."""
    data = os.pread(fd, 8, 8 * _LAYOUT_VERSION_WORD)
    return int(struct.unpack("Q", data)[0]) if len(data) == 8 else 0  # noqa: PLR2004 - the bytes of a word
