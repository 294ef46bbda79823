"""Defines a checked pipeline as frozen dataclasses: the output of `config` and of the builder, the input of `plan`.

Pure; used in every process. Durations are in ns, sizes in bytes; None means the default or `auto`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

TransportMode = Literal["auto", "pipe", "shared_memory"]


@dataclass(frozen=True)
class Target:
    """The code that a stage, source or sink runs: an import path (or an object, from Python) and its arguments.

    `arguments` may contain nested targets `{"uses": ..., "with": ...}` at any depth. The worker builds them, innermost
    first. A mapping with the key `uses` is always a nested target.

    >>> Target("pkg.ops.resize", {"size": 224}).label
    'pkg.ops.resize'
    """

    uses: str | Callable[..., Any] | object
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short name for messages: the import path, or the name of the object."""
        if isinstance(self.uses, str):
            return self.uses
        return getattr(self.uses, "__qualname__", type(self.uses).__name__)


@dataclass(frozen=True)
class BatchSpec:
    """Calls a stage with lists of up to `size` items. A call waits up to `max_wait_ns` for a full list."""

    size: int
    max_wait_ns: int = 20_000_000


@dataclass(frozen=True)
class StageSpec:
    """One entry of `stages`. `timeout_ns` limits one item, `start_timeout_ns` the start of a worker (10 minutes)."""

    name: str
    target: Target
    workers: int | Literal["auto"] = 1
    threads: int | None = None
    cpus: tuple[int, ...] | None = None
    device: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_ns: int | None = None
    start_timeout_ns: int = 600_000_000_000
    retries: int | None = None
    on_error: Literal["fail", "skip"] = "fail"
    stateful: bool = False
    transport: TransportMode = "auto"
    fuse: bool = False
    field: str | Mapping[str, str] | None = None
    as_: Literal["numpy", "tensor", "pil"] | None = None
    batch: BatchSpec | None = None
    mutable: bool = False
    reseed: bool = True


@dataclass(frozen=True)
class TransportSpec:
    """The pipeline's `transport`: the default mode of its hops.

    With `auto`, buffers of at least `threshold_bytes` go to shared memory; None means `auto`.
    """

    mode: TransportMode = "auto"
    threshold_bytes: int | None = None


@dataclass(frozen=True)
class ReportSpec:
    """Where to write the report. Paths are relative to the current directory; `prometheus` is host:port."""

    html: str | None = None
    json: str | None = None
    trace: str | None = None
    prometheus: str | None = None


@dataclass(frozen=True)
class PipelineSpec:
    """A checked pipeline.

    `window` counts items in flight, at the source. `memory_bytes` limits the run's shared memory. `max_skipped` is a
    count (int) or a fraction (float, 0.01 for 1%). `config_sha256` covers the whole config, `source_sha256` only the
    keys that determine the source's items.
    """

    name: str
    source: Target
    stages: tuple[StageSpec, ...] = ()
    sink: Target | None = None
    version: int = 1
    seed: int = 0
    order: Literal["source", "any"] = "source"
    window: int | None = None
    memory_bytes: int | None = None
    max_restarts: int = 10
    max_skipped: int | float | None = None
    transport: TransportSpec = TransportSpec()
    report: ReportSpec = ReportSpec()
    engine: Literal["local", "ray"] = "local"
    config_dir: Path | None = None
    config_path: Path | None = None
    config_sha256: str = ""
    source_sha256: str = ""
    source_retries: int | None = None
    source_on_error: Literal["fail", "skip"] = "fail"
