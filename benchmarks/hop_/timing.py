"""A burst: items taken one after another in the steady state, and what each of them cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns

import psutil

from hop_.payload import Item

_CHUNKS = 8
"""How often a burst looks at the clock."""
_LEAST = 2


@dataclass(frozen=True)
class Burst:
    """What was measured: microseconds an item at the receiver, and of processor time of both sides together."""

    items: int
    us: float
    cpu_us: float


class Processes:
    """The processor time of this process and of a contestant's, to the nanosecond.

    The clock of another process is that of clock_getcpuclockid(3); Linux makes its number from the process id.
    """

    def __init__(self, pids: set[int]) -> None:
        """`pids` of the contestant's own processes."""
        self._clocks = [~pid << 3 | 2 for pid in pids]

    def cpu_ns(self) -> int:
        """Of all threads together."""
        return process_time_ns() + sum(map(time.clock_gettime_ns, self._clocks))


def descendants() -> set[int]:
    """The processes below this one."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def trackers() -> set[int]:
    """Python's resource tracker, which works for whoever uses SharedMemory."""
    found = set()
    for child in psutil.Process().children():
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if "resource_tracker" in line:
            found.add(child.pid)
    return found


def burst(
    receive: Callable[[], Item],
    touch: Callable[[Item], None] | None,
    processes: Processes,
    *,
    warm: int,
    budget_s: float,
) -> Burst:
    """Take `warm` items unmeasured, then items for `budget_s` seconds (two at least), and measure those."""
    warm_begin = perf_counter_ns()
    first = last = _take(receive, touch, max(warm, 1))
    each_ns = (perf_counter_ns() - warm_begin) / max(warm, 1)
    chunk = max(1, int(budget_s * 1e9 / _CHUNKS / max(each_ns, 100)))
    cpu, begin, items = processes.cpu_ns(), perf_counter_ns(), 0
    while True:
        last = _take(receive, touch, chunk)
        items += chunk
        now = perf_counter_ns()
        if now - begin >= budget_s * 1e9 and items >= _LEAST:
            break
    spent_cpu = processes.cpu_ns() - cpu
    assert last - first == items, f"{items} items were taken, and their numbers went from {first} to {last}"
    return Burst(items, (now - begin) / items / 1000, spent_cpu / items / 1000)


def _take(receive: Callable[[], Item], touch: Callable[[Item], None] | None, count: int) -> int:
    """The number of the last of `count` items. Each is let go before the next is asked for."""
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
