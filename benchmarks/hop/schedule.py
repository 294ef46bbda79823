"""The rounds: size by size, with all contestants of a size side by side, each in bursts. In the receiver's process.

stagepipe stands behind the interface of a contestant, through its public API only. A burst is items received one after
another in the steady state, and the cost of each.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

from benchmarks.common.turn import Placement, order
from benchmarks.common.usage import CpuClocks, list_descendant_pids, list_tracker_pids
from benchmarks.hop.payload import Image, Item, check, make_image, spoiled, touch
from benchmarks.hop.peers import LoaderPeer, MemcpyPeer, Peer, PipePeer, QueuePeer
from benchmarks.hop.pipelines import CONFIGS, HEADER_ONLY, PipelinePeer
from benchmarks.hop.shared_memory import FasterFifoPeer, IceoryxPeer, ReusedSegmentPeer, SegmentPeer

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


CONTESTANTS: dict[str, Callable[[int], Peer]] = {
    **{name: partial(PipelinePeer, name) for name in CONFIGS if name != HEADER_ONLY},
    "memcpy": partial(MemcpyPeer, buffers=16),
    "memcpy to one": partial(MemcpyPeer, buffers=1),
    "Pipe": PipePeer,
    "Queue": QueuePeer,
    "faster-fifo": FasterFifoPeer,
    "faster-fifo lists": partial(FasterFifoPeer, lists=True),
    "SharedMemory": SegmentPeer,
    "SharedMemory reused": ReusedSegmentPeer,
    "iceoryx2": IceoryxPeer,
    "DataLoader NumPy": partial(LoaderPeer, tensors=False),
    "DataLoader torch": partial(LoaderPeer, tensors=True),
    HEADER_ONLY: partial(PipelinePeer, HEADER_ONLY),
}
_NEEDED = {"faster-fifo": "faster_fifo", "faster-fifo lists": "faster_fifo", "iceoryx2": "iceoryx2"}
MISSING = {name for name, package in _NEEDED.items() if importlib.util.find_spec(package) is None}
"""Contestants whose package is not installed: the table leaves them out and names them."""
BASE = "stagepipe copied"
"""The contestant that the others are compared with."""
_HUGE_BYTES = 32 << 20
_MAX_HUGE_ROUNDS = 6
"""Rounds for sizes at which an item can take a quarter of a second: still enough for an interval of 95 %."""
_CHECKED_ITEMS = 4


@dataclass
class Row:
    """A contestant at a size, with a value for each round. If `touched`, the receiver reads every byte."""

    contestant: str
    size: str
    nbytes: int
    touched: bool
    us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    items: int = 0


@dataclass(frozen=True)
class Settings:
    """The number of rounds, the seconds of a burst, and the contestant whose items are corrupted on purpose."""

    rounds: int
    budget_s: float
    corrupt: str = ""


@dataclass(frozen=True)
class _RunningPeer:
    peer: Peer
    clocks: CpuClocks


@contextmanager
def _start_all(names: list[str], nbytes: int, placement: Placement) -> Iterator[dict[str, _RunningPeer]]:
    started: dict[str, _RunningPeer] = {}
    with ExitStack() as stack:  # closes every peer, even if closing another one raises
        for name in names:
            before = list_descendant_pids()
            with placement.on_other_cpus():
                peer = CONTESTANTS[name](nbytes)
            stack.callback(peer.close)
            pids = (list_descendant_pids() - before) | list_tracker_pids()
            started[name] = _RunningPeer(peer, CpuClocks(pids))
        yield started


def _verify(peer: Peer, image: Image, skip: int, corrupt: str) -> None:
    """Take `skip` items, and check those before and after them. `corrupt` names whose items are corrupted first."""
    receive = spoiled(peer.receive) if peer.name == corrupt else peer.receive
    try:
        item = receive()
        first = int(item["id"])
        for number in range(first, first + _CHECKED_ITEMS):
            check(item, image, number, filled=peer.filled)
            del item
            item = receive()
        del item
        for _ in range(skip):
            peer.receive()
        check(receive(), image, first + _CHECKED_ITEMS + skip + 1, filled=peer.filled)
    except AssertionError as error:
        raise SystemExit(f"{peer.name}, {image.size} bytes: {error}") from error


def measure(
    size: str, nbytes: int, names: list[str], settings: Settings, placement: Placement
) -> tuple[list[Row], dict[str, Any]]:
    """Measure one size: its rows, and a summary of stagepipe's own reports, by contestant."""
    rows = {(name, touched): Row(name, size, nbytes, touched) for name in names for touched in (False, True)}
    image = make_image(nbytes)
    with _start_all(names, nbytes, placement) as started:
        for running in started.values():
            _verify(running.peer, image, 2 * running.peer.max_backlog, settings.corrupt)
        for round_number in range(min(settings.rounds, _MAX_HUGE_ROUNDS) if nbytes >= _HUGE_BYTES else settings.rounds):
            for name in order(names, round_number):
                running = started[name]
                for touched in (False, True) if round_number % 2 else (True, False):
                    _time_burst(running, rows[name, touched], settings.budget_s)
        for running in started.values():
            _verify(running.peer, image, 0, settings.corrupt)
        peers = [running.peer for running in started.values()]
    reports = {peer.name: _summarize(peer) for peer in peers if isinstance(peer, PipelinePeer)}
    return list(rows.values()), reports


def _time_burst(running: _RunningPeer, row: Row, budget_s: float) -> None:
    measured = burst(
        running.peer.receive,
        touch if row.touched else None,
        running.clocks,
        warm_up=running.peer.max_backlog,
        budget_s=budget_s,
    )
    row.us.append(measured.us)
    row.cpu_us.append(measured.cpu_us)
    row.items += measured.items


def _summarize(peer: PipelinePeer) -> dict[str, Any]:
    return {"hops": peer.hops, "timing_ns_per_hop": peer.timing_ns_per_hop}
