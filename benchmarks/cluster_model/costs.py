"""The parameters of the model: a job, a cluster, and what a hop costs with each engine. Pure, but for reading files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

import numpy as np

_BENCHMARKS: Final = Path(__file__).parents[2] / "docs" / "benchmarks"
HOP_FILE: Final = _BENCHMARKS / "hop.json"
COSTS_FILE: Final = _BENCHMARKS / "cluster_costs.json"
_MIN_FITTED_BYTES: Final = 64_000
"""Smaller items travel in pipes, at less than the fitted line says. The model is of arrays in shared memory."""
GBIT_BYTES: Final = 125_000_000
HOPS: Final = 3
"""Source, first stage, second stage, sink or caller."""
_JPEG_SHARE: Final = 0.1
"""Of an array's bytes: what its file has. A JPEG of quality 90 has a tenth of its pixels, more or less."""


@dataclass(frozen=True, kw_only=True)
class ModelJob:
    """A pipeline of two stages between a source and a sink. The first makes the array, the second uses it.

    `result_bytes` is what the second returns and the sink writes. `passed_on_bytes` of it are the array that it has
    received: nothing copies them on one machine.
    """

    item_bytes: float
    work_s: float
    result_bytes: float
    read_bytes: float = 0.0
    passed_on_bytes: float = 0.0
    returns_items: bool = False
    """Whether the results come to the calling process. Otherwise a sink with workers writes them."""
    work_spread: float = 0.5
    """The standard deviation of the work of an item, as a share of its mean."""

    @classmethod
    def of_images(cls, item_bytes: float, work_s: float, result_bytes: float, *, returns_items: bool = False) -> Self:
        """Return a job that reads files of a tenth of the arrays' bytes."""
        return cls(
            item_bytes=item_bytes,
            work_s=work_s,
            result_bytes=result_bytes,
            read_bytes=_JPEG_SHARE * item_bytes,
            returns_items=returns_items,
        )

    @property
    def moved_bytes(self) -> float:
        """The bytes of an item that hops carry."""
        return self.item_bytes + self.result_bytes


@dataclass(frozen=True, kw_only=True)
class ClusterSize:
    """So many machines with so many CPUs, a network link each, and a storage that all share."""

    nodes: int
    cpus_per_node: int = 16
    network_bytes_per_s: float = 25 * GBIT_BYTES
    storage_bytes_per_s: float = 100e9
    node_spread: float = 0.05
    """The standard deviation of the speed of a node, as a share of its mean."""

    @property
    def cpus(self) -> int:
        """The CPUs of all machines."""
        return self.nodes * self.cpus_per_node


@dataclass(frozen=True, kw_only=True)
class LocalCosts:
    """CPU seconds of a hop on one machine: `hop_s`, and the bytes of a new array at `copy_bytes_per_s`."""

    hop_s: float
    copy_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class RayCosts:
    """CPU seconds of a hop through Ray's object store, in the workers and in the driver.

    `item_s` and 1/`bytes_per_s` are of an item, `block_s` of a block, `driver_block_s` of a block in the process that
    schedules; `caller_item_s` is what that process does with an item, if the results come to it. A block ends at
    `max_block_bytes` or `max_block_items`, and with the block from which it was made.
    """

    item_s: float
    block_s: float
    bytes_per_s: float
    driver_block_s: float
    caller_item_s: float
    max_block_bytes: float = 128 << 20
    max_block_items: int = 64

    def count_block_items(self, job: ModelJob) -> tuple[int, ...]:
        """Return how many items are in a block of each hop.

        >>> costs = RayCosts(item_s=0, block_s=0, bytes_per_s=1, driver_block_s=0, caller_item_s=0)
        >>> costs.count_block_items(ModelJob.of_images(38_500_000, 0.01, result_bytes=1_000))
        (35, 4, 4)
        """
        found = [self.max_block_items]
        for item_bytes in (job.read_bytes, job.item_bytes, job.result_bytes):
            fitting = math.ceil(self.max_block_bytes / max(item_bytes, 1.0))  # the item that reaches the limit is in it
            found.append(min(found[-1], fitting))
        return tuple(found[1:])

    def count_blocks(self, job: ModelJob) -> float:
        """Return the blocks of all hops for each item."""
        return sum(1 / items for items in self.count_block_items(job))


@dataclass(frozen=True, kw_only=True)
class EngineCosts:
    """What both engines cost, and on which machine it was measured."""

    local: LocalCosts
    ray: RayCosts
    machine: Mapping[str, Any]


def load_costs(path: Path = COSTS_FILE) -> EngineCosts:
    """Read what `--measure` has written: both engines, measured side by side."""
    document = json.loads(path.read_text())
    held_out = document["held_out_bytes"]
    points = {
        point["nbytes"]: point["cpu_s"] - point["work_s"]
        for point in document["points"]["local"]
        if point["nbytes"] >= _MIN_FITTED_BYTES and point["nbytes"] != held_out
    }
    return EngineCosts(
        local=_fit_line(points, hops=HOPS),
        ray=RayCosts(**document["ray"]),
        machine=document["machine"],
    )


def load_quiet_local_costs(path: Path = HOP_FILE) -> LocalCosts:
    """Return what a hop costs on a machine without other programs, from the benchmark of a hop."""
    return fit_local_costs(json.loads(path.read_text())["rows"])


def fit_local_costs(rows: Sequence[Mapping[str, Any]]) -> LocalCosts:
    """Fit `hop_s + bytes / copy_bytes_per_s` to the CPU of an array that is sent once and not touched."""
    chosen = [row for row in rows if row["contestant"] == "stagepipe copied" and not row["touched"]]
    points = {row["nbytes"]: median(row["cpu_us"]) / 1e6 for row in chosen if row["nbytes"] >= _MIN_FITTED_BYTES}
    return _fit_line(points, hops=1)


def _fit_line(points: Mapping[int, float], *, hops: int) -> LocalCosts:
    """Fit so many hops with one copy to CPU seconds by bytes."""
    hop_s, byte_s = fit([[hops, nbytes] for nbytes in points], list(points.values()))
    return LocalCosts(hop_s=hop_s, copy_bytes_per_s=1 / max(byte_s, 1e-15))


def fit(terms: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the factors of the terms that fit the values, by least squares of relative errors; none is negative.

    >>> [round(factor, 6) for factor in fit([[1, 1], [1, 10], [1, 100]], [3, 12, 102])]
    [2.0, 1.0]
    """
    used = list(range(len(terms[0])))
    while True:
        matrix = np.array([[row[term] / value for term in used] for row, value in zip(terms, values, strict=True)])
        scale = np.abs(matrix).max(axis=0)
        factors = np.linalg.lstsq(matrix / scale, np.ones(len(values)), rcond=None)[0] / scale
        if len(used) == 1 or factors.min() >= 0:
            found = dict(zip(used, map(float, factors), strict=True))
            return [max(found.get(term, 0.0), 0.0) for term in range(len(terms[0]))]
        used.pop(int(factors.argmin()))
