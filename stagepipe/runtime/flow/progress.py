"""Publishes the progress of an order point, wakes its feeder, and lets results gather while the feeder needs none.

In the process that consumes a segment. The counterpart is `AdmissionController`, in the segment's feeder.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from stagepipe.timing import Board
from stagepipe.transport import WakeEvent

_GATHERED_FRACTION: Final = 8
"""Results gather for an eighth of the items that are to be consumed before the feeder goes on, 8 with a window of 256.
So an item takes at most a thirty-second longer through a full segment."""
_MAX_PAUSE_NS: Final = 5_000_000
_MIN_PAUSE_NS: Final = 1_000_000
"""The resolution of poll(2). Results that come more quickly share packets anyway."""
_DECAY_PER_WAIT: Final = 0.9


class ProgressPublisher:
    """Publishes how many items an order point has consumed, and wakes a feeder that waits for them.

    It publishes every few items, and the order point calls `flush` before it waits itself. Publishing each item would
    cost 1 us an item.
    """

    def __init__(self, board: Board, segment: int, feeder_wake_event: WakeEvent) -> None:
        """`feeder_wake_event`: the one that the segment's feeder waits for."""
        self._board = board
        self._segment = segment
        self._feeder_wake_event = feeder_wake_event
        self._generation = 0
        self._consumed_items = 0
        self._published_items = 0
        self._published_early_items = 0
        self._count_early_items: Callable[[], int] = int
        self._last_notified_target = 0
        self._publish_interval_items = 1
        self._paused_wake_count = 0
        """The feeder's wake count when `_gathered_items` was chosen."""
        self._gathered_items = 0
        self._last_wait_ns = 0
        self._last_wait_items = 0
        self._recent_ns = 0.0
        """The time of the last waits, with a decay; `_recent_items` were consumed in it."""
        self._recent_items = 0.0

    def start_generation(
        self, generation: int, consumed_items: int, window: int, count_early_items: Callable[[], int]
    ) -> None:
        """Begin a generation in which all items below `consumed_items` are consumed already.

        `count_early_items` returns how many later ones have arrived.
        """
        self._generation = generation
        self._consumed_items = consumed_items
        self._count_early_items = count_early_items
        self._published_items = -1
        self._published_early_items = 0
        self._last_notified_target = 0
        self._publish_interval_items = max(window // 8, 1)
        self._paused_wake_count = 0
        self._last_wait_ns = perf_counter_ns()
        self._last_wait_items = consumed_items
        self._recent_ns = self._recent_items = 0.0
        self.flush()

    def publish(self, consumed_items: int) -> None:
        """All items below `consumed_items` are consumed."""
        self._consumed_items = consumed_items
        if consumed_items - self._published_items >= self._publish_interval_items:
            self.flush()

    def flush(self) -> None:
        """Publish the counts now, if they have changed."""
        consumed_items = self._consumed_items
        early_items = self._count_early_items()
        if early_items != self._published_early_items:  # before the consumed items, of which they may be some
            self._published_early_items = early_items
            self._board.publish_early(self._segment, self._generation, early_items)
        if consumed_items == self._published_items:
            return
        self._published_items = consumed_items
        self._board.publish_consumed(self._segment, self._generation, consumed_items)
        wake_count = self._board.read_wake_count(self._segment, self._generation)
        if wake_count is not None and consumed_items >= wake_count != self._last_notified_target:
            self._last_notified_target = wake_count
            self._feeder_wake_event.set()

    def choose_pause_s(self) -> float:
        """How long results may gather before the order point looks for them, in seconds. Call it before each wait.

        While the window is full, the workers are the bottleneck, and the feeder sleeps until a quarter of the window is
        consumed: nobody waits for the next result but the order point, which would wake up for each of them.
        """
        now_ns = perf_counter_ns()
        consumed_items = self._consumed_items
        self._recent_ns = self._recent_ns * _DECAY_PER_WAIT + now_ns - self._last_wait_ns
        self._recent_items = self._recent_items * _DECAY_PER_WAIT + consumed_items - self._last_wait_items
        self._last_wait_ns = now_ns
        self._last_wait_items = consumed_items
        wake_count = self._board.read_wake_count(self._segment, self._generation)
        if wake_count is None or wake_count <= consumed_items or not self._recent_items:
            return 0.0
        if wake_count != self._paused_wake_count:
            self._paused_wake_count = wake_count
            self._gathered_items = (wake_count - consumed_items) // _GATHERED_FRACTION
        interval_ns = self._recent_ns / self._recent_items
        pause_ns = min(self._gathered_items * interval_ns, _MAX_PAUSE_NS)
        return pause_ns / 1e9 if pause_ns >= max(2 * interval_ns, _MIN_PAUSE_NS) else 0.0
