"""The region of a process on the board, and the regions of its stages. Written by their process, read by all.

A region has the counters of the process (`ProcessCounter`); for each of its stages the counters (`StageCounter`), a
histogram of run times and the slowest items; then the histograms and the ledgers of its sending and receiving side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stagepipe.timing.counters import MAX_KEY_PARTS, RECEIVE_PHASES, SEND_PHASES, ProcessCounter, StageCounter
from stagepipe.timing.histogram import BUCKET_COUNT, HISTOGRAM_WORDS, Histogram, add_durations
from stagepipe.timing.ledger import LEDGER_WORDS, CostLedger

MAX_SLOW_ITEMS = 5
"""The number of slowest items that a stage keeps."""

_SLOW_ITEM_WORDS = 3
_LABEL_WORDS = 12
"""For the label of a slow item: 96 bytes of UTF-8. A longer one keeps its end, which is the name of a file."""

STAGE_WORDS = int(StageCounter.LAST_RESERVED) + 1 + HISTOGRAM_WORDS + (_SLOW_ITEM_WORDS + _LABEL_WORDS) * MAX_SLOW_ITEMS
_QUEUE_WORD = RECEIVE_PHASES.index("queue_ns") * HISTOGRAM_WORDS
QUEUE_COUNT_WORDS = slice(_QUEUE_WORD, _QUEUE_WORD + BUCKET_COUNT)
"""The words of `ProcessRegion.receive_histogram_words` that add up to the number of received messages."""

QUEUE_SUM_WORD = _QUEUE_WORD + BUCKET_COUNT
"""The word with the time that the received messages waited, in ns."""

_PROCESS_WORDS = int(ProcessCounter.LAST_RESERVED) + 1


def region_word_count(stage_count: int) -> int:
    """The number of words of a process with `stage_count` stages."""
    return (
        _PROCESS_WORDS
        + stage_count * STAGE_WORDS
        + (len(SEND_PHASES) + len(RECEIVE_PHASES)) * HISTOGRAM_WORDS
        + 2 * LEDGER_WORDS
    )


class ProcessRegion:
    """The region of a process on the board. Its process writes; every process may read."""

    def __init__(self, words: memoryview, array: NDArray[np.uint64], base: int, stage_count: int) -> None:
        """`words` and `array` are those of the board; the region begins at word `base`. See `Board.region`."""
        self._words = words
        self._array = array
        self._base = base
        self._current_item_word = base + int(ProcessCounter.CURRENT_ITEM_PLUS_ONE)
        self._current_stage_word = base + int(ProcessCounter.CURRENT_STAGE)
        self.stage_count = stage_count

    def __getitem__(self, counter: ProcessCounter) -> int:
        """Read a counter of the process."""
        return self._words[self._base + counter]

    def __setitem__(self, counter: ProcessCounter, value: int) -> None:
        """Write a counter; only the owning process does."""
        self._words[self._base + counter] = value

    def read_counters(self) -> tuple[int, ...]:
        """All counters of the process as they are now, indexed by `ProcessCounter`."""
        return tuple(self._words[self._base : self._base + _PROCESS_WORDS])

    def set_current_keys(self, keys: Sequence[tuple[int, ...]]) -> None:
        """Set the keys of the items that are being processed together."""
        self.set_current_key(keys[0])
        items = [key[0] for key in keys]
        self._words[self._base + ProcessCounter.CURRENT_ITEM_PLUS_ONE] = min(items) + 1
        if len(keys) > 1:
            self._words[self._base + ProcessCounter.LAST_CURRENT_ITEM_PLUS_ONE] = max(items) + 1

    def set_current_item(self, key: tuple[int, ...]) -> None:
        """`set_current_key` for one item after another, each followed by `clear_current_item`: ten times as fast."""
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

    def set_current_stage(self, index: int) -> None:
        """Set the index of the stage that is processing the item."""
        self._words[self._current_stage_word] = index

    def set_current_key(self, key: tuple[int, ...]) -> None:
        """Set the key of the item, or part of an item, that is being processed; `()` for none."""
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
        """The key that `set_current_key` set, without parts deeper than `MAX_KEY_PARTS`."""
        words = self._words
        base = self._base
        parts = [words[base + ProcessCounter.CURRENT_PARTS_PLUS_ONE + depth] for depth in range(MAX_KEY_PARTS)]
        item = words[base + ProcessCounter.CURRENT_ITEM_PLUS_ONE]
        return (item - 1, *(part - 1 for part in parts if part)) if item else ()

    def stage_region(self, index: int) -> StageRegion:
        """The region of the process's stage `index`."""
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
        """The histograms of both sides, by phase."""
        names = SEND_PHASES + RECEIVE_PHASES
        rows = np.concatenate((self.send_histogram_words, self.receive_histogram_words)).reshape(
            len(names), HISTOGRAM_WORDS
        )
        return {name: Histogram.from_words(row) for name, row in zip(names, rows, strict=True)}


class SlowItemRow(NamedTuple):
    """One of a stage's slowest items: its number, its times in ns, and what errors call it, such as its path."""

    item: int
    run_ns: int
    queue_ns: int
    label: str = ""


class StageRegion:
    """The region of a stage within that of its process."""

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
        """Add run times to the stage's histogram. Negative ones count as zero."""
        if durations_ns:
            add_durations(self.run_histogram_words, durations_ns)

    def read_counters(self) -> tuple[int, ...]:
        """All counters of the stage as they are now, indexed by `StageCounter`."""
        return tuple(self._words[self._base : self._base + StageCounter.LAST_RESERVED + 1])

    def read_slow_items(self) -> tuple[SlowItemRow, ...]:
        """The slowest items as they are now."""
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
