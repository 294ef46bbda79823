"""The measuring: the ways of a hop and the peers by turns, size by size, for as long as there is time."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from stagepipe.plan.bench.model import COLD, HOP, PEERS, SIZES, Bench, Point
from stagepipe.plan.bench.peers import Peer, make_bytes
from stagepipe.plan.calibration.measuring import FURTHER, curves_of, points_of
from stagepipe.plan.calibration.trip import Trip
from stagepipe.plan.learning import Seen
from stagepipe.plan.machine import host, this_machine
from stagepipe.timing import Way
from stagepipe.transport import FITS_BYTES

Tell = Callable[[float], None]
"""Is told which share of the time is over."""
_LEAST_TURNS = 2
_COLD_TURNS = 3
"""Each touches new memory, which the next one must not find."""
_PARTS = 32
"""What the largest message takes of memory, at most, times itself: copies of it lie in five processes."""
_LARGE_BYTES = 1 << 20
"""From here on messages go one at a time, so that few blocks are touched."""


@dataclass(frozen=True)
class Effort:
    """For how long it is measured, about, and up to which size."""

    seconds: float
    most_bytes: int


FULL, QUICK = Effort(18.0, SIZES[-1]), Effort(4.0, 16 << 20)
"""As a bench comes, and `--quick`; starting the processes is not in it."""


def measure(effort: Effort = FULL, tell: Tell | None = None) -> Bench:
    """Measure the ways of a hop and the peers beside each other, in turns of each at every size.

    RunError if a process cannot be started or does not answer, or if a byte arrives wrong.

    >>> measure(QUICK).crossover  # doctest: +SKIP
    'from 3.6 kB up shared memory is cheaper: at 4.1 kB it takes 30 us, the pipe 90 us'
    """
    begin, sizes = monotonic(), sizes_for(effort.most_bytes, this_machine().memory_bytes)
    load_average = os.getloadavg()[0]
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(name, sizes[-1])) for name in PEERS]
        trip = stack.enter_context(Trip())
        turns = _Turns(trip, peers, sizes)
        turns.warm()
        count = _until(effort.seconds, turns.take, tell or _nobody)
        trip.finish()
        there, back = trip.seen()
        besides_ns = trip.besides_ns
    many_bytes = turns.many_bytes
    curves = curves_of(there, back, many_bytes)
    points = {
        **hop_points(there, back, many_bytes, sizes, besides_ns),
        **{name: peer_points(costs) for name, costs in turns.costs.items()},
    }
    return Bench(points, curves, besides_ns, monotonic() - begin, count, _host(), load_average)


def sizes_for(most_bytes: int, memory_bytes: int) -> tuple[int, ...]:
    """The sizes up to the largest that is wanted and that this machine has memory for.

    >>> sizes_for(16 << 20, 64 << 20)[-1] >> 20
    1
    """
    most_bytes = min(most_bytes, memory_bytes // _PARTS)
    return tuple(size for size in SIZES if size <= max(most_bytes, _LARGE_BYTES))


def _until(seconds: float, take: Callable[[int], None], tell: Tell) -> int:
    """How many turns were taken: as many as fit, and two at least."""
    begin, longest, turns = monotonic(), 0.0, 0
    while turns < _LEAST_TURNS or monotonic() - begin + longest < seconds:
        started = monotonic()
        take(turns)
        turns += 1
        longest = max(longest, monotonic() - started)
        tell(min((monotonic() - begin) / seconds, 1.0))
    return turns


def _nobody(share: float) -> None:
    """Nobody listens."""


def _times(nbytes: int) -> int:
    """How many messages of a size there are of each in a turn: what is cheap is measured more often."""
    return 6 if nbytes <= 64 << 10 else 3 if nbytes <= _LARGE_BYTES else 1


@dataclass
class _Turns:
    """All that takes part, and what the peers' messages cost in ns."""

    trip: Trip
    peers: Sequence[Peer]
    sizes: Sequence[int]
    costs: dict[str, dict[int, list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        data = make_bytes(self.sizes[-1])
        self._items = {size: {"data": data[:size]} for size in self.sizes}
        self._many = {f"data{at}": np.full(FITS_BYTES + 64 * at, at, np.uint8) for at in range(FURTHER)}

    @property
    def many_bytes(self) -> int:
        """Of the item of several buffers."""
        return sum(array.nbytes for array in self._many.values())

    def warm(self) -> None:
        """Start the peers' processes for good, and forget what that cost."""
        for peer in self.peers:
            peer.measure(self.sizes[0], 3)

    def take(self, number: int) -> None:
        """A turn of all sizes, in every second turn the largest first."""
        for size in self.sizes if number % 2 else self.sizes[::-1]:
            self._hop(size, cold=number < _COLD_TURNS)
            for peer in self.peers:
                self.costs.setdefault(peer.name, {}).setdefault(size, []).extend(peer.measure(size, _times(size)))
        for _ in range(_times(0)):
            self.trip.send(Way.PIPE, self._many)
            self.trip.send(Way.COPIED, self._many)
        self.trip.drain()

    def _hop(self, size: int, *, cold: bool) -> None:
        trip, item = self.trip, self._items[size]
        for _ in range(_times(size)):
            trip.send(Way.PIPE, item)
            trip.send(Way.COPIED, item)
            trip.loan(size)
            if size > _LARGE_BYTES:
                trip.drain()
        if cold:
            trip.cold(size, item)
        trip.drain()


def hop_points(
    there: Sequence[Seen], back: Sequence[Seen], many_bytes: int, sizes: Sequence[int], besides_ns: int
) -> dict[str, tuple[Point, ...]]:
    """Of each way of a hop what was measured by size, `besides_ns` added. Messages are known by their order of size."""
    sides = {
        "pipe": points_of(there, Way.PIPE, many_bytes),
        "copied": points_of(there, Way.COPIED, many_bytes),
        "loaned": points_of(there, Way.ZERO_COPY, many_bytes),
        "passed on": points_of(back, Way.ZERO_COPY, many_bytes),
        COLD: points_of(there, Way.COLD, many_bytes),
    }
    return {
        name: tuple(
            Point(size, one.count, *(ns + besides_ns for ns in (one.low_ns, one.cost_ns, one.high_ns)))
            for size, one in zip(sizes, sides[name], strict=True)
        )
        for name in HOP
    }


def peer_points(costs: Mapping[int, Sequence[int]]) -> tuple[Point, ...]:
    """The medians and quartiles of a peer's costs in ns by size.

    >>> peer_points({64: [1, 2, 3, 4, 5]})
    (Point(nbytes=64, count=5, low_ns=2, ns=3, high_ns=4),)
    """
    quartiles = {
        size: [int(np.quantile(values, share)) for share in (0.25, 0.5, 0.75)] for size, values in costs.items()
    }
    return tuple(Point(size, len(costs[size]), *quartiles[size]) for size in sorted(quartiles))


def _host() -> dict[str, Any]:
    return {"cpu": _cpu(), **host(), "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}


def _cpu() -> str:
    """The processor's name, where the kernel tells it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "an unnamed processor"
