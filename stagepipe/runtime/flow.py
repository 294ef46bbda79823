"""Flow control between processes: the admission of items to a segment, and the leases on old shared memory.

Backpressure: the worker that feeds a segment admits items up to the consumed count of its order point plus the window
(`AdmissionController`). The process that consumes the segment publishes that count on the board (`ProgressPublisher`).
"""

from __future__ import annotations

import select
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns
from typing import NamedTuple

from stagepipe.timing import Board, TraceBuffer, TraceKind
from stagepipe.transport import LeaseExtent, PipeWaiter, SharedMemoryPool, WakeEvent

_WAIT_TICK_S = 0.005
"""The shortest tick of a wait that no event ends. The tick grows to a quarter of the time waited, because models may be
loading meanwhile."""
_FULL_WINDOW_TICK_S = 0.25
"""The tick of a wait that the order point ends. Each tick looks for free places, so with a short tick the feeder would
wake up for every item or two, whatever count it waits for."""
IN_FLIGHT_MEMORY_FRACTION = 0.8
"""The share of `memory` for items in flight; the rest is for items that grow on their way."""
SMALL_ITEM_BUDGET_BYTES = 16 << 20
"""With an automatic window, more small items are admitted while they take less than this in all: about the size of the
caches of current CPUs."""
_RELEASE_GRACE_NS = 100_000_000
"""The time after a seek in which other processes release the memory of the previous generation."""
_REFRESH_INTERVAL_ITEMS = 8
_MIN_WAITS_BEFORE_WARNING = 8
"""An item's size is known only after this many waits: during the first ones, consumed memory is not yet released."""
_OVERCOMMIT_FACTOR_BEFORE_WARNING = 2
"""A window that nearly fits gives no warning, because memory that is consumed but not yet released counts too."""
_SLOW_START_ITEMS = 4
_ITEM_BYTES_DECAY_PER_REFRESH = 0.98
"""The decay of the estimated item size: 50 refreshes leave 36 % of an old peak."""


class FedSegment(NamedTuple):
    """The segment that a worker feeds.

    `processes_by_stage` has the processes whose arenas hold its items, by stage. `memory_bytes` is the whole run's.
    """

    number: int
    processes_by_stage: tuple[tuple[int, ...], ...]
    memory_bytes: int


class AdmissionController:
    """Decides when a feeder may send the next item. Counts are items of the segment; bytes cover all arenas."""

    def __init__(
        self,
        board: Board,
        segment: FedSegment,
        wake_events: tuple[WakeEvent, WakeEvent],
        on_tick: Callable[[], None],
        trace: TraceBuffer | None = None,
    ) -> None:
        """Both `wake_events` end a wait: the segment's order point sets one, a seek or the end of the run the other.

        `on_tick` is called before and after each wait. `trace` records each wait.
        """
        self._board = board
        self._trace = trace
        self._segment = segment.number
        self._processes_by_stage = segment.processes_by_stage
        self._worker_count = max(map(len, segment.processes_by_stage))
        self._on_tick = on_tick
        self._limit_bytes = segment.memory_bytes * IN_FLIGHT_MEMORY_FRACTION
        self._waiter = PipeWaiter(None, select.EPOLLIN, *wake_events)
        self._generation = 0
        self.blocked_ns = 0
        self._window = 0
        self._small_item_window = 0
        self._slow_start_window = 0
        self._effective_window = 0
        self._admitted_below = 0
        """Items below this number were already admitted, together with an earlier one."""
        self._refresh_at_item = 0
        """From this item on, the known state of the segment is too old."""
        self._consumed_items = 0
        self._arrived_items = 0
        self._live_bytes = 0
        self._held_bytes = 0
        self._max_item_bytes = 0
        self._estimated_item_bytes = 0.0
        self._min_item_bytes = float("inf")
        self._memory_wait_count = 0
        self._release_deadline_ns = 0
        self.has_chunks = False
        """Whether several items were sent together."""
        self.known_item_bytes = 0
        """The bytes of an item, if the feeder knows them. Otherwise they are estimated from the memory in use, which
        later segments use too."""

    def start_generation(self, generation: int, first_item: int, window: int, small_item_window: int) -> None:
        """Begin a generation at `first_item`."""
        self._generation = generation
        self._admitted_below = 0
        self._refresh_at_item = 0
        self._consumed_items = first_item
        self._arrived_items = first_item
        self._window = window
        self._small_item_window = small_item_window
        self._live_bytes = int(self._limit_bytes) + 1
        self._release_deadline_ns = perf_counter_ns() + _RELEASE_GRACE_NS
        # Slow start: the size of an item is unknown until some have arrived, in this epoch or an earlier one.
        self._slow_start_window = min(max(_SLOW_START_ITEMS, self._slow_start_window), max(window, small_item_window))
        self._effective_window = self._slow_start_window

    def can_admit(self, item: int, count: int = 1) -> bool:
        """Whether `count` items from `item` on may enter now.

        An empty segment always admits one item; after a seek, with a short delay at most.
        """
        last = item + count - 1
        if (
            last - self._consumed_items >= self._effective_window
            or item >= self._refresh_at_item
            or self._live_bytes + _REFRESH_INTERVAL_ITEMS * self._estimated_item_bytes > self._limit_bytes
        ):
            self._refresh(item)
        return self._has_room(last)

    def _has_room(self, item: int) -> bool:
        """Whether `item` may enter, according to the last refresh."""
        in_flight_items = item - self._consumed_items
        if in_flight_items <= 0:
            return self._live_bytes <= self._limit_bytes or perf_counter_ns() > self._release_deadline_ns
        if in_flight_items >= self._effective_window:
            return False
        # Items in flight may not have allocated their memory yet, and a refresh between two items may have seen none. #
        # So count each item in flight with the estimated size, or with the largest size seen if that is more.
        item_bytes = max(self._estimated_item_bytes, self._max_item_bytes)
        return max(self._live_bytes, self._held_bytes + in_flight_items * item_bytes) + item_bytes <= self._limit_bytes

    def _refresh(self, item: int) -> None:
        self._refresh_at_item = item + _REFRESH_INTERVAL_ITEMS
        self._live_bytes = self._board.live_bytes()
        consumed_items = self._board.read_consumed(self._segment, self._generation)
        if consumed_items is not None and consumed_items > self._consumed_items:
            self._consumed_items = consumed_items
        if self._slow_start_window < self._small_item_window:
            self._widen_slow_start()
        self._held_bytes = self._board.consumer_held_bytes()
        self._max_item_bytes = self._compute_max_item_bytes()
        in_flight_items = max(item - self._consumed_items, 1)
        self._estimated_item_bytes = self.known_item_bytes or max(
            (self._live_bytes - self._held_bytes) / in_flight_items,
            self._estimated_item_bytes * _ITEM_BYTES_DECAY_PER_REFRESH,
        )
        small_items = int(SMALL_ITEM_BUDGET_BYTES / max(self._estimated_item_bytes, 1.0))
        self._effective_window = min(
            max(self._window, min(small_items, self._small_item_window)), self._slow_start_window
        )

    def _widen_slow_start(self) -> None:
        """Widen the window by the arrived items, in any order: a slow first item must not hold back the others."""
        arrived_items = self._consumed_items + (self._board.read_early(self._segment, self._generation) or 0)
        if arrived_items > self._arrived_items:
            self._slow_start_window = min(
                self._slow_start_window + 2 * (arrived_items - self._arrived_items), self._small_item_window
            )
            self._arrived_items = arrived_items

    def _compute_max_item_bytes(self) -> int:
        """Return the most bytes of an item: a block in a stage's arena, and its copy in the next stage's arena."""
        if self.has_chunks:  # items share blocks, so block sizes say nothing about item sizes
            return 0
        block_bytes = [self._board.largest_block_bytes(processes) for processes in self._processes_by_stage]
        return max(map(sum, pairwise(block_bytes)), default=block_bytes[0])

    def wait_until_admitted(self, item: int, is_interrupted: Callable[[], bool], count: int = 1) -> int:
        """Wait until `item` may enter. Returns how many items from it on may enter, up to `count`; 0 if interrupted.

        The returned items may enter without another call. `is_interrupted` ends the wait.
        """
        if item < self._admitted_below:
            return min(count, self._admitted_below - item)
        if not self.can_admit(item) and not self._wait(item, is_interrupted):
            return 0
        return self._widen(item, count)

    def wait_until_chunk_admitted(self, item: int, count: int, is_interrupted: Callable[[], bool]) -> int:
        """Wait as `wait_until_admitted` does, but for room for all `count` items, at most `max_chunk_items`.

        If memory has no room for all of them, an empty segment still admits one.
        """
        if self.can_admit(item, count):
            return count

        def is_over() -> bool:
            return is_interrupted() or item <= self._consumed_items

        if item > self._consumed_items and self._wait(item, is_over, count):
            return count
        return 0 if is_interrupted() else self.wait_until_admitted(item, is_interrupted)

    def _widen(self, item: int, count: int) -> int:
        """Return how many of `count` items may enter, according to the last refresh, given that the first may.

        Items before the next refresh also need no further check.
        """
        last = min(max(item + count, self._refresh_at_item) - 1, self._consumed_items + self._effective_window - 1)
        self._admitted_below = last + 1 if last > item and self._has_room(last) else item + 1
        return min(count, self._admitted_below - item)

    def _wait(self, item: int, is_interrupted: Callable[[], bool], count: int = 1) -> bool:
        """Wait until `count` items from `item` on may enter; False if `is_interrupted` ends the wait."""
        self._on_tick()
        started_ns = perf_counter_ns()
        try:
            return self._wait_for_space(item, is_interrupted, count)
        finally:
            ended_ns = perf_counter_ns()
            self.blocked_ns += ended_ns - started_ns
            if self._trace is not None:
                self._trace.add(TraceKind.WAIT_FOR_ADMISSION, started_ns, ended_ns, (item,))

    @property
    def max_chunk_items(self) -> int:
        """The items that may be admitted together: at most a quarter of the window, and of the memory."""
        item_bytes = max(self._estimated_item_bytes, 1.0)
        return max(min(self._effective_window // 4, int(self._limit_bytes / 4 / item_bytes)), 1)

    def _wait_for_space(self, item: int, is_interrupted: Callable[[], bool], count: int) -> bool:
        last = item + count - 1
        started_ns = perf_counter_ns()
        while not is_interrupted():
            self._board.publish_admission_blocked(self._segment, perf_counter_ns())
            # Waking when a quarter of the window is free saves wake-ups; the items in flight keep the order point busy
            # meanwhile.
            wake_count = last - self._effective_window + max(self._effective_window // 4, 1)
            self._board.publish_wake_count(self._segment, self._generation, max(wake_count, self._consumed_items + 1))
            self._refresh(item)
            if not self._has_room(last):
                self._publish_memory_pressure(item - self._consumed_items)
                self._waiter.wait(self._choose_tick_s(last, (perf_counter_ns() - started_ns) / 1e9))
                self._on_tick()
                self._refresh(item)
            if self._has_room(last):
                self._board.publish_wake_count(self._segment, self._generation, None)
                return True
        return False

    def _choose_tick_s(self, item: int, waited_s: float) -> float:
        """Choose a long tick if the window is full: the order point ends that wait, and the workers have enough items.

        They do if each has two while a quarter of the window is consumed. No event ends a wait for the release of
        memory, or for items that arrive early in a slow start. If half of the memory is in use, other feeders may wait
        for blocks that this process gets back at each tick.
        """
        is_started = self._slow_start_window >= min(2 * self._window, self._small_item_window)
        is_window_full = item - self._consumed_items >= self._effective_window >= 8 * self._worker_count // 3
        is_memory_free = self._live_bytes <= self._limit_bytes / 2
        if is_started and is_window_full and is_memory_free:
            return _FULL_WINDOW_TICK_S
        return min(max(waited_s / 4, _WAIT_TICK_S), _FULL_WINDOW_TICK_S)

    def _publish_memory_pressure(self, in_flight_items: int) -> None:
        """Publish that memory, not the window, limits the items. The supervisor's monitor logs the warning."""
        if not 0 < in_flight_items < min(self._effective_window, self._window):
            return
        item_bytes = max((self._live_bytes - self._held_bytes) / in_flight_items, self._max_item_bytes)
        self._min_item_bytes = min(self._min_item_bytes, item_bytes)
        self._memory_wait_count += 1
        if (
            self._memory_wait_count >= _MIN_WAITS_BEFORE_WARNING
            and self._window * self._min_item_bytes > _OVERCOMMIT_FACTOR_BEFORE_WARNING * self._limit_bytes
        ):
            fitting_items = max(int(self._limit_bytes / self._min_item_bytes), 1)
            self._board.publish_memory_pressure(self._segment, int(self._min_item_bytes), fitting_items)


class ProgressPublisher:
    """Publishes the number of items that an order point consumed, and wakes a feeder that waits for it.

    It publishes every few items, and the order point calls `flush` before it waits itself. Publishing each item would
    cost 1 us an item.
    """

    def __init__(self, board: Board, segment: int, feeder_wake_event: WakeEvent) -> None:
        """The segment's feeder waits for `feeder_wake_event`."""
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
        """Begin a generation in which all items below `consumed_items` are already consumed.

        `count_early_items` returns the number of later items that have arrived.
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
        """Record that all items below `consumed_items` are consumed, and publish it if enough are new."""
        self._consumed_items = consumed_items
        if consumed_items - self._published_items >= self._publish_interval_items:
            self.flush()

    def flush(self) -> None:
        """Publish the counts now, if they have changed."""
        consumed_items = self._consumed_items
        early_items = self._count_early_items()
        if early_items != self._published_early_items:  # before the consumed count, which may include them
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


MAX_HELD_FRACTION = 1 / 3
"""The share of the run's memory that one process may hold. The rest is for the pipeline."""
EXPECTED_LEASES = 4
"""Leases that any process holds: the current item, and the last few that are not released yet."""
_MANY_LEASES = 64
"""From this number of leases on, held bytes are summed up only every `_CHECK_INTERVAL_ITEMS` items."""
_CHECK_INTERVAL_ITEMS = 4


class HeldMemoryLimit:
    """Tracks the bytes of all blocks that a process leases."""

    def __init__(
        self, memory: SharedMemoryPool, limit_bytes: float, on_held_bytes: Callable[[int], object] | None = None
    ) -> None:
        """`on_held_bytes` is called with the bytes that the process holds, whenever they were summed up."""
        self._memory = memory
        self._limit_bytes = limit_bytes
        self._on_held_bytes = on_held_bytes
        self.held_bytes = 0
        self._checks = 0

    def measure(self) -> bool:
        """Sum up the held bytes, which takes time for each lease. Returns whether they exceed the limit."""
        return self._update(self._memory.held_bytes())

    def check(self) -> bool:
        """Whether the limit is exceeded. Cheap: sums up only if there are leases, and less often if there are many."""
        lease_count = self._memory.lease_count
        self._checks += 1
        if lease_count <= EXPECTED_LEASES:
            return self._update(0)
        if lease_count < _MANY_LEASES or not self._checks % _CHECK_INTERVAL_ITEMS:
            return self.measure()
        return self.held_bytes > self._limit_bytes

    def _update(self, held_bytes: int) -> bool:
        self.held_bytes = held_bytes
        if self._on_held_bytes is not None:
            self._on_held_bytes(held_bytes)
        return held_bytes > self._limit_bytes


StaleLeaseCallback = Callable[[int, list[LeaseExtent]], None]
"""Receives the entered era and the leases on blocks of older eras."""


class StaleLeaseReporter:
    """Enters eras, and reports the leases on older blocks until none is left."""

    def __init__(self, memory: SharedMemoryPool, era: int, callback: StaleLeaseCallback) -> None:
        """`era` is the current era of `memory`."""
        self._memory = memory
        self._callback = callback
        self.era = era
        self._reported_count = 0

    def enter_era(self, era: int) -> bool:
        """Take new blocks from the range of `era`. Returns False if `memory` is in it already."""
        if era == self.era:
            return False
        self.era = era
        self._reported_count = -1  # every era gets a report, even with as many leases as the one before
        self._memory.begin_era(era)
        return True

    def report(self) -> None:
        """Report the leases on older blocks, if their number changed or is 0."""
        leases = self._memory.stale_leases()
        if len(leases) != self._reported_count or not leases:
            self._reported_count = len(leases)
            self._callback(self.era, leases)

    def report_if_any(self) -> None:
        """Report while leases are left. Costs almost nothing when none are."""
        if self._reported_count:
            self.report()
