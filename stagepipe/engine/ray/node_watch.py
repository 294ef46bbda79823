"""Ends a run that waits for CPUs that a lost node has taken along: Ray would wait for ever. A thread of the caller."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, Self

from stagepipe.core import RunError

_POLL_INTERVAL_S: Final = 1.0
_PATIENCE_S: Final = 20.0
"""Without an item for so long. What runs on the nodes that are left goes on; a cluster may also replace the node."""


class NodeWatch:
    """Watches the nodes of the cluster while items are awaited. A context manager.

    `list_nodes` returns Ray's description of all nodes, dead ones too, and `list_displaced` the processes of which a
    worker has no place. Where a node is lost and there are such, and nothing has come for 20 s, all of `ends` are
    called, and `raise_if_short` raises.
    """

    def __init__(
        self, list_nodes: Callable[[], Sequence[dict[str, Any]]], list_displaced: Callable[[], Sequence[str]]
    ) -> None:
        """Take the nodes that live now as those of the run."""
        self._list_nodes = list_nodes
        self._list_displaced = list_displaced
        self.ends: list[Callable[[], None]] = []
        """What ends those that wait, called from another thread."""
        self._first_nodes = {node["NodeID"] for node in list_nodes() if node["Alive"]}
        self._last_item_s = monotonic()
        self._message = ""
        self._is_closed = Event()
        self._thread = Thread(target=self._run, name="stagepipe-ray-nodes", daemon=True)

    def note_item(self) -> None:
        """Note that an item has come, or that the next one is awaited."""
        self._last_item_s = monotonic()

    def note_pause(self) -> None:
        """Note that nothing is awaited, until `note_item`: the consumer has an item."""
        self._last_item_s = math.inf

    def raise_if_short(self) -> None:
        """Raise RunError, with the node and the sum, if the execution was ended."""
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
        """Return "" if the head does not answer: Ray tells this to the thread that waits for an item."""
        try:
            nodes = self._list_nodes()
            displaced = [] if all(node["Alive"] for node in nodes) else self._list_displaced()
            return describe_shortage(nodes, self._first_nodes, displaced)
        except Exception:  # noqa: BLE001 - of whatever type
            return ""

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._is_closed.set()
        self._thread.join()


def describe_shortage(nodes: Sequence[dict[str, Any]], first_nodes: set[str], displaced: Sequence[str]) -> str:
    """Return an error if a node of `first_nodes` is lost and workers of it have no place; otherwise "". Pure.

    >>> lost = {"NodeID": "b", "Alive": False, "NodeManagerAddress": "10.0.0.2", "Resources": {}}
    >>> left = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 2.0}}
    >>> describe_shortage([left, lost], {"a", "b"}, [])
    ''
    >>> describe_shortage([left, lost], {"a", "b"}, ["resize"]).partition(";")[0]
    'engine: ray: a node was lost (10.0.0.2), and the others, of 2 CPUs in all, have no room for its workers of resize'
    """
    lost = [node for node in nodes if not node["Alive"] and node["NodeID"] in first_nodes]
    if not lost or not displaced:
        return ""
    cpus = sum(node["Resources"].get("CPU", 0.0) for node in nodes if node["Alive"])
    names = ", ".join(str(node["NodeManagerAddress"]) for node in lost)
    return (
        f"engine: ray: a node was lost ({names}), and the others, of {cpus:g} CPUs in all, have no room for its "
        f"workers of {', '.join(displaced)}; run it with fewer `workers`, or with smaller `resources`: --resume goes "
        "on from what is written"
    )
