"""The board: counters in shared memory for all processes of a run. Every word has one writer, so it needs no lock.

Its layout, in 8-byte words:

    run          the generation, the shared memory of older eras, the version of the layout, the end of the run
    deliveries   what the consumer has delivered, as the supervisor's thread last saw it (`DeliveryCounter`)
    seek         the current seek message, with its generation and checksum
    segments     the progress and the admission state of each segment
    policies     the transfer policy of each hop, which the supervisor may change during the run
    processes    a region for each, see `process_region`

Progress words carry the generation in which they were written; a word of another generation is ignored. Words are
written through a cast memoryview, which makes a single aligned store (`struct.pack_into` writes zeros first).
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagepipe.timing.counters import DeliveryCounter, ProcessCounter
from stagepipe.timing.process_region import ProcessRegion, region_word_count

LAYOUT_VERSION = 3
"""The version of this layout and of what the counters mean. A process that attaches to a run reads its own alone.

Raise it with each change of the layout: `tests/unit/runtime/attach/test_layout_version.py` says when.
"""
# The words of the run, written by the supervisor.
GENERATION_WORD = 0
"""The current generation."""
_STALE_BYTES_WORD = 1
"""The bytes of shared memory that older eras still use."""
_LAYOUT_VERSION_WORD = 2
"""`LAYOUT_VERSION` of the process that made the board. It keeps this place in every version."""
_ENDED_WORD = 3
"""1 once the workers are asked to stop."""
_DELIVERY_WORD = 8
"""The first of the words of `DeliveryCounter`."""
_RUN_WORDS = _DELIVERY_WORD + len(DeliveryCounter)
_SEEK_WORDS = 128
"""The current seek: its generation, its length and checksum, its bytes. A simple seek has less than 100 bytes."""
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
"""The bits of a progress word that hold the count. The bits above hold the generation."""


@dataclass(frozen=True)
class BoardLayout:
    """The counts that determine the layout: segments, stages in each process, hops."""

    segment_count: int
    stages_per_process: tuple[int, ...]
    hop_count: int = 0

    def process_offset(self, process: int) -> int:
        """The offset of a process's region, in words."""
        return self.policy_offset(self.hop_count) + sum(map(region_word_count, self.stages_per_process[:process]))

    def policy_offset(self, hop: int) -> int:
        """The offset of a hop's policy word, in words."""
        return _RUN_WORDS + _SEEK_WORDS + _SEGMENT_WORDS * self.segment_count + hop

    @property
    def word_count(self) -> int:
        """The number of words of the whole board."""
        return self.process_offset(len(self.stages_per_process))


class Board:
    """The board, mapped into one process."""

    def __init__(self, fd: int, layout: BoardLayout, *, is_writable: bool = True) -> None:
        """Map `fd`, a memfd of `make_board_fd`. Without `is_writable` a write raises TypeError or ValueError."""
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
        """The seek of a generation; None if it was not published, or has been overwritten."""
        words = self.words
        if words[_RUN_WORDS] != generation:
            return None
        checksum_and_length = words[_RUN_WORDS + 1]
        data = bytes(self._seek_bytes[: checksum_and_length & 0xFFFF])
        is_intact = zlib.crc32(data, generation) == checksum_and_length >> 32 and words[_RUN_WORDS] == generation
        return data if is_intact else None

    def live_bytes(self) -> int:
        """The bytes of shared memory in use in all arenas, including those of older eras."""
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
        """The size in bytes of the largest block that any of `processes` has allocated."""
        words = self.words
        offsets = self._live_bytes_offsets
        return max(
            [
                words[offsets[process] - ProcessCounter.LIVE_BYTES + ProcessCounter.LARGEST_BLOCK_BYTES]
                for process in processes
            ]
        )

    def consumer_held_bytes(self) -> int:
        """The bytes of shared memory that the consumer's caller holds. The consumer is the last process."""
        return self.words[self._live_bytes_offsets[-1] - ProcessCounter.LIVE_BYTES + ProcessCounter.HELD_BYTES]

    def policy_word(self, hop: int) -> memoryview:
        """The policy word of a hop (see `transport.encode_policy_word`), as a view of length 1.

        Only the supervisor writes it.
        """
        offset = self.layout.policy_offset(hop)
        return self.words[offset : offset + 1]

    def read_consumed(self, segment: int, generation: int) -> int | None:
        """The items of a segment that its order point has consumed; None if it has not entered this generation."""
        return self._read_progress(segment, _CONSUMED_WORD, generation)

    def publish_consumed(self, segment: int, generation: int, count: int) -> None:
        """Publish how many items have been consumed. Only the order point at the end of the segment calls this."""
        self.words[self._segment_offset(segment) + _CONSUMED_WORD] = generation << _COUNT_BITS | count

    def read_early(self, segment: int, generation: int) -> int | None:
        """The items that have reached their order point before their turn; None as in `read_consumed`."""
        return self._read_progress(segment, _EARLY_WORD, generation)

    def publish_early(self, segment: int, generation: int, count: int) -> None:
        """Publish how many items have arrived before their turn. Only the order point of the segment calls this."""
        self.words[self._segment_offset(segment) + _EARLY_WORD] = generation << _COUNT_BITS | count

    def read_wake_count(self, segment: int, generation: int) -> int | None:
        """The consumed count at which the feeder of a segment waits to be woken; None if it does not wait."""
        return self._read_progress(segment, _WAKE_COUNT_WORD, generation)

    def publish_wake_count(self, segment: int, generation: int, count: int | None) -> None:
        """Publish the count to be woken at; None: no longer waiting. Only the feeder of the segment calls this."""
        self.words[self._segment_offset(segment) + _WAKE_COUNT_WORD] = (
            0 if count is None else generation << _COUNT_BITS | count
        )

    def publish_admission_blocked(self, segment: int, now_ns: int) -> None:
        """Publish that at `now_ns` an item had to wait for admission. Only the feeder of the segment calls this."""
        self.words[self._segment_offset(segment) + _BLOCKED_AT_NS_WORD] = now_ns

    def last_admission_blocked_ns(self) -> int:
        """When an item last had to wait for admission, in any segment, in ns; 0 if never."""
        return max(
            [
                self.words[self._segment_offset(segment) + _BLOCKED_AT_NS_WORD]
                for segment in range(self.layout.segment_count)
            ]
        )

    def publish_memory_pressure(self, segment: int, item_bytes: int, fitting_items: int) -> None:
        """Publish how many items of `item_bytes` fit `memory`, if less than the window. Only the feeder calls this."""
        offset = self._segment_offset(segment)
        self.words[offset + _ITEM_BYTES_WORD] = item_bytes
        self.words[offset + _FITTING_ITEMS_WORD] = fitting_items

    def read_memory_pressure(self, segment: int) -> tuple[int, int] | None:
        """(bytes of an item, items that fitted) when `memory` last held less than the window; None if it never did."""
        offset = self._segment_offset(segment)
        fitting_items = self.words[offset + _FITTING_ITEMS_WORD]
        return (self.words[offset + _ITEM_BYTES_WORD], fitting_items) if fitting_items else None

    def _segment_offset(self, segment: int) -> int:
        return _RUN_WORDS + _SEEK_WORDS + _SEGMENT_WORDS * segment

    def _read_progress(self, segment: int, word: int, generation: int) -> int | None:
        value = self.words[self._segment_offset(segment) + word]
        return value & ((1 << _COUNT_BITS) - 1) if value >> _COUNT_BITS == generation else None

    def region(self, process: int) -> ProcessRegion:
        """The region of a process."""
        return ProcessRegion(
            self.words, self.array, self.layout.process_offset(process), self.layout.stages_per_process[process]
        )


def make_board_fd(layout: BoardLayout) -> int:
    """Create a memfd for a board; all its words are zero, but for the version of the layout."""
    fd = os.memfd_create("stagepipe-board", os.MFD_CLOEXEC)
    os.ftruncate(fd, layout.word_count * 8)
    os.pwrite(fd, struct.pack("Q", LAYOUT_VERSION), 8 * _LAYOUT_VERSION_WORD)
    return fd


def read_layout_version(fd: int) -> int:
    """The `LAYOUT_VERSION` of the process that made the board `fd`; 0 if it is no board."""
    data = os.pread(fd, 8, 8 * _LAYOUT_VERSION_WORD)
    return int(struct.unpack("Q", data)[0]) if len(data) == 8 else 0  # noqa: PLR2004 - the bytes of a word
