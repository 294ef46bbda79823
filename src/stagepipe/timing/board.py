"""The board: one shared page of counters for all processes of a run. Every word has one writer, so there is no lock.

Layout, in 8-byte words: the run's own words and the seek in force, then a region for each process: its words
(`Word`), then for each of its stages the words of `StageWord`, a histogram of run times and the slowest items, then
the histograms and the ledgers of its sending and of its receiving side. The run's own words end with the rule of each
hop, which the supervisor may change while it runs. Progress words carry the generation in which they were written;
one of an older generation is not read. Words are stored through a cast memoryview, which is a single aligned store
(`struct.pack_into` writes zeros first).
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stagepipe.timing.histogram import WORDS, Histogram
from stagepipe.timing.ledger import LEDGER_WORDS, Ledger
from stagepipe.timing.words import MOST_PARTS, RECEIVE_PHASES, SEND_PHASES, StageWord, Word

GENERATION, _PAST_BYTES = 0, 1
"""Run words, which the supervisor writes: the generation in force; shared memory that older eras still take."""
_RUN_WORDS = 8
_SEEK_WORDS = 128
"""For the seek in force: its generation, its length and check, its bytes. A plain one has less than a hundred."""
_SEEK_BYTES = 8 * (_SEEK_WORDS - 2)
_STRETCH_WORDS = 8  # a cache line for each stretch, though it has two writers: they write rarely
_CONSUMED, _AWAITED, _ITEM_BYTES, _FITTING, _HELD_UP_NS = 0, 4, 5, 6, 7
_COUNT_BITS = 40
SLOWEST = 5


STAGE_WORDS = int(StageWord.LAST) + 1 + WORDS + 3 * SLOWEST
_HEAD = int(Word.LAST) + 1


@dataclass(frozen=True)
class Layout:
    """How many stretches there are, how many stages each process holds, and how many hops there are."""

    stretches: int
    stages: tuple[int, ...]
    hops: int = 0

    def offset(self, process: int) -> int:
        """The first word of a process's region."""
        return self.rule(self.hops) + sum(map(_region, self.stages[:process]))

    def rule(self, hop: int) -> int:
        """The word of a hop's rule."""
        return _RUN_WORDS + _SEEK_WORDS + _STRETCH_WORDS * self.stretches + hop

    @property
    def words(self) -> int:
        """The words of the whole board."""
        return self.offset(len(self.stages))


def _region(stages: int) -> int:
    return _HEAD + stages * STAGE_WORDS + (len(SEND_PHASES) + len(RECEIVE_PHASES)) * WORDS + 2 * LEDGER_WORDS


class Board:
    """The board as one process sees it."""

    def __init__(self, fd: int, layout: Layout) -> None:
        """Map the memfd `fd` that `make_board` made."""
        self.layout = layout
        self._map = mmap.mmap(fd, layout.words * 8)
        self.words = memoryview(self._map).cast("Q")
        self.array: NDArray[np.uint64] = np.frombuffer(self._map, np.uint64)
        begin = 8 * (_RUN_WORDS + 2)
        self._seek_bytes = memoryview(self._map)[begin : begin + _SEEK_BYTES]
        self._live = [layout.offset(p) + Word.LIVE_BYTES for p in range(len(layout.stages))]

    @property
    def generation(self) -> int:
        """The generation in force."""
        return self.words[GENERATION]

    @generation.setter
    def generation(self, value: int) -> None:
        self.words[GENERATION] = value

    def publish_seek(self, generation: int, data: bytes) -> bool:
        """Leave the seek of a generation for all to read, before it is in force; False if it is too long for that."""
        words = self.words
        words[_RUN_WORDS] = 0  # what is read from here on is not whole
        if len(data) > _SEEK_BYTES:
            return False
        self._seek_bytes[: len(data)] = data
        words[_RUN_WORDS + 1] = zlib.crc32(data, generation) << 32 | len(data)
        words[_RUN_WORDS] = generation
        return True

    def seek(self, generation: int) -> bytes | None:
        """The seek of a generation; None if it is not here, or not here any more."""
        words = self.words
        if words[_RUN_WORDS] != generation:
            return None
        about = words[_RUN_WORDS + 1]
        data = bytes(self._seek_bytes[: about & 0xFFFF])
        return data if zlib.crc32(data, generation) == about >> 32 and words[_RUN_WORDS] == generation else None

    def live_bytes(self) -> int:
        """Shared memory in use in all arenas, of this era and those before it."""
        words = self.words
        return sum([words[at] for at in self._live]) + words[_PAST_BYTES]

    @property
    def past_bytes(self) -> int:
        """What older eras still take. Only the supervisor writes it."""
        return self.words[_PAST_BYTES]

    @past_bytes.setter
    def past_bytes(self, nbytes: int) -> None:
        self.words[_PAST_BYTES] = nbytes

    def largest_bytes(self, processes: Sequence[int]) -> int:
        """The largest block that any of these processes has taken."""
        words, live = self.words, self._live
        return max([words[live[process] - Word.LIVE_BYTES + Word.LARGEST_BYTES] for process in processes])

    def held_bytes(self) -> int:
        """Shared memory that the consumer's caller keeps. The consumer is the last process."""
        return self.words[self._live[-1] - Word.LIVE_BYTES + Word.HELD_BYTES]

    def rule(self, hop: int) -> memoryview:
        """The one word of a hop's rule (see `transport.rule_word`). Only the supervisor writes it."""
        at = self.layout.rule(hop)
        return self.words[at : at + 1]

    def consumed(self, stretch: int, generation: int) -> int | None:
        """How many items of a stretch its order point has consumed; None if it has not entered this generation."""
        return self._progress(stretch, _CONSUMED, generation)

    def publish_consumed(self, stretch: int, generation: int, count: int) -> None:
        """Only the order point at the stretch's end calls this."""
        self.words[self._stretch(stretch) + _CONSUMED] = generation << _COUNT_BITS | count

    def awaited(self, stretch: int, generation: int) -> int | None:
        """The count at which the feeder of a stretch wants to be woken; None while it does not wait."""
        return self._progress(stretch, _AWAITED, generation)

    def publish_awaited(self, stretch: int, generation: int, count: int | None) -> None:
        """Only the feeder of the stretch calls this; None: it does not wait any more."""
        self.words[self._stretch(stretch) + _AWAITED] = 0 if count is None else generation << _COUNT_BITS | count

    def publish_held_up(self, stretch: int, now: int) -> None:
        """Only the feeder of the stretch calls this: at `now`, in ns, it has an item for which there is no room."""
        self.words[self._stretch(stretch) + _HELD_UP_NS] = now

    def held_up_ns(self) -> int:
        """When a feeder last had no room; 0: never."""
        return max([self.words[self._stretch(number) + _HELD_UP_NS] for number in range(self.layout.stretches)])

    def publish_crowded(self, stretch: int, item_bytes: int, fitting: int) -> None:
        """Only the feeder of the stretch calls this: an item takes so much, and no more of them fit `memory`."""
        at = self._stretch(stretch)
        self.words[at + _ITEM_BYTES] = item_bytes
        self.words[at + _FITTING] = fitting

    def crowded(self, stretch: int) -> tuple[int, int] | None:
        """What an item took, and how many fitted, when `memory` last held less than the window; None: it always did."""
        at = self._stretch(stretch)
        fitting = self.words[at + _FITTING]
        return (self.words[at + _ITEM_BYTES], fitting) if fitting else None

    def _stretch(self, stretch: int) -> int:
        return _RUN_WORDS + _SEEK_WORDS + _STRETCH_WORDS * stretch

    def _progress(self, stretch: int, word: int, generation: int) -> int | None:
        value = self.words[self._stretch(stretch) + word]
        return value & ((1 << _COUNT_BITS) - 1) if value >> _COUNT_BITS == generation else None

    def region(self, process: int) -> Region:
        """A process's part."""
        return Region(self, process)


class Region:
    """A process's part of the board, to write (its process) or to read (anybody)."""

    def __init__(self, board: Board, process: int) -> None:
        """See `Board.region`."""
        self._base = board.layout.offset(process)
        self._words, self._array = board.words, board.array
        self.stages = board.layout.stages[process]

    def __getitem__(self, word: Word) -> int:
        """A word of the process."""
        return self._words[self._base + word]

    def __setitem__(self, word: Word, value: int) -> None:
        """Write a word; only the owner does."""
        self._words[self._base + word] = value

    def at_many(self, keys: Sequence[tuple[int, ...]]) -> None:
        """Say which items are worked on at once from here on."""
        self.at(keys[0])
        items = [key[0] for key in keys]
        self._words[self._base + Word.AT_ITEM] = min(items) + 1
        if len(keys) > 1:
            self._words[self._base + Word.AT_LAST] = max(items) + 1

    def at(self, key: tuple[int, ...]) -> None:
        """Say which item, or part of one, is worked on from here on; `()` for none."""
        words, base = self._words, self._base
        words[base + Word.AT_LAST] = words[base + Word.AT_STAGE] = 0
        words[base + Word.AT_ITEM] = key[0] + 1 if key else 0
        if len(key) > 1 or words[base + Word.AT_PART]:
            parts = (*key[1 : MOST_PARTS + 1], *(-1,) * MOST_PARTS)[:MOST_PARTS]
            for number, part in enumerate(parts):
                words[base + Word.AT_PART + number] = part + 1

    @property
    def key(self) -> tuple[int, ...]:
        """What was said with `at`; of a deeper key, the part that there is room for."""
        words, base = self._words, self._base
        parts = [words[base + Word.AT_PART + number] for number in range(MOST_PARTS)]
        item = words[base + Word.AT_ITEM]
        return (item - 1, *(part - 1 for part in parts if part)) if item else ()

    def stage(self, number: int) -> StageRegion:
        """The part of the process's stage `number`."""
        return StageRegion(self._array, self._words, self._base + _HEAD + number * STAGE_WORDS)

    @property
    def sending(self) -> NDArray[np.uint64]:
        """The words of the histograms of SEND_PHASES."""
        at = self._base + _HEAD + self.stages * STAGE_WORDS
        return self._array[at : at + len(SEND_PHASES) * WORDS]

    @property
    def receiving(self) -> NDArray[np.uint64]:
        """The words of the histograms of RECEIVE_PHASES."""
        at = self._base + _HEAD + self.stages * STAGE_WORDS + len(SEND_PHASES) * WORDS
        return self._array[at : at + len(RECEIVE_PHASES) * WORDS]

    @property
    def sending_ledger(self) -> Ledger:
        """What carrying cost on the sending side, by way and size."""
        return self._ledger(0)

    @property
    def receiving_ledger(self) -> Ledger:
        """The same of the receiving side."""
        return self._ledger(1)

    def _ledger(self, side: int) -> Ledger:
        phases = (len(SEND_PHASES) + len(RECEIVE_PHASES)) * WORDS
        at = self._base + _HEAD + self.stages * STAGE_WORDS + phases + side * LEDGER_WORDS
        return Ledger(self._array[at : at + LEDGER_WORDS])

    def phases(self) -> dict[str, Histogram]:
        """All histograms of both sides by the name of their phase."""
        names = SEND_PHASES + RECEIVE_PHASES
        rows = np.concatenate((self.sending, self.receiving)).reshape(len(names), WORDS)
        return {name: Histogram.from_words(row) for name, row in zip(names, rows, strict=True)}


class StageRegion:
    """A stage's part of its process's region."""

    def __init__(self, array: NDArray[np.uint64], words: memoryview, base: int) -> None:
        """See `Region.stage`."""
        self._words, self._base = words, base
        at = base + StageWord.LAST + 1
        self.run = array[at : at + WORDS]
        self.slow = array[at + WORDS : at + WORDS + 3 * SLOWEST].reshape(SLOWEST, 3)

    def __getitem__(self, word: StageWord) -> int:
        """A word of the stage."""
        return self._words[self._base + word]

    def __setitem__(self, word: StageWord, value: int) -> None:
        """Write a word; only the owner does."""
        self._words[self._base + word] = value

    def note_slow(self, item: int, run_ns: int, queue_ns: int) -> None:
        """Keep an item if it is among the slowest; columns of `slow`: run ns, queue ns, 1 + item number."""
        at = int(self.slow[:, 0].argmin())
        if run_ns > int(self.slow[at, 0]):
            self.slow[at] = (run_ns, queue_ns, item + 1)


def make_board(layout: Layout) -> int:
    """A memfd for a board, all zeros."""
    fd = os.memfd_create("stagepipe-board", os.MFD_CLOEXEC)
    os.ftruncate(fd, layout.words * 8)
    return fd
