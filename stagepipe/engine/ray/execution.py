"""Executes the operators of an epoch: yields the blocks of the last one, and ends all. In the caller's process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from time import perf_counter_ns
from typing import Any

from stagepipe.engine.ray.node_watch import NodeWatch
from stagepipe.engine.ray.store_statistics import StoreStatistics


def iter_blocks(dataset: Any, statistics: StoreStatistics, watch: NodeWatch) -> Generator[Any, None, None]:
    """Yield the blocks of a Dataset, as tables, and end its operators with the iteration.

    Raises RayError for what Ray could not make, and the RunError of the watch if it has ended the operators.
    """
    import ray

    bundles, executor = start_execution(dataset)
    statistics.begin_epoch(executor)
    own_node = ray.get_runtime_context().get_node_id()
    watch.ends.append(lambda: _end(executor))
    try:
        watch.raise_if_short()  # it may have found out before it could end these
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
    """End the operators; does nothing if all blocks have come."""
    stop = getattr(executor, "shutdown", None)
    if stop is not None:
        stop(force=True)


def start_execution(dataset: Any) -> tuple[Iterator[Any], Any]:
    """Start a Dataset; return its bundles of blocks, and Ray's executor or None where this version hides it."""
    execute = getattr(dataset, "_execute_to_iterator", None)
    if execute is None:
        return dataset.iter_internal_ref_bundles(), None
    bundles, *_, executor = execute()
    return bundles, executor
