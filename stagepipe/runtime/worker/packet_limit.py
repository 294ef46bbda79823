"""Limits how many small items share a packet, so that the workers behind a hop are evenly busy. In a worker's process.

A packet goes to one worker as a whole. With twenty slow items in each, one worker would be busy and the others idle.
"""

from __future__ import annotations

from typing import Final

from stagepipe.runtime.protocol import Seek
from stagepipe.timing import Board, StageCounter

_MAX_PACKET_WORK_NS: Final = 200_000
"""The work in a packet, of a reader that is one of several."""
_TRANSPORT_NS: Final = 5_000
"""What a reader spends on an item beside its stages."""
_MIN_MEASURED_ITEMS: Final = 8


class PacketLimit:
    """The limit for one outgoing hop, by the segment's window and by the readers' work as measured lately."""

    def __init__(self, board: Board, segment: int, reader_processes: tuple[int, ...]) -> None:
        """`segment`: that of the hop. `reader_processes`: the workers behind it; none if the consumer is."""
        self._segment = segment
        self._reader_count = len(reader_processes)
        regions = [board.region(process) for process in reader_processes]
        self._stage_regions = [
            [region.stage_region(index) for index in range(region.stage_count)] for region in regions
        ]
        self._window = 1
        self._items = 0
        self._busy_ns = 0
        self._item_ns: float | None = None

    def start_generation(self, seek: Seek) -> None:
        """Take the windows of a generation."""
        self._window = max(seek.windows[self._segment], seek.small_item_windows[self._segment])

    def compute_max_entries(self) -> int:
        """Return how many entries a packet may have, by the reader's counters on the board as they are now."""
        if self._reader_count <= 1:
            return max(self._window // 2, 1)
        self._measure_readers()
        if self._item_ns is None:
            return 1
        entries = min(self._window / (2 * self._reader_count), _MAX_PACKET_WORK_NS / (self._item_ns + _TRANSPORT_NS))
        return max(int(entries), 1)

    def _measure_readers(self) -> None:
        """Measure the readers' work for an item since the last time."""
        items = sum([regions[0][StageCounter.ITEMS] for regions in self._stage_regions])
        if items - self._items < _MIN_MEASURED_ITEMS:
            return
        busy_ns = sum([region[StageCounter.BUSY_NS] for regions in self._stage_regions for region in regions])
        self._item_ns = (busy_ns - self._busy_ns) / (items - self._items)
        self._items = items
        self._busy_ns = busy_ns
