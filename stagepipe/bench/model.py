"""The result of a bench: the cost of a message by mechanism and size, and where shared memory becomes cheaper.

Pure. Runs in the caller's process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from stagepipe.core import UsageError, format_bytes, format_ns
from stagepipe.costs import CostCurves

BENCH_SIZES_BYTES = (
    64,
    512,
    1 << 10,
    3 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
)
"""Bytes of the array in a message. With the packet header no two have the same bit length, so the ledger keeps them
apart."""
PIPE = "pipe"
"""Through the pipe."""
COPIED = "copied"
"""Copied into a shared-memory block that was used before."""
COLD = "cold"
"""Copied into a shared-memory block whose pages were never touched."""
HOP_MECHANISMS = (PIPE, COPIED, "loaned", "passed on", COLD)
"""How a hop can carry a message; one curve of `CostCurves` each."""
PEER_MECHANISMS = ("Pipe", "Queue", "SharedMemory")
"""The mechanisms of multiprocessing that the bench compares with."""


@dataclass(frozen=True, kw_only=True)
class CostPoint:
    """The cost of a message by one mechanism, at one size: `ns` is the median, `low_ns` and `high_ns` the quartiles."""

    nbytes: int
    count: int
    low_ns: int
    ns: int
    high_ns: int


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """The result of a bench: points by mechanism, the smallest size first, the fitted curves and how it was run.

    A point holds the work of both sides, pickling and reading included. For the hop's mechanisms that part is
    `serialization_ns`, the same for all. The curves leave it out.

    >>> curves = CostCurves.from_points((64, 4096, 65536), (9_000, 90_000, 300_000), (24_000, 30_000, 45_000))
    >>> pipe = CostPoint(nbytes=4096, count=9, low_ns=95_000, ns=96_000, high_ns=99_000)
    >>> copied = CostPoint(nbytes=4096, count=9, low_ns=35_000, ns=36_000, high_ns=39_000)
    >>> points = {"pipe": (pipe,), "copied": (copied,)}
    >>> result = BenchResult(points=points, curves=curves, serialization_ns=6_000, duration_s=20.0, rounds=15)
    >>> result.crossover_summary
    'shared memory is cheaper from 881 B up: at 4.1 kB it takes 36 µs, the pipe 96 µs'
    """

    points: Mapping[str, tuple[CostPoint, ...]]
    curves: CostCurves
    serialization_ns: int
    duration_s: float
    rounds: int
    host: Mapping[str, Any] = field(default_factory=dict)
    load_average: float = 0.0

    @property
    def busy_warning(self) -> str:
        """Why the costs are too high, if other processes used the CPUs; else ""."""
        cpus = self.host.get("cpus", 0)
        if not cpus or self.load_average <= cpus:
            return ""
        return (
            f"other processes used the machine (load average {self.load_average:.1f} on {cpus} CPUs), so these costs "
            "are too high; run it again when the machine is idle"
        )

    @property
    def crossover_bytes(self) -> int | None:
        """The size from which shared memory stays cheaper than the pipe; None if it is not cheaper at the largest."""
        crossover_bytes = self.curves.find_crossover_bytes()
        is_cheaper = self.curves.copied(crossover_bytes) <= self.curves.pipe(crossover_bytes)
        return crossover_bytes if is_cheaper else None

    @property
    def crossover_summary(self) -> str:
        """The crossover as a sentence, with the costs at the next measured size."""
        crossover_bytes = self.crossover_bytes
        if crossover_bytes is None:
            return f"shared memory is not cheaper than the pipe up to {format_bytes(self.curves.copied.sizes[-1])}"
        is_at_every_size = crossover_bytes <= self.curves.pipe.sizes[0]
        sizes = "at every size" if is_at_every_size else f"from {format_bytes(crossover_bytes)} up"
        nbytes, shared_ns, pipe_ns = self._find_crossover_costs(crossover_bytes)
        return (
            f"shared memory is cheaper {sizes}: at {format_bytes(nbytes)} it takes {format_ns(shared_ns)}, "
            f"the pipe {format_ns(pipe_ns)}"
        )

    def _find_crossover_costs(self, crossover_bytes: int) -> tuple[int, int, int]:
        """(bytes, ns copied, ns by pipe) at the first measured size that shows the crossover.

        If no measured size shows it, the costs of the curves at `crossover_bytes`.
        """
        for copied in self.points.get(COPIED, ()):
            pipe = self.get_point(PIPE, copied.nbytes)
            if pipe is not None and copied.nbytes >= crossover_bytes and copied.ns < pipe.ns:
                return copied.nbytes, copied.ns, pipe.ns
        return crossover_bytes, self.curves.copied(crossover_bytes), self.curves.pipe(crossover_bytes)

    def get_point(self, mechanism: str, nbytes: int) -> CostPoint | None:
        """The cost of a mechanism at a size; None if it was not measured."""
        return next((point for point in self.points.get(mechanism, ()) if point.nbytes == nbytes), None)

    @property
    def sizes_bytes(self) -> list[int]:
        """The measured sizes, in ascending order."""
        return sorted({point.nbytes for points in self.points.values() for point in points})

    @property
    def relative_iqr(self) -> float:
        """The interquartile range as a share of the median; the median over all points."""
        ranges = [(point.high_ns - point.low_ns) / point.ns for points in self.points.values() for point in points]
        return median(ranges) if ranges else 0.0


def check_output_path(path: Path | None) -> None:
    """Raise UsageError unless a file can be written to `path`. Called before anything is measured."""
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise UsageError(
            f"--json {path}: this is a folder, or its parent folder does not exist; name a file in an existing folder"
        )


def to_json(result: BenchResult) -> str:
    """The result as JSON, in the schema `stagepipe.bench/2`. Sizes are in bytes, durations in ns."""
    data = {
        "schema": "stagepipe.bench/2",
        "host": {**result.host, "load_average": result.load_average},
        "duration_s": result.duration_s,
        "rounds": result.rounds,
        "serialization_ns": result.serialization_ns,
        "crossover_bytes": result.crossover_bytes,
        "crossover": result.crossover_summary,
        "relative_iqr": result.relative_iqr,
        "points": {name: [asdict(point) for point in points] for name, points in result.points.items()},
        "curves": result.curves.to_dict(),
    }
    return json.dumps(data, indent=1) + "\n"
