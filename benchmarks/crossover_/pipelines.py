"""stagepipe behind the interface of a contestant, through its public face alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import stagepipe
from crossover_.payload import Array

MODES = {"stagepipe pipe": "pipe", "stagepipe shared_memory": "shared_memory", "stagepipe auto": "auto"}


def config(name: str, d: int) -> dict[str, Any]:
    """The pipeline's config: a source in a process of its own, the caller behind it, and the mode."""
    return {
        "name": name.replace(" ", "-"),
        "source": {"uses": "crossover_.feeds.Arrays", "with": {"d": d}},
        "transport": {"mode": MODES[name]},
    }


class PipelinePeer:
    """A pipeline whose worker lives on from one repetition to the next; a repetition is an epoch."""

    def __init__(self, name: str, d: int) -> None:
        """Start it."""
        self._pipeline = stagepipe.Pipeline(config(name, d))
        self._pipeline.start()
        self.repetition: Callable[[], Iterator[Array]] = self._repetition
        self.told: dict[str, Any] = {}

    def _repetition(self) -> Iterator[Array]:
        return iter(self._pipeline)

    def close(self) -> None:
        """End it; what its report says of the hop stays in `told`."""
        self._pipeline.close()
        (hop,) = self._pipeline.report().hops
        self.told = {
            "mode": hop.transport.mode,
            "threshold_bytes": hop.transport.threshold_bytes,
            "reason": hop.transport.reason,
            "messages": {kind: getattr(hop.messages, kind) for kind in hop.messages.__struct_fields__},
            "cost_ns": {"p50": hop.cost_ns.p50, "mean": hop.cost_ns.mean},
        }
