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

    `list_nodes` returns Ray's description of all nodes, dead ones too. Where the CPUs of those that live are fewer than
    `needed_cpus`, and nothing has come for 20 s, all of `ends` are called, and `raise_if_short` raises.
    """

    def __init__(self, list_nodes: Callable[[], Sequence[dict[str, Any]]], needed_cpus: float) -> None:
        """Take the nodes that live now as those of the run."""
        self._list_nodes = list_nodes
        self._needed_cpus = needed_cpus
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
            message = describe_shortage(self._try_to_list_nodes(), self._first_nodes, self._needed_cpus)
            if not message:
                short_since_s = None
                continue
            short_since_s = short_since_s or monotonic()
            if monotonic() - max(short_since_s, self._last_item_s) >= _PATIENCE_S:
                self._message = message
                for end in self.ends:
                    end()
                return

    def _try_to_list_nodes(self) -> Sequence[dict[str, Any]]:
        """Return none if the head does not answer: Ray tells this to the thread that waits for an item."""
        try:
            return self._list_nodes()
        except Exception:  # noqa: BLE001 - of whatever type
            return ()

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._is_closed.set()
        self._thread.join()


def describe_shortage(nodes: Sequence[dict[str, Any]], first_nodes: set[str], needed_cpus: float) -> str:
    """Return an error if a node of `first_nodes` is lost and the CPUs that are left are too few; otherwise "". Pure.

    >>> lost = {"NodeID": "b", "Alive": False, "NodeManagerAddress": "10.0.0.2", "Resources": {}}
    >>> left = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 2.0}}
    >>> describe_shortage([left, lost], {"a", "b"}, 2.0)
    ''
    >>> describe_shortage([left, lost], {"a", "b"}, 3.5).partition(";")[0]
    'engine: ray: a node was lost (10.0.0.2), and 2 CPUs are left, of 3.5 that the run needs'
    """
    living = [node for node in nodes if node["Alive"]]
    lost = [node for node in nodes if not node["Alive"] and node["NodeID"] in first_nodes]
    cpus = sum(node["Resources"].get("CPU", 0.0) for node in living)
    if not lost or cpus >= needed_cpus:
        return ""
    names = ", ".join(str(node["NodeManagerAddress"]) for node in lost)
    return (
        f"engine: ray: a node was lost ({names}), and {cpus:g} CPUs are left, of {needed_cpus:g} that the run needs; "
        "run it with fewer `workers`, or with a smaller `resources: {cpus: ...}`: --resume goes on from what is written"
    )
