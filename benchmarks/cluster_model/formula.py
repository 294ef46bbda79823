"""The formula: the seconds of an item at each limit. The largest is what an item takes. Pure.

All CPUs have work, and nothing waits for a straggler: the simulation adds both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from benchmarks.cluster_model.costs import HOPS, ClusterSize, EngineCosts, LocalCosts, ModelJob, RayCosts


class ModelEngine(StrEnum):
    """What runs the job. The first two use one machine, however many there are."""

    PROCESS = "one process"
    LOCAL = "local"
    RAY = "engine: ray"
    ISLANDS = "islands"


def find_limits(engine: ModelEngine, job: ModelJob, cluster: ClusterSize, costs: EngineCosts) -> Mapping[str, float]:
    """Return the seconds of an item at each limit, by the name of what limits."""
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
    """Return the seconds that the process which schedules the blocks, and takes the last ones, needs for an item."""
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

    A node reads the file, gets an array if the actor before is elsewhere, and writes what its sink has got.
    """
    written_bytes = 0.0 if job.returns_items else job.result_bytes
    moved_bytes = (job.item_bytes + written_bytes) * (1 - 1 / cluster.nodes)
    return moved_bytes + max(job.read_bytes, written_bytes)


def predict_rate(engine: ModelEngine, job: ModelJob, cluster: ClusterSize, costs: EngineCosts) -> float:
    """Return the items per second."""
    return 1 / max(find_limits(engine, job, cluster, costs).values())


def name_limit(engine: ModelEngine, job: ModelJob, cluster: ClusterSize, costs: EngineCosts) -> str:
    """Return what limits the rate."""
    limits = find_limits(engine, job, cluster, costs)
    return max(limits, key=limits.__getitem__)


def find_least_nodes(
    engine: ModelEngine, job: ModelJob, cluster: ClusterSize, costs: EngineCosts, *, max_nodes: int = 1_000
) -> int | None:
    """Return the fewest nodes on which an engine is faster than one machine is without Ray; None if none are."""
    local = predict_rate(ModelEngine.LOCAL, job, cluster, costs)
    return next(
        (
            nodes
            for nodes in range(1, max_nodes + 1)
            if predict_rate(engine, job, replace(cluster, nodes=nodes), costs) > local
        ),
        None,
    )
