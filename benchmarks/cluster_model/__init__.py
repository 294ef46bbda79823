"""Model which engine wins on how many machines: a formula from measured costs, and a simulation that checks it.

First the parameters: a job, a cluster, and the cost of a hop with each engine. The formula computes the seconds of an
item at each limit; the largest is the time of an item if all CPUs have work and no straggler delays them. The
simulation adds waits: for the driver, the storage, a link, a CPU, or a straggler. Time advances from block to block,
not by a clock. A queue is the time at which its server is free again: earlier arrivals wait until then. CPUs are a heap
of such times. Blocks are served in the order in which they are sent.

Last come the measurements on this machine: CPU seconds, in the steady state, of all processes. Two stages make an array
and pass it on, one worker each, at several sizes; the items come to the calling process. Plain Ray Data with a number
in each block shows the cost of a block. The terms of the formula are fitted to the CPU of an item. One size is left out
of the fit: the formula must predict it.
"""

from __future__ import annotations

import heapq
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from math import inf
from pathlib import Path
from statistics import NormalDist, median
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.turn import FIGURES, TreeClocks
from stagepipe import Pipeline
from stagepipe.engine.ray import RayCluster

HOP_FILE: Final = FIGURES / "hop.json"
COSTS_FILE: Final = FIGURES / "cluster_costs.json"
_MIN_FITTED_BYTES: Final = 64_000
"""Smaller items travel in pipes and cost less than the fitted line. The model is for arrays in shared memory."""
GBIT_BYTES: Final = 125_000_000
HOPS: Final = 3
"""Three hops: source, first stage, second stage, sink or caller."""
_JPEG_SHARE: Final = 0.1
"""Size of a file as a share of its array's bytes. A JPEG of quality 90 has about a tenth of its pixels' bytes."""


@dataclass(frozen=True, kw_only=True)
class ModelJob:
    """A pipeline of two stages between a source and a sink. The first makes the array, the second uses it.

    `result_bytes` is the size of the second stage's result, which the sink writes. `passed_on_bytes` of it are the
    array that it has received: on one machine, they are not copied.
    """

    item_bytes: float
    work_s: float
    result_bytes: float
    read_bytes: float = 0.0
    passed_on_bytes: float = 0.0
    returns_items: bool = False
    """Whether the results come to the calling process. If not, a sink with workers writes them."""
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
    """A number of machines, each with a number of CPUs and a network link, and one shared storage."""

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
    """CPU seconds of a hop on one machine: `hop_s`, and a copy of a new array at `copy_bytes_per_s`."""

    hop_s: float
    copy_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class RayCosts:
    """CPU seconds of a hop through Ray's object store, in the workers and in the driver.

    `item_s` and 1/`bytes_per_s` are costs per item, `block_s` per block, `driver_block_s` per block in the scheduling
    process; `caller_item_s` is the cost per item in that process, if the results come to it. A block ends at
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
        """Return the number of items in a block of each hop.

        >>> costs = RayCosts(item_s=0, block_s=0, bytes_per_s=1, driver_block_s=0, caller_item_s=0)
        >>> costs.count_block_items(ModelJob.of_images(38_500_000, 0.01, result_bytes=1_000))
        (35, 4, 4)
        """
        found = [self.max_block_items]
        for item_bytes in (job.read_bytes, job.item_bytes, job.result_bytes):
            fitting = math.ceil(self.max_block_bytes / max(item_bytes, 1.0))  # includes the item that reaches the limit
            found.append(min(found[-1], fitting))
        return tuple(found[1:])

    def count_blocks(self, job: ModelJob) -> float:
        """Return the number of blocks of all hops per item."""
        return sum(1 / items for items in self.count_block_items(job))


@dataclass(frozen=True, kw_only=True)
class EngineCosts:
    """The costs of both engines, and the machine on which they were measured."""

    local: LocalCosts
    ray: RayCosts
    machine: Mapping[str, Any]


def load_costs(path: Path = COSTS_FILE) -> EngineCosts:
    """Read the output of `--measure`: both engines, measured side by side."""
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
    """Return the cost of a hop on a machine without other programs, from the benchmark of a hop."""
    return fit_local_costs(json.loads(path.read_text())["rows"])


def fit_local_costs(rows: Sequence[Mapping[str, Any]]) -> LocalCosts:
    """Fit `hop_s + bytes / copy_bytes_per_s` to the CPU of an array that is sent once and not touched."""
    chosen = [row for row in rows if row["contestant"] == "stagepipe copied" and not row["touched"]]
    points = {row["nbytes"]: median(row["cpu_us"]) / 1e6 for row in chosen if row["nbytes"] >= _MIN_FITTED_BYTES}
    return _fit_line(points, hops=1)


def _fit_line(points: Mapping[int, float], *, hops: int) -> LocalCosts:
    """Fit `hops` hops with one copy to CPU seconds by bytes."""
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


class ModelEngine(StrEnum):
    """The way to run the job. The first two use one machine, however many there are."""

    PROCESS = "one process"
    LOCAL = "local"
    RAY = "engine: ray"
    ISLANDS = "islands"


def find_limits(engine: ModelEngine, job: ModelJob, cluster: ClusterSize, costs: EngineCosts) -> Mapping[str, float]:
    """Return the seconds of an item at each limit, by the name of the limit."""
    if engine is ModelEngine.RAY:
        return _find_ray_limits(job, cluster, costs.ray)
    if engine is not ModelEngine.ISLANDS:
        cluster = replace(cluster, nodes=1)
    cpu_s = job.work_s if engine is ModelEngine.PROCESS else get_local_cpu_s(job, costs.local)
    return {
        "CPUs": cpu_s / (1 if engine is ModelEngine.PROCESS else cluster.cpus),
        "network": get_link_bytes(job) / (cluster.nodes * cluster.network_bytes_per_s),
        "storage": (job.read_bytes + job.result_bytes) / cluster.storage_bytes_per_s,
    }


def _find_ray_limits(job: ModelJob, cluster: ClusterSize, costs: RayCosts) -> Mapping[str, float]:
    return {
        "CPUs": get_ray_cpu_s(job, costs) / cluster.cpus,
        "driver": get_driver_s(job, costs),
        "caller's network": get_caller_bytes(job) / cluster.network_bytes_per_s,
        "network": get_node_bytes(job, cluster) / (cluster.nodes * cluster.network_bytes_per_s),
        "storage": (job.read_bytes + job.result_bytes) / cluster.storage_bytes_per_s,
    }


def get_local_cpu_s(job: ModelJob, costs: LocalCosts) -> float:
    """Return the CPU seconds of an item: its work, its hops, and a copy of each new array."""
    copied_bytes = job.moved_bytes - job.passed_on_bytes
    return job.work_s + HOPS * costs.hop_s + copied_bytes / costs.copy_bytes_per_s


def get_ray_cpu_s(job: ModelJob, costs: RayCosts) -> float:
    """Return the CPU seconds of an item in Ray's workers: each hop has its share of a block, and moves all bytes."""
    return (
        job.work_s + HOPS * costs.item_s + costs.count_blocks(job) * costs.block_s + job.moved_bytes / costs.bytes_per_s
    )


def get_driver_s(job: ModelJob, costs: RayCosts) -> float:
    """Return the seconds per item in the process that schedules the blocks and takes the last ones."""
    return costs.count_blocks(job) * costs.driver_block_s + (costs.caller_item_s if job.returns_items else 0.0)


def get_total_cpu_s(engine: ModelEngine, job: ModelJob, costs: EngineCosts) -> float:
    """Return the CPU seconds of an item in all processes."""
    if engine is ModelEngine.RAY:
        return get_ray_cpu_s(job, costs.ray) + get_driver_s(job, costs.ray)
    return get_local_cpu_s(job, costs.local)


def get_link_bytes(job: ModelJob) -> float:
    """Return the bytes of an item in the busier direction of a machine's link, if the machine reads and writes it."""
    return max(job.read_bytes, job.result_bytes)


def get_caller_bytes(job: ModelJob) -> float:
    """Return the bytes of an item that come to the calling process through Ray."""
    return job.result_bytes if job.returns_items else 0.0


def get_node_bytes(job: ModelJob, cluster: ClusterSize) -> float:
    """Return the bytes of an item in the busier direction of the nodes' links, through Ray.

    A node reads the file, gets an array if the previous actor is elsewhere, and writes the input of its sink.
    """
    written_bytes = 0.0 if job.returns_items else job.result_bytes
    moved_bytes = (job.item_bytes + written_bytes) * (1 - 1 / cluster.nodes)
    return moved_bytes + max(job.read_bytes, written_bytes)


def predict_rate(engine: ModelEngine, job: ModelJob, cluster: ClusterSize, costs: EngineCosts) -> float:
    """Return the items per second."""
    return 1 / max(find_limits(engine, job, cluster, costs).values())


def name_limit(engine: ModelEngine, job: ModelJob, cluster: ClusterSize, costs: EngineCosts) -> str:
    """Return the name of the limit."""
    limits = find_limits(engine, job, cluster, costs)
    return max(limits, key=limits.__getitem__)


def find_least_nodes(
    engine: ModelEngine, job: ModelJob, cluster: ClusterSize, costs: EngineCosts, *, max_nodes: int = 1_000
) -> int | None:
    """Return the smallest number of nodes for which an engine beats one machine without Ray; None if there is none."""
    local = predict_rate(ModelEngine.LOCAL, job, cluster, costs)
    return next(
        (
            nodes
            for nodes in range(1, max_nodes + 1)
            if predict_rate(engine, job, replace(cluster, nodes=nodes), costs) > local
        ),
        None,
    )


_BLOCKS_IN_FLIGHT_PER_CPU: Final = 2
"""Number of blocks that Ray Data keeps in flight: one that runs, and one that waits with its data available."""
_DETECTION_S: Final = 30.0
"""Time until a lost node is noticed: Ray asks each node every few seconds, and gives it up after some failures."""
_RESTART_S: Final = 20.0
"""Time until the island of a lost node runs again, with `--resume`, after the others have ended: the start of a run."""


@dataclass(frozen=True, kw_only=True)
class NodeLoss:
    """The first node is lost at `share` of the time that the run takes without the loss.

    `keeps_output`: whether its output is in a folder that other nodes can see.
    """

    share: float = 0.5
    keeps_output: bool = True


@dataclass(frozen=True)
class SimulatedRun:
    """A run with its number of items and seconds."""

    items: int
    seconds: float

    @property
    def items_per_s(self) -> float:
        """The mean rate."""
        return self.items / self.seconds


def simulate(
    engine: ModelEngine,
    job: ModelJob,
    cluster: ClusterSize,
    costs: EngineCosts,
    *,
    blocks_per_cpu: int = 16,
    loss: NodeLoss | None = None,
    seed: int = 17,
) -> SimulatedRun:
    """Simulate a run of `blocks_per_cpu` blocks for each CPU. Islands work on groups of items of the same size."""
    blocks = blocks_per_cpu * cluster.cpus
    block_items = costs.ray.count_block_items(job)[1]
    draw = np.random.default_rng(seed)
    speeds = _make_speeds(draw, cluster)
    cpu_s = get_ray_cpu_s(job, costs.ray) if engine is ModelEngine.RAY else get_local_cpu_s(job, costs.local)
    times = block_items * cpu_s * _draw_relative(draw, blocks, job.work_spread / block_items**0.5)
    lost_at_s = inf
    if loss is not None:
        whole = simulate(engine, job, cluster, costs, blocks_per_cpu=blocks_per_cpu, seed=seed)
        lost_at_s = loss.share * whole.seconds
    if engine is ModelEngine.RAY:
        seconds = _RayQueues(job, cluster, costs.ray, lost_at_s).run(times.tolist(), speeds)
    elif engine is ModelEngine.ISLANDS:
        shares = [(share / speed).tolist() for share, speed in zip(np.split(times, cluster.nodes), speeds, strict=True)]
        keeps_output = loss is None or loss.keeps_output
        seconds = _IslandQueues(job, cluster, block_items, lost_at_s).run(shares, keeps_output=keeps_output)
    else:
        raise ValueError(f"{engine} uses one machine: its formula needs no simulation")
    return SimulatedRun(blocks * block_items, seconds)


def _make_speeds(draw: np.random.Generator, cluster: ClusterSize) -> list[float]:
    """Return the speed of each node: quantiles of a normal distribution, so that few nodes do not depend on luck."""
    normal = NormalDist(1.0, max(cluster.node_spread, 1e-9))
    speeds = [normal.inv_cdf((number + 0.5) / cluster.nodes) for number in range(cluster.nodes)]
    draw.shuffle(speeds)
    return speeds


def _draw_relative(draw: np.random.Generator, count: int, spread: float) -> NDArray[np.float64]:
    """Return times with a mean of one. With the gamma distribution, none is negative, and sums follow one too."""
    return np.ones(count) if spread == 0 else draw.gamma(spread**-2, spread**2, count)


class _RayQueues:
    """One driver, the storage, a link for each node, all CPUs, and the caller's link, where blocks keep their order."""

    def __init__(self, job: ModelJob, cluster: ClusterSize, costs: RayCosts, lost_at_s: float) -> None:
        block_items = costs.count_block_items(job)[1]
        self._window = _BLOCKS_IN_FLIGHT_PER_CPU * cluster.cpus + HOPS
        self._driver_s = block_items * get_driver_s(job, costs)
        self._storage_s = block_items * (job.read_bytes + job.result_bytes) / cluster.storage_bytes_per_s
        self._link_s = block_items * get_node_bytes(job, cluster) / cluster.network_bytes_per_s
        self._caller_s = block_items * get_caller_bytes(job) / cluster.network_bytes_per_s
        self._links = [0.0] * cluster.nodes
        self._cpus = [(0.0, number % cluster.nodes) for number in range(cluster.cpus)]
        self._lost_at_s = lost_at_s

    def run(self, times: list[float], speeds: list[float]) -> float:
        """Return the seconds until the caller has the last block."""
        driver = storage = caller = 0.0
        delivered: list[float] = []
        for index, time_s in enumerate(times):
            admitted = delivered[index - self._window] if index >= self._window else 0.0
            driver = max(driver, admitted) + self._driver_s
            storage = max(storage, driver) + self._storage_s
            finished, node = self._compute(storage, time_s, speeds)
            taken = max(caller, finished) + self._caller_s
            if node == 0 and finished <= self._lost_at_s < taken:  # its block was on the lost node: made again
                finished, _ = self._compute(self._lost_at_s + _DETECTION_S, time_s, speeds)
                taken = max(caller, finished) + self._caller_s
            caller = taken
            delivered.append(taken)
        return caller

    def _compute(self, ready: float, time_s: float, speeds: list[float]) -> tuple[float, int]:
        """Run a block on the CPU that is free first; return its end time and its node."""
        while True:
            free, node = heapq.heappop(self._cpus)
            self._links[node] = arrived = max(self._links[node], ready) + self._link_s
            finished = max(arrived, free) + time_s / speeds[node]
            if node == 0 and finished > self._lost_at_s:
                ready = max(ready, self._lost_at_s + _DETECTION_S)
                continue  # the block goes to another node, and this CPU is lost
            heapq.heappush(self._cpus, (finished, node))
            return finished, node


class _IslandQueues:
    """The storage, a link and CPUs for each node, and a share of the blocks from the start. A CPU reads one ahead."""

    def __init__(self, job: ModelJob, cluster: ClusterSize, block_items: int, lost_at_s: float) -> None:
        self._storage_s = block_items * (job.read_bytes + job.result_bytes) / cluster.storage_bytes_per_s
        self._link_s = block_items * get_link_bytes(job) / cluster.network_bytes_per_s
        self._links = [0.0] * cluster.nodes
        self._cpus_per_node = cluster.cpus_per_node
        self._cpus = [(0.0, number % cluster.nodes, 0.0) for number in range(cluster.cpus)]
        """For each CPU: when it is free, its node, and when it asked for its next block."""
        self._lost_at_s = lost_at_s

    def run(self, shares: list[list[float]], *, keeps_output: bool) -> float:
        """Return the seconds until the last island has ended. Empties the shares."""
        storage = ended = repeated_s = 0.0
        while self._cpus:
            free, node, asked = heapq.heappop(self._cpus)
            is_lost = node == 0 and free >= self._lost_at_s
            if is_lost:
                repeated_s += sum(shares[node])
                shares[node].clear()
            if not shares[node]:
                continue
            time_s = shares[node].pop()
            storage = max(storage, asked) + self._storage_s
            self._links[node] = arrived = max(self._links[node], storage) + self._link_s
            begun = max(free, arrived)
            finished = begun + time_s
            if node == 0 and (finished > self._lost_at_s or not keeps_output):
                repeated_s += time_s
            else:
                ended = max(ended, finished)
            heapq.heappush(self._cpus, (finished, node, begun))
        return ended + (_RESTART_S + repeated_s / self._cpus_per_node if repeated_s else 0.0)


_ITEMS_BY_SIZE: Final = {1_000: 6_400, 100_000: 3_200, 1_200_000: 512, 8_000_000: 128, 38_500_000: 48}
"""Some seconds for each size; enough items to fill whole blocks of 64, if blocks hold that many."""
HELD_OUT_BYTES: Final = 1_200_000
_ENGINES: Final = {"local": "local", "engine: ray": "ray"}
_MEASURED_PART: Final = (0.2, 0.8)
"""Share of the items: without the start, and without the end, when the first stages have no more work."""
_SAMPLES: Final = 10
_WORK_CALLS: Final = 20
_BLOCKS: Final = 400
_ACTOR_CPUS: Final = 0.5
"""Leaves room for two actors and the read tasks on two CPUs."""
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
    """The cost of an item of a size: CPU seconds of only its work, of all processes, and of the calling process."""

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
    """Take all items; return wall, CPU and the caller's CPU seconds per item, for the middle ones."""
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
    """Return the job of a measurement: it reads nothing, and the second stage passes the array on to the caller."""
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
    """Fit the terms of the formula to the points and to a block with one item, separately for workers and driver.

    The driver's terms use only small items: while it waits for large ones it uses CPU too, which limits nothing.
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
