"""Keeps the costs that a probe has measured in the user's cache folder: the next run with `auto` needs no probe.

They hold for one config and the code of its stages on this machine, for a day. In the caller's process.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import msgspec

from stagepipe.config import NoFileError, find_target_files
from stagepipe.engine.config_cache import MAX_AGE_S, ConfigCache
from stagepipe.forecast import PipelineCosts, fits_plan
from stagepipe.plan import Plan, split_source
from stagepipe.spec import PipelineSpec


@dataclass(frozen=True)
class KeptCosts:
    """Costs, and when they were measured, in seconds since 1970."""

    measured_at_s: float
    costs: PipelineCosts


class CostCache:
    """The kept costs of one config. Workers and `auto` make no difference; stages with `fuse: true` do."""

    def __init__(self, spec: PipelineSpec, plan: Plan) -> None:
        """Nothing is read yet."""
        self._plan = plan
        self._cache = None
        with contextlib.suppress(NoFileError, OSError):
            files = [(str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in find_target_files(spec)]
            spec = split_source(spec)
            fused = [stage.name for stage in spec.stages if stage.fuse is True]
            sinks = [sink.target.label for sink in spec.sinks]
            self._cache = ConfigCache("costs", spec, None, plan.shard, (files, fused, sinks), with_contents=True)

    def load(self) -> KeptCosts | None:
        """Return the costs; None if there are none of the last day, or the file is damaged."""
        if self._cache is None:
            return None
        with contextlib.suppress(ValueError, RecursionError):  # msgspec's errors are ValueErrors
            kept = msgspec.json.decode(self._cache.read(), type=KeptCosts)
            if 0 <= time.time() - kept.measured_at_s <= MAX_AGE_S and fits_plan(kept.costs, self._plan):
                return kept
        return None

    def save(self, costs: PipelineCosts) -> None:
        """Keep the costs. They replace earlier ones."""
        if self._cache is not None:
            self._cache.write(msgspec.json.encode(KeptCosts(time.time(), costs)))


def find_cpu_costs(spec: PipelineSpec, plan: Plan) -> dict[str, float]:
    """Return the CPU time of each process per item of the source, in ns, as a probe of the last day has measured it.

    Empty where there was none of this config and code, or where it did not reach every process.
    """
    kept = CostCache(spec, plan).load()
    if kept is None or not all(process.is_measured for process in kept.costs.processes):
        return {}
    return {process.name: process.cpu_ns for process in kept.costs.processes}
