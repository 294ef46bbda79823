"""Measures what Ray costs on this machine, for the model: CPU seconds, in the steady state, of all its processes.

Two stages make an array and pass it on, one worker each, at several sizes; the items come to the calling process. The
terms of the formula are fitted to the CPU of an item. One size is left out of the fit: the formula must predict it.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.cluster_model.costs import HOPS, ModelJob, RayCosts, fit
from benchmarks.common.usage import CpuMeter
from stagepipe import Pipeline

_ITEMS_BY_SIZE: Final = {1_000: 6_400, 100_000: 3_200, 1_200_000: 512, 8_000_000: 96, 38_500_000: 32}
"""Some seconds of each; as many items as fill whole blocks of 64, where blocks hold as many."""
HELD_OUT_BYTES: Final = 1_200_000
_ENGINES: Final = {"local": "local", "engine: ray": "ray"}
_MEASURED_PART: Final = (0.2, 0.8)
"""Of the items: no start, and no end, when the first stages have nothing left to do."""
_WORK_CALLS: Final = 20
_NO_COSTS: Final = RayCosts(item_s=0, block_s=0, bytes_per_s=1, driver_block_s=0, caller_item_s=0)


class FillArray:
    """A stage that makes an item with an array of `nbytes`."""

    def __init__(self, nbytes: int) -> None:
        """Set the size."""
        self.nbytes = nbytes

    def __call__(self, number: int) -> dict[str, Any]:
        """Return the item of a number."""
        return {"id": number, "image": np.full(self.nbytes, number % 251, np.uint8)}


def pass_array_on(item: dict[str, Any]) -> dict[str, Any]:
    """Look at the first byte, and return the item."""
    assert item["image"][0] == item["id"] % 251
    return item


@dataclass(frozen=True, kw_only=True)
class CpuPoint:
    """What an item of a size cost: CPU seconds of its work alone, of all processes, and of the calling one of them."""

    nbytes: int
    work_s: float
    items_per_s: float
    cpu_s: float
    caller_cpu_s: float


@contextmanager
def start_ray() -> Iterator[None]:
    """Run Ray on this machine, on the loopback address, as long as the context lasts."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with tempfile.TemporaryDirectory(prefix="stagepipe-ray-") as folder:
        ray.init(
            address="local",
            num_cpus=len(os.sched_getaffinity(0)),
            include_dashboard=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        try:
            yield
        finally:
            ray.shutdown()


def measure_points(engine: str, sizes: Sequence[int], rounds: int) -> list[CpuPoint]:
    """Return the medians of the rounds for each size; the sizes take turns."""
    found: dict[int, list[CpuPoint]] = {nbytes: [] for nbytes in sizes}
    for _ in range(rounds):
        for nbytes, points in found.items():
            points.append(_measure_point(engine, nbytes))
            print(f"  {engine}, {nbytes:,} bytes: {points[-1].items_per_s:,.1f} items/s", flush=True)
    names = ("work_s", "items_per_s", "cpu_s", "caller_cpu_s")
    return [
        CpuPoint(nbytes=nbytes, **{name: median(getattr(point, name) for point in points) for name in names})
        for nbytes, points in found.items()
    ]


def _measure_point(engine: str, nbytes: int) -> CpuPoint:
    work_s = _measure_work_s(nbytes)
    planned = _ITEMS_BY_SIZE[nbytes]
    config = {
        "engine": engine,
        "source": {"uses": range(planned)},
        "stages": [
            {"name": "fill", "uses": FillArray, "with": {"nbytes": nbytes}},
            {"name": "pass_on", "uses": pass_array_on},
        ],
    }
    with Pipeline(config) as pipeline:
        for items, item in enumerate(pipeline, 1):
            assert item["image"].nbytes == nbytes
            if items == int(_MEASURED_PART[0] * planned):
                begun = _Clocks.read(items, meter := CpuMeter())
            elif items == int(_MEASURED_PART[1] * planned):
                ended = _Clocks.read(items, meter)  # now: Ray reaps its workers at the end, and their time is lost
    counted = ended.items - begun.items
    return CpuPoint(
        nbytes=nbytes,
        work_s=work_s,
        items_per_s=counted / (ended.wall_s - begun.wall_s),
        cpu_s=(ended.cpu_s - begun.cpu_s) / counted,
        caller_cpu_s=(ended.caller_cpu_s - begun.caller_cpu_s) / counted,
    )


@dataclass(frozen=True)
class _Clocks:
    """All clocks at an item."""

    items: int
    wall_s: float
    cpu_s: float
    caller_cpu_s: float

    @classmethod
    def read(cls, items: int, meter: CpuMeter) -> _Clocks:
        return cls(items, time.perf_counter(), meter.measure_s(), time.process_time())


def _measure_work_s(nbytes: int) -> float:
    fill, begun_s = FillArray(nbytes), time.process_time()
    for number in range(_WORK_CALLS):
        pass_array_on(fill(number))
    return (time.process_time() - begun_s) / _WORK_CALLS


def make_measured_job(point: CpuPoint) -> ModelJob:
    """Return the job that was measured: it reads nothing, and the second stage passes the array on to the caller."""
    size = float(point.nbytes)
    return ModelJob(
        item_bytes=size,
        work_s=point.work_s,
        result_bytes=size,
        passed_on_bytes=size,
        work_spread=0.0,
        returns_items=True,
    )


def fit_ray_costs(points: Sequence[CpuPoint]) -> RayCosts:
    """Fit the terms of the formula to the points, the workers' CPU and the caller's apart."""
    terms, caller_terms = [], []
    for point in points:
        job = make_measured_job(point)
        blocks = _NO_COSTS.count_blocks(job)
        terms.append([HOPS, blocks, job.moved_bytes])
        caller_terms.append([1.0, blocks])
    workers_s = [max(point.cpu_s - point.caller_cpu_s - point.work_s, 1e-9) for point in points]
    item_s, block_s, byte_s = fit(terms, workers_s)
    caller_item_s, driver_block_s = fit(caller_terms, [point.caller_cpu_s for point in points])
    return RayCosts(
        item_s=item_s,
        block_s=block_s,
        bytes_per_s=1 / max(byte_s, 1e-15),
        driver_block_s=driver_block_s,
        caller_item_s=caller_item_s,
    )


def measure(rounds: int, sizes: Sequence[int] = tuple(_ITEMS_BY_SIZE)) -> dict[str, Any]:
    """Measure both engines, and return the fitted costs of Ray with all points, to be written as JSON."""
    with start_ray():
        points = {name: measure_points(engine, sizes, rounds) for name, engine in _ENGINES.items()}
    fitted = [point for point in points["engine: ray"] if point.nbytes != HELD_OUT_BYTES]
    return {
        "ray": asdict(fit_ray_costs(fitted)),
        "held_out_bytes": HELD_OUT_BYTES,
        "points": {engine: [asdict(point) for point in listed] for engine, listed in points.items()},
    }
