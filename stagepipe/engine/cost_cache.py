"""Files about one config each in the user's cache folder: the costs that a probe has measured, for the next `auto`.

They hold for one config, whatever its workers and fusion, and the code of its stages on this machine, for a day.
Nothing depends on them but advice and the first layout: what cannot be read or written is ignored. In the caller's
process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from stagepipe.calibration import make_cache_key
from stagepipe.config import NoFileError, find_target_files
from stagepipe.core import VERSION, get_cache_dir, replace_when_written
from stagepipe.engine.state import describe_config
from stagepipe.forecast import PipelineCosts, fits_plan
from stagepipe.plan import Plan, Shard, split_source
from stagepipe.spec import PipelineSpec

MAX_AGE_S = 24 * 3600
"""Age after which what a file holds is no longer used."""
_MAX_FILES = 256
"""Configs with a file, in each folder. The oldest files are deleted."""
_MAX_FILE_BYTES = 1 << 18

_LAYOUT_KEYS = frozenset({"name", "target", "workers", "min_workers", "fuse", "index"})
"""Fields of a stage that are not part of the key: the layout, and what the description holds already."""


class ConfigCache:
    """The file of one config in `folder`. Its name changes with the config, `more`, the machine and the version."""

    def __init__(
        self,
        folder: str,
        spec: PipelineSpec,
        limit: int | None,
        shard: Shard,
        more: object = (),
        *,
        with_contents: bool = False,
    ) -> None:
        """Nothing is read yet. `with_contents`: objects from Python count by what they hold, not by name alone."""
        description = describe_config(spec, limit, shard, with_contents=with_contents)
        stages = [
            {field.name: getattr(stage, field.name) for field in fields(stage) if field.name not in _LAYOUT_KEYS}
            for stage in spec.stages
        ]
        whole = (spec.name, spec.config_dir, spec.window, spec.memory_bytes, spec.start, spec.transport)
        text = json.dumps(description, sort_keys=True) + repr((whole, stages, make_cache_key(VERSION), more))
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        self._path = get_cache_dir() / folder / f"{key}.json"

    def read(self) -> bytes:
        """Return the content; nothing if it is missing or not a file of this user. At most a quarter of a megabyte."""
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that someone put there does not block
            with os.fdopen(fd, "rb") as file:
                if os.fstat(fd).st_uid == os.geteuid():
                    return file.read(_MAX_FILE_BYTES + 1)
        return b""

    def write(self, content: bytes) -> None:
        """Replace the content. Only its owner may read it."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replace_when_written(self._path, mode=0o600) as unfinished:
                unfinished.write_bytes(content)
            _delete_oldest_files(self._path.parent)


def _delete_oldest_files(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in files[:-_MAX_FILES]:
        path.unlink(missing_ok=True)


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
