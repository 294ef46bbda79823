"""What Ray itself counts: the blocks of each operator, and the object store of each node. In the caller's process.

Most of it comes from Ray's internals, which change from version to version. So each figure is read by itself: one that
this version does not have is left out, and a run never fails for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from stagepipe.report import StoreHopReport, StoreNodeReport

_SENDER_METRICS: Final = {
    "blocks": ("num_task_outputs_generated", 1),
    "block_bytes": ("bytes_task_outputs_generated", 1),
    "put_ns": ("block_serialization_time_s", 10**9),
    "held_ns": ("task_output_backpressure_time_s", 10**9),
}
"""Of the operator before a hop: our field, Ray's (`OpRuntimeMetrics`), and the factor between their units."""
_RECEIVER_METRICS: Final = {
    "wait_ns": ("task_scheduling_time_s", 10**9),
    "moved_bytes": ("bytes_inputs_of_task_locality_miss_tasks", 1),
    "spilled_bytes": ("obj_store_mem_spilled", 1),
}
"""Of the operator after a hop."""
_STORE_COUNTERS: Final = {
    "spilled_bytes": ("spilled_bytes_total", 1),
    "spill_ns": ("spill_time_total_s", 10**9),
    "restored_bytes": ("restored_bytes_total", 1),
    "restore_ns": ("restore_time_total_s", 10**9),
}
"""Of a node's object store, since the node has started: our field, Ray's (`ObjectStoreStats`), and the factor."""
_NODE_ID_CHARACTERS: Final = 8
_MAX_THREADS: Final = 32
"""Nodes that are asked at a time: each answer takes some milliseconds."""


class StoreStatistics:
    """What Ray has counted in a run, summed over its epochs. `hop_count`: one for each process that runs on Ray."""

    def __init__(self, hop_count: int) -> None:
        """Start with the counters of the nodes as they are now."""
        self.hop_count = hop_count
        self._sums: list[dict[str, int]] = [{} for _ in range(hop_count)]
        self._executor: Any = None
        self._nodes_before: Mapping[str, StoreNodeReport] = read_nodes()
        self._nodes: tuple[StoreNodeReport, ...] = ()

    def begin_epoch(self, executor: Any) -> None:
        """Follow the executor of an epoch."""
        self._executor = executor

    def end_epoch(self) -> None:
        """Keep what the executor has counted, and ask the nodes. Call it while Ray is connected."""
        self._sums = self._add_executor()
        self._executor = None
        self._nodes = tuple(
            subtract_node(node, self._nodes_before.get(name)) for name, node in sorted(read_nodes().items())
        )

    def add_block(self, get_ns: int, metadata: Any, reference: Any, own_node: str) -> None:
        """Count a block that this process got in `get_ns`. `metadata` is Ray's."""
        sums = self._sums[-1]
        nbytes = int(getattr(metadata, "size_bytes", 0) or 0)
        node = getattr(getattr(metadata, "exec_stats", None), "node_id", None)
        _add(sums, {"get_ns": get_ns})
        if node is not None and own_node:
            _add(sums, {"moved_bytes": nbytes if node != own_node else 0})
        was_spilled = _was_spilled(reference)
        if was_spilled is not None:
            _add(sums, {"spilled_bytes": nbytes if was_spilled else 0})

    def make_hops(self) -> list[StoreHopReport]:
        """Return the hops through the object store, in the order of the plan."""
        return [StoreHopReport(**sums) for sums in self._add_executor()]

    @property
    def nodes(self) -> tuple[StoreNodeReport, ...]:
        """The nodes at the end of the last epoch, with what their stores did since the run has begun."""
        return self._nodes

    def _add_executor(self) -> list[dict[str, int]]:
        sums = [dict(each) for each in self._sums]
        operators = find_operators(self._executor)
        if len(operators) != self.hop_count:  # Ray has joined two operators: which one has counted what, is unknown
            return sums
        for index, operator in enumerate(operators):
            _add(sums[index], read_metrics(operator, _SENDER_METRICS))
            if index:
                _add(sums[index - 1], read_metrics(operator, _RECEIVER_METRICS))
        return sums


def find_operators(executor: Any) -> list[Any]:
    """Return the operators that call functions, from the source on."""
    topology = getattr(executor, "_topology", None) or {}
    return [operator for operator in topology if getattr(operator, "input_dependencies", None)]


def read_metrics(operator: Any, fields: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """Return the metrics of an operator, without those that this version does not have.

    `fields`: our name -> Ray's, and the factor.
    """
    metrics = getattr(operator, "metrics", None)
    return _scale({name: getattr(metrics, field_name, None) for name, (field_name, _) in fields.items()}, fields)


def read_nodes() -> dict[str, StoreNodeReport]:
    """Return the nodes of the cluster that answer, with all that their stores have done since they started."""
    try:
        import ray
        from ray._private.internal_api import node_stats

        nodes = [node for node in ray.nodes() if node["Alive"]]
    except Exception:  # noqa: BLE001 - Ray's internals: without them there are no figures, and a run needs none
        return {}

    def read(node: Any) -> StoreNodeReport | None:
        with suppress(Exception):  # it has just died, or this version answers otherwise
            stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False)
            return make_node(node, stats.store_stats)
        return None

    if not nodes:
        return {}
    with ThreadPoolExecutor(min(len(nodes), _MAX_THREADS)) as pool:
        return {node.node: node for node in pool.map(read, nodes) if node is not None}


def make_node(node: Mapping[str, Any], store: Any) -> StoreNodeReport:
    """Return a node with the counters of its store; those that this version does not have are 0."""
    resources = node["Resources"]
    counters = {name: getattr(store, field_name, None) for name, (field_name, _) in _STORE_COUNTERS.items()}
    return StoreNodeReport(
        node=str(node["NodeID"])[:_NODE_ID_CHARACTERS],
        cpus=float(resources.get("CPU", 0.0)),
        store_bytes=int(resources.get("object_store_memory", 0)),
        **_scale(counters, _STORE_COUNTERS),
    )


def subtract_node(node: StoreNodeReport, before: StoreNodeReport | None) -> StoreNodeReport:
    """Return a node with what its store did since `before`; None: the node is newer than the run."""
    return StoreNodeReport(
        node=node.node,
        cpus=node.cpus,
        store_bytes=node.store_bytes,
        **{
            name: max(getattr(node, name) - (getattr(before, name) if before else 0), 0)  # a restarted node begins at 0
            for name in _STORE_COUNTERS
        },
    )


def _was_spilled(reference: Any) -> bool | None:
    """Whether a block had been written to disk; None: unknown."""
    with suppress(Exception):
        from ray.experimental import get_local_object_locations

        return bool(get_local_object_locations([reference])[reference]["did_spill"])
    return None


def _scale(values: Mapping[str, Any], fields: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    is_number = {name: isinstance(value, int | float) for name, value in values.items()}
    return {name: max(int(value * fields[name][1]), 0) for name, value in values.items() if is_number[name]}


def _add(sums: dict[str, int], values: Mapping[str, int]) -> None:
    for name, value in values.items():
        sums[name] = sums.get(name, 0) + value
