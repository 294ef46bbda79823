"""What a bench found: what a message costs by mechanism and size, and where shared memory becomes cheaper. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from stagepipe.core import UsageError
from stagepipe.core.units import format_bytes, format_ns
from stagepipe.plan.curves import Curves

SIZES = (64, 512, 1 << 10, 3 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
"""Bytes of the array in a message. With its head no two have as many binary digits: so the ledger keeps them apart."""
PIPE, COPIED, COLD = "pipe", "copied", "cold"
HOP = (PIPE, COPIED, "loaned", "passed on", COLD)
"""The ways that a hop can carry a message, as `Curves` has them."""
PEERS = ("Pipe", "Queue", "SharedMemory")
"""Of multiprocessing."""


@dataclass(frozen=True)
class Point:
    """Messages of one mechanism and size: what one cost, the median and the quartiles, in ns."""

    nbytes: int
    count: int
    low_ns: int
    ns: int
    high_ns: int


@dataclass(frozen=True)
class Bench:
    """A bench: points by mechanism, the smallest size first; the curves that were fitted; how it was done.

    A point holds the work of both sides with pickling and reading the item. Of the hop's own ways that is `besides_ns`,
    the same for all; the curves leave it out, as they do everywhere.

    >>> curves = Curves.simple((64, 4096, 65536), (9_000, 90_000, 300_000), (24_000, 30_000, 45_000))
    >>> dear, cheap = Point(4096, 9, 95_000, 96_000, 99_000), Point(4096, 9, 35_000, 36_000, 39_000)
    >>> Bench({"pipe": (dear,), "copied": (cheap,)}, curves, 6_000, 20.0, 15).crossover
    'from 881 B up shared memory is cheaper: at 4.1 kB it takes 36 us, the pipe 96 us'
    """

    points: Mapping[str, tuple[Point, ...]]
    curves: Curves
    besides_ns: int
    took_s: float
    turns: int
    host: Mapping[str, Any] = field(default_factory=dict)
    load_average: float = 0.0

    @property
    def crossing_bytes(self) -> int | None:
        """From how many bytes on shared memory is cheaper, for good; None if it is not at the largest size."""
        at = self.curves.crossing_bytes()
        return at if self.curves.copied(at) <= self.curves.pipe(at) else None

    @property
    def crossover(self) -> str:
        """The crossover in words, with the figures of the next size that was measured."""
        at, sizes = self.crossing_bytes, self.curves.copied.sizes
        if at is None:
            return f"shared memory is not cheaper than the pipe up to {format_bytes(sizes[-1])}"
        begin = f"from {format_bytes(at)} up" if at > self.curves.pipe.sizes[0] else "at every size"
        nbytes, shared_ns, pipe_ns = self._figures(at)
        return (
            f"{begin} shared memory is cheaper: at {format_bytes(nbytes)} it takes {format_ns(shared_ns)}, "
            f"the pipe {format_ns(pipe_ns)}"
        )

    def _figures(self, at: int) -> tuple[int, int, int]:
        """(bytes, ns copied, ns by the pipe) of the first size from `at` on that shows it; else the curves' at `at`."""
        for copied in self.points.get(COPIED, ()):
            pipe = self.point(PIPE, copied.nbytes)
            if pipe is not None and copied.nbytes >= at and copied.ns < pipe.ns:
                return copied.nbytes, copied.ns, pipe.ns
        return at, self.curves.copied(at), self.curves.pipe(at)

    def point(self, name: str, nbytes: int) -> Point | None:
        """What was measured of a mechanism at a size; None if nothing was."""
        return next((point for point in self.points.get(name, ()) if point.nbytes == nbytes), None)

    @property
    def sizes(self) -> list[int]:
        """The sizes that were measured."""
        return sorted({point.nbytes for points in self.points.values() for point in points})

    @property
    def spread(self) -> float:
        """How far the quartiles lie apart, as a share of the median; the median over all points."""
        shares = [(point.high_ns - point.low_ns) / point.ns for points in self.points.values() for point in points]
        return median(shares) if shares else 0.0


def check_file(path: Path | None) -> None:
    """UsageError unless a file can be written to `path`; asked before the measuring."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UsageError(f"--json {path}: that is a folder, or lies in none; name a file in a folder that exists")


def to_json(bench: Bench) -> str:
    """The bench as JSON, of the schema stagepipe.bench/1; sizes in bytes, durations in ns."""
    plain = {
        "schema": "stagepipe.bench/1",
        "host": {**bench.host, "load_average": bench.load_average},
        "took_s": bench.took_s,
        "turns": bench.turns,
        "besides_ns": bench.besides_ns,
        "crossing_bytes": bench.crossing_bytes,
        "crossover": bench.crossover,
        "spread": bench.spread,
        "points": {name: [asdict(point) for point in points] for name, points in bench.points.items()},
        "curves": bench.curves.to_plain(),
    }
    return json.dumps(plain, indent=1) + "\n"
