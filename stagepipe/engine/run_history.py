"""Keeps the rates of finished runs of a config in the user's cache folder, so that a report knows whether a step paid.

A record holds the rate of each layout (workers and fusion) of one config on this machine, for a day. Nothing depends on
it but advice. In the caller's process, at the end of a run.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import msgspec

from stagepipe.engine.config_cache import MAX_AGE_S, ConfigCache
from stagepipe.plan import Shard
from stagepipe.report import PastRun
from stagepipe.spec import PipelineSpec

_MAX_RUNS = 16
"""Layouts in a record, the latest last."""


@dataclass(frozen=True)
class _Entry:
    ended_at_s: float  # since 1970
    run: PastRun


class RunHistory:
    """The earlier runs of one config, whatever its workers and fusion."""

    def __init__(self, spec: PipelineSpec, limit: int | None, shard: Shard) -> None:
        """Nothing is read yet."""
        self._cache = ConfigCache("runs", spec, limit, shard)

    def load(self) -> tuple[PastRun, ...]:
        """Return the runs of the last day, the latest last; none if the record is missing or damaged."""
        return tuple(entry.run for entry in self._load_entries())

    def add(self, run: PastRun) -> None:
        """Add a run. It replaces an earlier one with the same layout."""
        entries = [entry for entry in self._load_entries() if entry.run.layout != run.layout]
        self._cache.write(msgspec.json.encode([*entries[1 - _MAX_RUNS :], _Entry(time.time(), run)]))

    def _load_entries(self) -> list[_Entry]:
        now_s = time.time()
        with contextlib.suppress(ValueError, RecursionError):  # msgspec's errors are ValueErrors
            entries = msgspec.json.decode(self._cache.read(), type=list[_Entry])
            return [entry for entry in entries if 0 <= now_s - entry.ended_at_s <= MAX_AGE_S]
        return []
