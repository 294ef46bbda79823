"""The queues behind the formula: who waits for the driver, the storage, a link, a CPU, or a straggler. Pure.

Time goes on from block to block and not by a clock. A queue is the time at which its server is free again: who comes
earlier waits until then. CPUs are a heap of such times. Blocks are served in the order in which they are sent.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import inf
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.cluster_model.costs import HOPS, ClusterSize, EngineCosts, ModelJob, RayCosts
from benchmarks.cluster_model.formula import (
    ModelEngine,
    get_caller_bytes,
    get_driver_s,
    get_link_bytes,
    get_local_cpu_s,
    get_node_bytes,
    get_ray_cpu_s,
)

_BLOCKS_IN_FLIGHT_PER_CPU: Final = 2
"""What Ray Data keeps under way: one that runs, and one that waits with its data at hand."""
_DETECTION_S: Final = 30.0
"""Until a lost node is noticed: Ray asks each node every few seconds, and gives it up after some failures."""
_RESTART_S: Final = 20.0
"""Until the island of a lost node runs again, with `--resume`, after the others have ended: the start of a run."""


@dataclass(frozen=True, kw_only=True)
class NodeLoss:
    """The first node is lost at `share` of the time that the run takes without the loss.

    `keeps_output`: what it has written is in a folder that others see.
    """

    share: float = 0.5
    keeps_output: bool = True


@dataclass(frozen=True)
class SimulatedRun:
    """A run of so many items in so many seconds."""

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
    """Simulate a run with as many blocks as give each CPU its number of them. Islands work on groups of that size."""
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
    """Return the speed of each node: the quantiles of a normal distribution, so that few nodes are no luck."""
    normal = NormalDist(1.0, max(cluster.node_spread, 1e-9))
    speeds = [normal.inv_cdf((number + 0.5) / cluster.nodes) for number in range(cluster.nodes)]
    draw.shuffle(speeds)
    return speeds


def _draw_relative(draw: np.random.Generator, count: int, spread: float) -> NDArray[np.float64]:
    """Return times with a mean of one. A gamma distribution: no time is negative, and a sum of items is one too."""
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
        """Run a block on the CPU that is free first; return when it ended, and its node."""
        while True:
            free, node = heapq.heappop(self._cpus)
            self._links[node] = arrived = max(self._links[node], ready) + self._link_s
            finished = max(arrived, free) + time_s / speeds[node]
            if node == 0 and finished > self._lost_at_s:
                ready = max(ready, self._lost_at_s + _DETECTION_S)
                continue  # the block goes to another node, and this CPU does not come back
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
        """When each is free, its node, and when it asked for its next block."""
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
