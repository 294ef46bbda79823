"""The measured costs of a probe, kept in the user's cache folder for the next `auto`.

They are valid for a day, for one config (workers and fusion may differ) and the code of its stages on this machine.
Only advice and the first layout depend on them, so read and write errors are ignored.
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
"""Age after which kept costs are no longer used."""
_MAX_FILE_BYTES = 1 << 18

_LAYOUT_KEYS = frozenset({"name", "target", "workers", "worker_bounds", "fuse", "index"})
"""Fields of a stage that are left out of the key: the layout, and fields that the description already contains."""

_KEPT: Final = KeptFiles("costs")


@dataclass(frozen=True)
class KeptCosts:
    """Costs, and the time of their measurement in seconds since 1970."""

    measured_at_s: float
    costs: PipelineCosts


class CostCache:
    """The kept costs of one config. Workers and `auto` do not matter; stages with `fuse: true` do."""

    def __init__(self, spec: PipelineSpec, plan: Plan) -> None:
        """Compute the key. Without fingerprints of all objects, or with too many code files, nothing is kept."""
        self._plan = plan
        self._name = ""
        with contextlib.suppress(TooManyFilesError, OSError):
            lines = describe_code(find_code_files(spec), ModuleLocator(import_paths(spec.config_dir)))
            spec = split_source(spec)
            lines |= describe_config(spec, None, plan.shard)
            if not any(map(get_unknown_reason, lines.values())):
                self._name = f"{hash_lines(lines | _describe_settings(spec))}.json"

    def load(self) -> KeptCosts | None:
        """Return the costs, or None if there are none from the last day, or the file is damaged or another user's."""
        if not self._name:  # otherwise the path would be the folder
            return None
        with contextlib.suppress(OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            fd = os.open(_KEPT.get_path(self._name), os.O_RDONLY | os.O_NONBLOCK)  # a named pipe must not block
            with os.fdopen(fd, "rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1) if os.fstat(fd).st_uid == os.geteuid() else b""
            kept = msgspec.json.decode(content, type=KeptCosts)
            if 0 <= time.time() - kept.measured_at_s <= MAX_AGE_S and fits_plan(kept.costs, self._plan):
                return kept
        return None

    def save(self, costs: PipelineCosts) -> None:
        """Keep the costs, replacing earlier ones. Only their owner may read them."""
        if self._name:
            content = msgspec.json.encode(KeptCosts(time.time(), costs))
            with contextlib.suppress(OSError):
                _KEPT.write(self._name, lambda unfinished: unfinished.write_bytes(content))


def _describe_settings(spec: PipelineSpec) -> dict[str, str]:
    """Describe the other inputs of the costs: the settings of the processes, and the machine."""
    stages = [
        {field.name: getattr(stage, field.name) for field in fields(stage) if field.name not in _LAYOUT_KEYS}
        for stage in spec.stages
    ]
    whole = (spec.name, spec.config_dir, spec.window, spec.memory_bytes, spec.start, spec.transport)
    fused = [stage.name for stage in spec.stages if stage.fuse is True]
    sinks = [sink.target.label for sink in spec.sinks]
    return {"settings": repr((whole, stages, fused, sinks)), "machine": make_cache_key(VERSION)}


def find_cpu_costs(spec: PipelineSpec, plan: Plan) -> dict[str, float]:
    """Return the CPU time of each process per source item, in ns, from a probe of the last day.

    Returns an empty dict without a probe of this config and code, or if the probe did not reach every process.
    """
    kept = CostCache(spec, plan).load()
    if kept is None or not all(process.is_measured for process in kept.costs.processes):
        return {}
    return {process.name: process.cpu_ns for process in kept.costs.processes}
