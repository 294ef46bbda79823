"""Keeps the rates of finished runs of a config in the user's cache folder, so that a report knows whether a step paid.

A record holds the rate of each layout (workers and fusion) of one config on this machine, for a day. Nothing depends on
it but advice: what cannot be read or written is ignored. In the caller's process, at the end of a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from stagepipe.calibration import get_cache_dir, make_cache_key
from stagepipe.core import VERSION
from stagepipe.engine.config_description import describe_config
from stagepipe.plan import Shard
from stagepipe.report import PastRun
from stagepipe.spec import PipelineSpec

_MAX_AGE_S = 24 * 3600
_MAX_RUNS = 16
"""Layouts in a record, the latest last."""
_MAX_FILES = 256
"""Configs with a record. The oldest ones are deleted."""
_MAX_FILE_BYTES = 1 << 18

_LAYOUT_KEYS = frozenset({"name", "target", "workers", "fuse", "index", "syntax"})
"""Fields of a stage that are not part of the key: the layout, and what the description holds already."""


@dataclass(frozen=True)
class _Entry:
    ended_at_s: float  # since 1970
    run: PastRun


class RunHistory:
    """The earlier runs of one config, whatever its workers and fusion."""

    def __init__(self, spec: PipelineSpec, limit: int | None, shard: Shard) -> None:
        """Nothing is read yet."""
        description = describe_config(spec, limit, shard, with_contents=False)
        stages = [
            {field.name: getattr(stage, field.name) for field in fields(stage) if field.name not in _LAYOUT_KEYS}
            for stage in spec.stages
        ]
        whole = (spec.name, spec.config_dir, spec.window, spec.memory_bytes, spec.start, spec.transport)
        text = json.dumps(description, sort_keys=True) + repr((whole, stages, make_cache_key(VERSION)))
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        self._path = get_cache_dir() / "runs" / f"{key}.json"

    def load(self) -> tuple[PastRun, ...]:
        """Return the runs of the last day, the latest last; none if the record is missing or damaged."""
        return tuple(entry.run for entry in self._load_entries())

    def add(self, run: PastRun) -> None:
        """Add a run. It replaces an earlier one with the same layout."""
        entries = [entry for entry in self._load_entries() if entry.run.layout != run.layout]
        entries = [*entries[1 - _MAX_RUNS :], _Entry(time.time(), run)]
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace_file(self._path, msgspec.json.encode(entries))
            _delete_oldest_files(self._path.parent)

    def _load_entries(self) -> list[_Entry]:
        now_s = time.time()
        with contextlib.suppress(OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
            with self._path.open("rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
            entries = msgspec.json.decode(content, type=list[_Entry])
            return [entry for entry in entries if 0 <= now_s - entry.ended_at_s <= _MAX_AGE_S]
        return []


def _replace_file(path: Path, content: bytes) -> None:
    """Write a file whole, so that a reader never sees half of it. Only its owner may read it."""
    fd, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(fd, "wb") as file:
        file.write(content)
    Path(name).replace(path)


def _delete_oldest_files(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in files[:-_MAX_FILES]:
        path.unlink(missing_ok=True)
