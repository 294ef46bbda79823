"""stagepipe behind the interface of a contestant, through its public face alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import stagepipe
from hop_.payload import Item

CONFIGS: dict[str, tuple[str, bool]] = {
    "stagepipe copied": ("Copied", False),
    "stagepipe loaned": ("Loaned", False),
    "stagepipe filled": ("Filled", False),
    "stagepipe passed on": ("Loaned", True),
}
"""The source of each contestant, and whether a middle stage passes its items on."""


def config(name: str, nbytes: int) -> dict[str, Any]:
    """The pipeline's config: nothing in it but what must be."""
    source, passes = CONFIGS[name]
    plain: dict[str, Any] = {
        "name": name.replace(" ", "-"),
        "source": {"uses": f"hop_.feeds.{source}", "with": {"nbytes": nbytes}},
    }
    if passes:
        plain["stages"] = [{"name": "pass_on", "uses": "hop_.feeds.pass_on"}]
    return plain


_LARGE_BYTES = 256 << 10
_ROOMY, _WINDOW = 512, 16
"""How many small and large items stagepipe has under way by itself: what its window admits, and a pipe of packets."""


class PipelinePeer:
    """A pipeline that runs for ever; the caller takes items when it likes, and backpressure holds the rest."""

    def __init__(self, name: str, nbytes: int) -> None:
        """Start it."""
        self.name, self.filled = name, CONFIGS[name][0] != "Loaned"
        self.warm = _ROOMY + 20 if nbytes < _LARGE_BYTES else _WINDOW + 4
        self.hops: list[dict[str, Any]] = []
        self.timing_ns_per_hop = 0
        self._pipeline = stagepipe.Pipeline(config(name, nbytes))
        self._pipeline.start()
        self._items: Iterator[Item] = iter(self._pipeline)
        self.receive: Callable[[], Item] = self._items.__next__

    def close(self) -> None:
        """End it; what its report says of the hops stays in `hops`."""
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
