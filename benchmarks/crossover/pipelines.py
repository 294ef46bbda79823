"""stagepipe behind the interface of a contestant, through its public API only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import stagepipe
from benchmarks.crossover.payload import Array

MODES = {"stagepipe pipe": "pipe", "stagepipe shared_memory": "shared_memory", "stagepipe auto": "auto"}


def config(name: str, d: int) -> dict[str, Any]:
    """Return the pipeline's config: a source in its own process, read by the caller, and the mode."""
    return {
        "name": name.replace(" ", "-"),
        "source": {"uses": "benchmarks.crossover.payload.Arrays", "with": {"d": d}},
        "transport": {"mode": MODES[name]},
    }


class PipelinePeer:
    """A pipeline whose worker stays alive between repetitions; a repetition is an epoch."""

    def __init__(self, name: str, d: int) -> None:
        """Start the pipeline."""
        self._pipeline = stagepipe.Pipeline(config(name, d))
        self._pipeline.start()
        self.repetition: Callable[[], Iterator[Array]] = self._repetition
        self.hop_summary: dict[str, Any] = {}

    def _repetition(self) -> Iterator[Array]:
        return iter(self._pipeline)

    def close(self) -> None:
        """Close the pipeline and keep what its report says about the hop in `hop_summary`."""
        self._pipeline.close()
        (hop,) = self._pipeline.report().hops
        self.hop_summary = {
            "mode": hop.transport.mode,
            "threshold_bytes": hop.transport.threshold_bytes,
            "reason": hop.transport.reason,
            "messages": {kind: getattr(hop.messages, kind) for kind in hop.messages.__struct_fields__},
            "cost_ns": {"p50": hop.cost_ns.p50, "mean": hop.cost_ns.mean},
        }
