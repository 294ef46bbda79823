"""stagepipe behind the interface of a contestant, through its public API only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import stagepipe
from benchmarks.hop.payload import Item

HEADER_ONLY = "stagepipe header only"
CONFIGS: dict[str, tuple[str, bool]] = {
    "stagepipe copied": ("Copied", False),
    "stagepipe filled": ("Filled", False),
    "stagepipe passed on": ("Filled", True),
    HEADER_ONLY: ("HeaderOnly", False),
}
"""The source of each contestant, and whether a middle stage passes its items on."""


def config(name: str, nbytes: int) -> dict[str, Any]:
    """Return the pipeline's config, with only the required keys."""
    source, has_stage = CONFIGS[name]
    document: dict[str, Any] = {
        "name": name.replace(" ", "-"),
        "source": {"uses": f"benchmarks.hop.feeds.{source}", "with": {"nbytes": nbytes}},
    }
    if has_stage:
        document["stages"] = [{"name": "pass_on", "uses": "benchmarks.hop.feeds.pass_on"}]
    return document


_LARGE_BYTES = 256 << 10
_SMALL_ITEM_WINDOW = 512
_LARGE_ITEM_WINDOW = 16
"""The small and large items that stagepipe has in flight by default: its window, and what a pipe of packets holds."""


class PipelinePeer:
    """A pipeline that runs forever. The caller takes items at any time; backpressure stops the producer meanwhile."""

    def __init__(self, name: str, nbytes: int) -> None:
        """Start the pipeline."""
        self.name, self.filled = name, name != HEADER_ONLY
        self.max_backlog = _SMALL_ITEM_WINDOW + 20 if nbytes < _LARGE_BYTES else _LARGE_ITEM_WINDOW + 4
        self.hops: list[dict[str, Any]] = []
        self.timing_ns_per_hop = 0
        self._pipeline = stagepipe.Pipeline(config(name, nbytes))
        self._pipeline.start()
        self._items: Iterator[Item] = iter(self._pipeline)
        self.receive: Callable[[], Item] = self._items.__next__

    def close(self) -> None:
        """Close the pipeline and keep what its report says about the hops in `hops`."""
        del self.receive
        self._items = iter(())
        self._pipeline.close()
        report = self._pipeline.report()
        self.timing_ns_per_hop = report.run.timing_overhead.ns_per_hop
        for hop in report.hops:
            phases = {name: getattr(hop.phases, name) for name in hop.phases.__struct_fields__}
            self.hops.append(
                {
                    "from": hop.source,
                    "to": hop.target,
                    "cost_ns": {"p50": hop.cost_ns.p50, "mean": hop.cost_ns.mean},
                    "phases_ns": {phase: {"p50": value.p50, "mean": value.mean} for phase, value in phases.items()},
                }
            )
