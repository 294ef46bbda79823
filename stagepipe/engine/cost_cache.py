"""The costs that a probe has measured, kept in the user's cache folder for the next `auto`.

They hold for a day, for one config, whatever its workers and fusion, and for the code of its stages on this machine.
Nothing depends on them but advice and the first layout: what cannot be read or written is ignored.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, fields
from typing import Final

import msgspec

from stagepipe.calibration import make_cache_key
from stagepipe.config import ModuleLocator
from stagepipe.core import VERSION, KeptFiles, import_paths
from stagepipe.engine.identity import TooManyFilesError, describe_code, describe_config, find_code_files, hash_lines
from stagepipe.fingerprint import get_unknown_reason
from stagepipe.forecast import PipelineCosts, fits_plan
from stagepipe.plan import Plan, split_source
from stagepipe.spec import PipelineSpec

MAX_AGE_S = 24 * 3600
"""Age after which what a file holds is no longer used."""
_MAX_FILE_BYTES = 1 << 18

_LAYOUT_KEYS = frozenset({"name", "target", "workers", "worker_bounds", "fuse", "index"})
"""Fields of a stage that are not part of the key: the layout, and what the description holds already."""

_KEPT: Final = KeptFiles("costs")


@dataclass(frozen=True)
class KeptCosts:
    """Costs, and when they were measured, in seconds since 1970."""

    measured_at_s: float
    costs: PipelineCosts


class CostCache:
    """The kept costs of one config. Workers and `auto` make no difference; stages with `fuse: true` do."""

    def __init__(self, spec: PipelineSpec, plan: Plan) -> None:
        """Nothing is read yet. There are none for an object without a fingerprint, or for code of too many files."""
        self._plan = plan
        self._name = ""
        with contextlib.suppress(TooManyFilesError, OSError):
            lines = describe_code(find_code_files(spec), ModuleLocator(import_paths(spec.config_dir)))
            spec = split_source(spec)
            lines |= describe_config(spec, None, plan.shard)
            if not any(map(get_unknown_reason, lines.values())):
                self._name = f"{hash_lines(lines | _describe_settings(spec))}.json"

    def load(self) -> KeptCosts | None:
        """Return the costs; None if there are none of the last day, or the file is damaged or another user's."""
        if not self._name:  # the folder itself would be opened
            return None
        with contextlib.suppress(OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            fd = os.open(_KEPT.get_path(self._name), os.O_RDONLY | os.O_NONBLOCK)  # a pipe there does not block
            with os.fdopen(fd, "rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1) if os.fstat(fd).st_uid == os.geteuid() else b""
            kept = msgspec.json.decode(content, type=KeptCosts)
            if 0 <= time.time() - kept.measured_at_s <= MAX_AGE_S and fits_plan(kept.costs, self._plan):
                return kept
        return None

    def save(self, costs: PipelineCosts) -> None:
        """Keep the costs. They replace earlier ones. Only their owner may read them."""
        if self._name:
            content = msgspec.json.encode(KeptCosts(time.time(), costs))
            with contextlib.suppress(OSError):
                _KEPT.write(self._name, lambda unfinished: unfinished.write_bytes(content))


def _describe_settings(spec: PipelineSpec) -> dict[str, str]:
    """Describe what else changes the costs: the settings of the processes, and the machine."""
    stages = [
        {field.name: getattr(stage, field.name) for field in fields(stage) if field.name not in _LAYOUT_KEYS}
        for stage in spec.stages
    ]
    whole = (spec.name, spec.config_dir, spec.window, spec.memory_bytes, spec.start, spec.transport)
    fused = [stage.name for stage in spec.stages if stage.fuse is True]
    sinks = [sink.target.label for sink in spec.sinks]
    return {"settings": repr((whole, stages, fused, sinks)), "machine": make_cache_key(VERSION)}


def find_cpu_costs(spec: PipelineSpec, plan: Plan) -> dict[str, float]:
    """Return the CPU time of each process per item of the source, in ns, as a probe of the last day has measured it.

    Empty where there was none of this config and code, or where it did not reach every process.
    """
    kept = CostCache(spec, plan).load()
    if kept is None or not all(process.is_measured for process in kept.costs.processes):
        return {}
    return {process.name: process.cpu_ns for process in kept.costs.processes}
