"""The two tables of an object store, as text: hops through it, and the stores of the nodes. Pure.

Terminal and HTML draw the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from stagepipe.core import format_bytes, format_ns
from stagepipe.report.model import Report

StoreColumn = tuple[str, list[str]]
"""A heading, and a cell for each row."""


def _format_count(count: float) -> str:
    return f"{count:,g}"


_HOP_COLUMNS: Final[Sequence[tuple[str, str, Callable[[int], str]]]] = (
    ("blocks", "blocks", _format_count),
    ("bytes", "block_bytes", format_bytes),
    ("put", "put_ns", format_ns),
    ("waited", "wait_ns", format_ns),
    ("held", "held_ns", format_ns),
    ("get", "get_ns", format_ns),
    ("from other nodes", "moved_bytes", format_bytes),
    ("spilled", "spilled_bytes", format_bytes),
)
"""Heading, and field of `StoreHopReport`."""
_NODE_COLUMNS: Final[Sequence[tuple[str, str, Callable[[int], str]]]] = (
    ("CPUs", "cpus", _format_count),
    ("store", "store_bytes", format_bytes),
    ("spilled", "spilled_bytes", format_bytes),
    ("spill time", "spill_ns", format_ns),
    ("restored", "restored_bytes", format_bytes),
    ("restore time", "restore_ns", format_ns),
)
"""Heading, and field of `StoreNodeReport`."""


def make_store_hop_columns(report: Report, arrow: str = "→") -> list[StoreColumn]:
    """Return the columns of the hops through the object store; none without such a hop.

    A figure that the store does not have is empty, and a column without figures is left out.
    """
    hops = [(f"{hop.source} {arrow} {hop.target}", hop.store) for hop in report.hops if hop.store is not None]
    columns: list[StoreColumn] = [("hop", [name for name, _ in hops])]
    for heading, field, format_value in _HOP_COLUMNS:
        values = [getattr(store, field) for _, store in hops]
        if any(value is not None for value in values):
            columns.append((heading, ["" if value is None else format_value(value) for value in values]))
    return columns if len(columns) > 1 else []


def make_store_node_columns(report: Report) -> list[StoreColumn]:
    """Return the columns of the nodes of a cluster; none for a run on one machine."""
    nodes = report.store_nodes
    if not nodes:
        return []
    return [
        ("node", [node.node for node in nodes]),
        *(
            (heading, [format_value(getattr(node, field)) for node in nodes])
            for heading, field, format_value in _NODE_COLUMNS
        ),
    ]
