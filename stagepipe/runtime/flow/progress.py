"""Publishes the progress of an order point, and wakes its feeder.

In the process that consumes a segment. The counterpart is `AdmissionController`, in the segment's feeder.
"""

from __future__ import annotations

from collections.abc import Callable

from stagepipe.timing import Board
from stagepipe.transport import WakeEvent


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
