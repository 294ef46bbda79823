"""Executes the operators of an epoch: yields the blocks of the last operator, watches the nodes, and ends everything.

A run would wait forever for the CPUs of a lost node, so a thread ends such runs. The counters of blocks and nodes come
mostly from Ray's internals, which change between versions. The code reads each counter separately and skips missing
ones, so they never fail a run. Runs in the caller's process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Thread
from time import monotonic, perf_counter_ns
from typing import Any, Final, Self

from stagepipe.core import RunError
from stagepipe.report import StoreHopReport, StoreNodeReport

_POLL_INTERVAL_S: Final = 1.0
_PATIENCE_S: Final = 20.0
"""Time without an item. Work on the remaining nodes goes on meanwhile, and the cluster may replace the lost node."""


class NodeWatch:
    """Watches the nodes of the cluster while the run waits for items. A context manager.

    `list_nodes` returns Ray's description of all nodes, including dead ones. `list_displaced` returns the processes
    with a worker that has no place. If a node is lost, its workers have no place, and no item arrives for 20 s, the
    watch calls all of `ends`, and `raise_if_short` raises.
    """

    def __init__(
        self, list_nodes: Callable[[], Sequence[dict[str, Any]]], list_displaced: Callable[[], Sequence[str]]
    ) -> None:
        """Remember the nodes that are alive now as the nodes of the run."""
        self._list_nodes = list_nodes
        self._list_displaced = list_displaced
        self.ends: list[Callable[[], None]] = []
        """Functions that end all waiting, called from another thread."""
        self._first_nodes = {node["NodeID"] for node in list_nodes() if node["Alive"]}
        self._last_item_s = monotonic()
        self._message = ""
        self._is_closed = Event()
        self._thread = Thread(target=self._run, name="stagepipe-ray-nodes", daemon=True)

    def note_item(self) -> None:
        """Note that an item has arrived, or that the run now waits for the next one."""
        self._last_item_s = monotonic()

    def note_pause(self) -> None:
        """Note that the consumer has an item, so nothing is awaited until `note_item`."""
        self._last_item_s = math.inf

    def raise_if_short(self) -> None:
        """Raise RunError, with the lost node and the remaining CPUs, if the watch has ended the execution."""
        if self._message:
            raise RunError(self._message)

    def _run(self) -> None:
        short_since_s: float | None = None
        while not self._is_closed.wait(_POLL_INTERVAL_S):
            message = self._describe_shortage()
            if not message:
                short_since_s = None
                continue
            short_since_s = short_since_s or monotonic()
            if monotonic() - max(short_since_s, self._last_item_s) >= _PATIENCE_S:
                self._message = message
                for end in self.ends:
                    end()
                return

    def _describe_shortage(self) -> str:
        """Return "" if the head does not answer: Ray reports that to the thread that waits for an item."""
        try:
            nodes = self._list_nodes()
            displaced = [] if all(node["Alive"] for node in nodes) else self._list_displaced()
            return describe_shortage(nodes, self._first_nodes, displaced)
        except Exception:  # noqa: BLE001 - Ray may raise any type
            return ""

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread."""
        self._is_closed.set()
        self._thread.join()


def describe_shortage(nodes: Sequence[dict[str, Any]], first_nodes: set[str], displaced: Sequence[str]) -> str:
    """Return an error message if a node of `first_nodes` is lost and its workers have no place; otherwise "". Pure.

    >>> lost = {"NodeID": "b", "Alive": False, "NodeManagerAddress": "10.0.0.2", "Resources": {}}
    >>> left = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 2.0}}
    >>> describe_shortage([left, lost], {"a", "b"}, [])
    ''
    >>> describe_shortage([left, lost], {"a", "b"}, ["resize"]).partition(";")[0]
    'engine: ray: a node was lost (10.0.0.2), and the others, with 2 CPUs, have no room for its workers of resize'
    """
    lost = [node for node in nodes if not node["Alive"] and node["NodeID"] in first_nodes]
    if not lost or not displaced:
        return ""
    cpus = sum(node["Resources"].get("CPU", 0.0) for node in nodes if node["Alive"])
    names = ", ".join(str(node["NodeManagerAddress"]) for node in lost)
    return (
        f"engine: ray: a node was lost ({names}), and the others, with {cpus:g} CPUs, have no room for its "
        f"workers of {', '.join(displaced)}; run it with fewer `workers`, or with smaller `resources`: --resume "
        "continues after the written items"
    )


_SENDER_METRICS: Final = {
    "blocks": ("num_task_outputs_generated", 1),
    "block_bytes": ("bytes_task_outputs_generated", 1),
    "put_ns": ("block_serialization_time_s", 10**9),
    "held_ns": ("task_output_backpressure_time_s", 10**9),
}
"""Metrics of the operator before a hop: our field, Ray's field (`OpRuntimeMetrics`), and the unit factor."""
_RECEIVER_METRICS: Final = {
    "wait_ns": ("task_scheduling_time_s", 10**9),
    "moved_bytes": ("bytes_inputs_of_task_locality_miss_tasks", 1),
    "spilled_bytes": ("obj_store_mem_spilled", 1),
}
"""Metrics of the operator after a hop."""
_STORE_COUNTERS: Final = {
    "spilled_bytes": ("spilled_bytes_total", 1),
    "spill_ns": ("spill_time_total_s", 10**9),
    "restored_bytes": ("restored_bytes_total", 1),
    "restore_ns": ("restore_time_total_s", 10**9),
}
"""Counters of a node's object store since its start: our field, Ray's field (`ObjectStoreStats`), the unit factor."""
_NODE_ID_CHARACTERS: Final = 8
_MAX_THREADS: Final = 32
"""Maximum number of nodes asked at the same time; each answer takes some milliseconds."""


class StoreStatistics:
    """Ray's counters of a run, summed over epochs. `hop_count` is the number of processes that run on Ray."""

    def __init__(self, hop_count: int) -> None:
        """Read the current counters of the nodes as the baseline."""
        self.hop_count = hop_count
        self._sums: list[dict[str, int]] = [{} for _ in range(hop_count)]
        self._executor: Any = None
        self._nodes_before: Mapping[str, StoreNodeReport] = read_nodes()
        self._nodes: tuple[StoreNodeReport, ...] = ()

    def begin_epoch(self, executor: Any) -> None:
        """Read the counters of this executor from now on."""
        self._executor = executor

    def end_epoch(self) -> None:
        """Add the counters of the executor, and ask the nodes. Call it while Ray is connected."""
        self._sums = self._add_executor()
        self._executor = None
        self._nodes = tuple(
            subtract_node(node, self._nodes_before.get(name)) for name, node in sorted(read_nodes().items())
        )

    def add_block(self, get_ns: int, metadata: Any, reference: Any, own_node: str) -> None:
        """Count a block that this process fetched in `get_ns`. `metadata` is Ray's."""
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
        """Return the hops through the object store, in plan order."""
        return [StoreHopReport(**sums) for sums in self._add_executor()]

    @property
    def nodes(self) -> tuple[StoreNodeReport, ...]:
        """The nodes at the end of the last epoch, with the counters of their stores since the start of the run."""
        return self._nodes

    def _add_executor(self) -> list[dict[str, int]]:
        sums = [dict(each) for each in self._sums]
        operators = find_operators(self._executor)
        if len(operators) != self.hop_count:  # Ray has fused two operators, so counters belong to no single process
            return sums
        for index, operator in enumerate(operators):
            _add(sums[index], read_metrics(operator, _SENDER_METRICS))
            if index:
                _add(sums[index - 1], read_metrics(operator, _RECEIVER_METRICS))
        return sums


def find_operators(executor: Any) -> list[Any]:
    """Return the operators that call functions, starting at the source."""
    topology = getattr(executor, "_topology", None) or {}
    return [operator for operator in topology if getattr(operator, "input_dependencies", None)]


def read_metrics(operator: Any, fields: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """Return the metrics of an operator that this version of Ray has.

    `fields` maps our name to Ray's name and the unit factor.
    """
    metrics = getattr(operator, "metrics", None)
    return _scale({name: getattr(metrics, field_name, None) for name, (field_name, _) in fields.items()}, fields)


def read_nodes() -> dict[str, StoreNodeReport]:
    """Return the nodes of the cluster that answer, with the counters of their stores since their start."""
    try:
        import ray
        from ray._private.internal_api import node_stats

        nodes = [node for node in ray.nodes() if node["Alive"]]
    except Exception:  # noqa: BLE001 - Ray's internals: a run works without these counters
        return {}

    def read(node: Any) -> StoreNodeReport | None:
        with suppress(Exception):  # the node has just died, or this version answers differently
            stats = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], include_memory_info=False)
            return make_node(node, stats.store_stats)
        return None

    if not nodes:
        return {}
    with ThreadPoolExecutor(min(len(nodes), _MAX_THREADS)) as pool:
        return {node.node: node for node in pool.map(read, nodes) if node is not None}


def make_node(node: Mapping[str, Any], store: Any) -> StoreNodeReport:
    """Return a node with the counters of its store, 0 for counters that this version of Ray does not have."""
    resources = node["Resources"]
    counters = {name: getattr(store, field_name, None) for name, (field_name, _) in _STORE_COUNTERS.items()}
    return StoreNodeReport(
        node=str(node["NodeID"])[:_NODE_ID_CHARACTERS],
        cpus=float(resources.get("CPU", 0.0)),
        store_bytes=int(resources.get("object_store_memory", 0)),
        **_scale(counters, _STORE_COUNTERS),
    )


def subtract_node(node: StoreNodeReport, before: StoreNodeReport | None) -> StoreNodeReport:
    """Return a node with the counters of its store since `before`; None means that the node joined during the run."""
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
    """Return whether Ray wrote a block to disk, or None if unknown."""
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


def iter_blocks(dataset: Any, statistics: StoreStatistics, watch: NodeWatch) -> Generator[Any, None, None]:
    """Yield the blocks of a Dataset as tables, and end its operators with the iteration.

    Raises RayError for a block that Ray could not make, and RunError if the watch has ended the operators.
    """
    import ray

    bundles, executor = start_execution(dataset)
    statistics.begin_epoch(executor)
    own_node = ray.get_runtime_context().get_node_id()
    watch.ends.append(lambda: _end(executor))
    try:
        watch.raise_if_short()  # the watch may have found a shortage before it could end these operators
        for bundle in bundles:
            for reference, metadata in zip(bundle.block_refs, bundle.metadata, strict=True):
                started_ns = perf_counter_ns()
                table = ray.get(reference)
                statistics.add_block(perf_counter_ns() - started_ns, metadata, reference, own_node)
                yield table
                del table
        watch.raise_if_short()
    finally:
        _end(executor)
        statistics.end_epoch()


def _end(executor: Any) -> None:
    """End the operators; does nothing if all blocks have arrived."""
    stop = getattr(executor, "shutdown", None)
    if stop is not None:
        stop(force=True)


def start_execution(dataset: Any) -> tuple[Iterator[Any], Any]:
    """Start a Dataset. Return its bundles of blocks and Ray's executor, or None if this version hides the executor."""
    execute = getattr(dataset, "_execute_to_iterator", None)
    if execute is None:
        return dataset.iter_internal_ref_bundles(), None
    bundles, *_, executor = execute()
    return bundles, executor
