"""What the consumer has delivered, and when: the figures of the report that the caller's process measures."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter_ns

from stagepipe.timing import DeliveryCounter

_MAX_DELIVERY_POINTS = 512
"""Points of the delivery curve that are kept; then every other one is dropped, and the stride doubles."""


@dataclass(frozen=True, kw_only=True)
class DeliverySnapshot:
    """The deliveries of a run at one moment. `points` are (ns since the start, samples delivered so far)."""

    started_ns: int
    wall_ns: int
    items: int
    samples: int
    first_item_ns: int
    first_wait_ns: int
    wait_ns: int
    busy_ns: int
    outside_ns: int
    files: int
    points: tuple[tuple[int, int], ...]


def read_deliveries(words: memoryview) -> DeliverySnapshot:
    """Return what `DeliveryStatistics.publish` last wrote; it writes neither the first wait nor the points."""
    return DeliverySnapshot(
        started_ns=words[DeliveryCounter.STARTED_NS],
        wall_ns=words[DeliveryCounter.WALL_NS],
        items=words[DeliveryCounter.ITEMS],
        samples=words[DeliveryCounter.SAMPLES],
        first_item_ns=words[DeliveryCounter.FIRST_ITEM_NS],
        first_wait_ns=0,
        wait_ns=words[DeliveryCounter.WAIT_NS],
        busy_ns=words[DeliveryCounter.BUSY_NS],
        outside_ns=words[DeliveryCounter.OUTSIDE_NS],
        files=words[DeliveryCounter.FILES],
        points=(),
    )


class DeliveryCurve:
    """The samples delivered over time, thinned to a bounded number of points, oldest first."""

    def __init__(self) -> None:
        self.points: list[tuple[int, int]] = []
        self.stride = 1
        """Every so many items give a point."""

    def add(self, elapsed_ns: int, samples: int) -> None:
        """Add a point. Call it for the first item, then for every `stride`-th."""
        self.points.append((elapsed_ns, samples))
        if len(self.points) >= _MAX_DELIVERY_POINTS:
            self.points = self.points[::2]
            self.stride *= 2


class OutsideClock:
    """The time outside any iteration since the first one: between epochs, and after the last."""

    def __init__(self) -> None:
        self._elapsed_ns = 0
        self._ended_at_ns = 0
        self._iteration = 0

    def begin_iteration(self) -> int:
        """An iteration begins. Returns its number for `end_iteration`."""
        self._elapsed_ns = self.read(perf_counter_ns())
        self._ended_at_ns = 0
        self._iteration += 1
        return self._iteration

    def end_iteration(self, iteration: int) -> None:
        """An iteration has ended. Ignored if the next one has begun already."""
        if iteration == self._iteration:
            self._ended_at_ns = perf_counter_ns()

    def read(self, now_ns: int) -> int:
        """Nanoseconds outside any iteration so far."""
        return self._elapsed_ns + (now_ns - self._ended_at_ns if self._ended_at_ns else 0)


class DeliveryStatistics:
    """Counts what is delivered, and times the consumer's waits and its caller's work. Times are in ns."""

    def __init__(self, started_ns: int | None = None) -> None:
        """The run started at `started_ns` (`perf_counter_ns`); None: it starts now."""
        self._started_ns = started_ns or perf_counter_ns()
        self._ended_ns = 0
        self.items = 0
        self._samples = 0
        self._first_item_ns = 0
        self._first_wait_ns = 0
        self.wait_ns = 0
        """Time in which the consumer waited for an item."""
        self.busy_ns = 0
        """Time in which the caller worked on an item."""
        self.files = 0
        """Files that sinks have written."""
        self._curve = DeliveryCurve()
        self.outside_clock = OutsideClock()

    def count_item(self, samples: int) -> None:
        """Count an item that is delivered now."""
        elapsed_ns = perf_counter_ns() - self._started_ns
        if not self.items:
            self._first_item_ns = elapsed_ns
            self._first_wait_ns = self.wait_ns
        self.items += 1
        self._samples += samples
        if not self.items % self._curve.stride or self.items == 1:
            self._curve.add(elapsed_ns, self._samples)

    def end(self) -> None:
        """The run ends now: its clocks stop."""
        self._ended_ns = perf_counter_ns()

    def publish(self, words: memoryview) -> None:
        """Write what was counted so far to the board's words of `DeliveryCounter`."""
        now_ns = self._ended_ns or perf_counter_ns()
        words[DeliveryCounter.STARTED_NS] = self._started_ns
        words[DeliveryCounter.WALL_NS] = now_ns - self._started_ns
        words[DeliveryCounter.ITEMS] = self.items
        words[DeliveryCounter.SAMPLES] = self._samples
        words[DeliveryCounter.FIRST_ITEM_NS] = self._first_item_ns
        words[DeliveryCounter.WAIT_NS] = self.wait_ns
        words[DeliveryCounter.BUSY_NS] = self.busy_ns
        words[DeliveryCounter.OUTSIDE_NS] = self.outside_clock.read(now_ns)
        words[DeliveryCounter.FILES] = self.files

    def take_snapshot(self) -> DeliverySnapshot:
        """Return what was counted so far."""
        now_ns = self._ended_ns or perf_counter_ns()
        return DeliverySnapshot(
            started_ns=self._started_ns,
            wall_ns=now_ns - self._started_ns,
            items=self.items,
            samples=self._samples,
            first_item_ns=self._first_item_ns,
            first_wait_ns=self._first_wait_ns,
            wait_ns=self.wait_ns,
            busy_ns=self.busy_ns,
            outside_ns=self.outside_clock.read(now_ns),
            files=self.files,
            points=tuple(self._curve.points),
        )
