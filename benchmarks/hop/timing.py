"""A burst: items received one after another in the steady state, and the cost of each. In the receiver's process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns

from benchmarks.common.usage import CpuClocks
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


def burst(
    receive: Callable[[], Item],
    touch: Callable[[Item], None] | None,
    clocks: CpuClocks,
    *,
    warm_up: int,
    budget_s: float,
) -> Burst:
    """Take `warm_up` items unmeasured, then measure items for `budget_s` seconds, at least two."""
    warm_up_begin = perf_counter_ns()
    first = last = _take(receive, touch, max(warm_up, 1))
    item_ns = (perf_counter_ns() - warm_up_begin) / max(warm_up, 1)
    chunk = max(1, int(budget_s * 1e9 / _CHUNKS / max(item_ns, 100)))
    cpu_before_ns, begin, items = clocks.read_ns(), perf_counter_ns(), 0
    while True:
        last = _take(receive, touch, chunk)
        items += chunk
        now = perf_counter_ns()
        if now - begin >= budget_s * 1e9 and items >= _MIN_ITEMS:
            break
    cpu_ns = clocks.read_ns() - cpu_before_ns
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
