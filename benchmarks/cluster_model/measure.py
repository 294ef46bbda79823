"""Measures what Ray costs on this machine, for the model: CPU seconds, in the steady state, of all its processes.

Two stages make an array and pass it on, one worker each, at several sizes; the items come to the calling process. Plain
Ray Data with a number in each block shows what a block costs. The terms of the formula are fitted to the CPU of an
item. One size is left out of the fit: the formula must predict it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from benchmarks.cluster_model.costs import HOPS, ModelJob, RayCosts, fit
from benchmarks.common.usage import TreeClocks
from stagepipe import Pipeline
from stagepipe.engine import RayCluster

_ITEMS_BY_SIZE: Final = {1_000: 6_400, 100_000: 3_200, 1_200_000: 512, 8_000_000: 128, 38_500_000: 48}
"""Some seconds of each; as many items as fill whole blocks of 64, where blocks hold as many."""
HELD_OUT_BYTES: Final = 1_200_000
_ENGINES: Final = {"local": "local", "engine: ray": "ray"}
_MEASURED_PART: Final = (0.2, 0.8)
"""Of the items: no start, and no end, when the first stages have nothing left to do."""
_SAMPLES: Final = 10
_WORK_CALLS: Final = 20
_BLOCKS: Final = 400
_ACTOR_CPUS: Final = 0.5
"""So that two actors and the read tasks find room on two CPUs."""
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
        wall_s, cpu_s, caller_s = _measure_middle(pipeline, planned)
    return CpuPoint(nbytes=nbytes, work_s=work_s, items_per_s=1 / wall_s, cpu_s=cpu_s, caller_cpu_s=caller_s)


def _measure_middle(items: Iterable[object], planned: int) -> tuple[float, float, float]:
    """Take all items; return wall, CPU and the caller's CPU seconds of an item, of the middle ones."""
    begin, end = (int(part * planned) for part in _MEASURED_PART)
    step = max((end - begin) // _SAMPLES, 1)
    found = (0.0, 0.0, 0.0)
    for number, _ in enumerate(items, 1):
        if number == begin:
            clocks = TreeClocks()
        elif number == end:
            found = clocks.measure()
        elif begin < number < end and (number - begin) % step == 0:
            clocks.sample()
    wall_s, cpu_s, caller_s = (seconds / (end - begin) for seconds in found)
    return wall_s, cpu_s, caller_s


class _PassBlockOn:
    """An actor of plain Ray Data that does nothing."""

    def __call__(self, batch: Any) -> Any:
        return batch


def measure_block() -> CpuPoint:
    """Measure Ray Data by itself: a number in each block, through two actors to the caller."""
    import ray

    strategy = ray.data.ActorPoolStrategy(size=1)
    options: dict[str, Any] = {
        "batch_size": None,
        "compute": strategy,
        "num_cpus": _ACTOR_CPUS,
        "zero_copy_batch": True,
    }
    dataset = ray.data.range(_BLOCKS, override_num_blocks=_BLOCKS)
    dataset = dataset.map_batches(_PassBlockOn, **options).map_batches(_PassBlockOn, **options)
    dataset.context.execution_options.preserve_order = True
    dataset.context.enable_progress_bars = False
    wall_s, cpu_s, caller_s = _measure_middle(dataset.iter_batches(batch_size=None), _BLOCKS)
    return CpuPoint(nbytes=8, work_s=0.0, items_per_s=1 / wall_s, cpu_s=cpu_s, caller_cpu_s=caller_s)


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


def fit_ray_costs(points: Sequence[CpuPoint], block: CpuPoint) -> RayCosts:
    """Fit the terms of the formula to the points and to a block with one item, the workers' CPU and the driver's apart.

    The driver's are of small items alone: while it waits for large ones it uses CPU too, and that limits nothing.
    """
    driver_block_s = block.caller_cpu_s / HOPS
    terms: list[list[float]] = [[HOPS, HOPS, 0.0]]
    workers_s, caller_items_s = [block.cpu_s - block.caller_cpu_s], []
    for point in points:
        job = make_measured_job(point)
        blocks = _NO_COSTS.count_blocks(job)
        terms.append([HOPS, blocks, job.moved_bytes])
        workers_s.append(max(point.cpu_s - point.caller_cpu_s - point.work_s, 1e-9))
        if _NO_COSTS.count_block_items(job)[-1] == _NO_COSTS.max_block_items:
            caller_items_s.append(max(point.caller_cpu_s - blocks * driver_block_s, 0.0))
    item_s, block_s, byte_s = fit(terms, workers_s)
    return RayCosts(
        item_s=item_s,
        block_s=block_s,
        bytes_per_s=1 / max(byte_s, 1e-15),
        driver_block_s=driver_block_s,
        caller_item_s=median(caller_items_s),
    )


def measure(rounds: int) -> dict[str, Any]:
    """Measure both engines, and return the fitted costs of Ray with all points, to be written as JSON."""
    with closing(RayCluster("local")):
        blocks = [measure_block() for _ in range(rounds)]
        points = {name: measure_points(engine, list(_ITEMS_BY_SIZE), rounds) for name, engine in _ENGINES.items()}
    block = sorted(blocks, key=lambda point: point.caller_cpu_s)[len(blocks) // 2]
    fitted = [point for point in points["engine: ray"] if point.nbytes != HELD_OUT_BYTES]
    return {
        "ray": asdict(fit_ray_costs(fitted, block)),
        "held_out_bytes": HELD_OUT_BYTES,
        "block": asdict(block),
        "points": {engine: [asdict(point) for point in listed] for engine, listed in points.items()},
    }
