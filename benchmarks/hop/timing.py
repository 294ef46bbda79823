"""A burst: items received one after another in the steady state, and the cost of each. In the receiver's process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns

import psutil

from benchmarks.hop.payload import Item

_CHUNKS = 8
"""How often a burst reads the clock, about."""
_MIN_ITEMS = 2


@dataclass(frozen=True)
class Burst:
    """The microseconds per item at the receiver, and the processor time per item of both sides together."""

    items: int
    us: float
    cpu_us: float


class Processes:
    """The processor time of this process and of a contestant's processes, in nanoseconds.

    clock_getcpuclockid(3) gives the clock of another process; Linux derives its number from the process id.
    """

    def __init__(self, pids: set[int]) -> None:
        """`pids` are those of the contestant's own processes."""
        self._clocks = [~pid << 3 | 2 for pid in pids]

    def cpu_ns(self) -> int:
        """Return the processor time of all threads together."""
        return process_time_ns() + sum(map(time.clock_gettime_ns, self._clocks))


def descendant_pids() -> set[int]:
    """Return the ids of all processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def resource_tracker_pids() -> set[int]:
    """Return the ids of Python's resource trackers, which work for every user of SharedMemory."""
    pids = set()
    for child in psutil.Process().children():
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if "resource_tracker" in line:
            pids.add(child.pid)
    return pids


def burst(
    receive: Callable[[], Item],
    touch: Callable[[Item], None] | None,
    processes: Processes,
    *,
    warm_up: int,
    budget_s: float,
) -> Burst:
    """Take `warm_up` items unmeasured, then measure items for `budget_s` seconds, at least two."""
    warm_up_begin = perf_counter_ns()
    first = last = _take(receive, touch, max(warm_up, 1))
    item_ns = (perf_counter_ns() - warm_up_begin) / max(warm_up, 1)
    chunk = max(1, int(budget_s * 1e9 / _CHUNKS / max(item_ns, 100)))
    cpu_before_ns, begin, items = processes.cpu_ns(), perf_counter_ns(), 0
    while True:
        last = _take(receive, touch, chunk)
        items += chunk
        now = perf_counter_ns()
        if now - begin >= budget_s * 1e9 and items >= _MIN_ITEMS:
            break
    cpu_ns = processes.cpu_ns() - cpu_before_ns
    assert last - first == items, f"took {items} items after item {first}, but the last one is item {last}"
    return Burst(items, (now - begin) / items / 1000, cpu_ns / items / 1000)


def _take(receive: Callable[[], Item], touch: Callable[[Item], None] | None, count: int) -> int:
    """Take `count` items and return the number of the last. Each is released before the next is requested."""
    if touch is None:
        for _ in range(count - 1):
            receive()
        item = receive()
    else:
        for _ in range(count - 1):
            touch(receive())
        item = receive()
        touch(item)
    return int(item["id"])
