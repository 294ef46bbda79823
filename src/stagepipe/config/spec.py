"""What the user asked for, as frozen values: the output of this layer and the input of `plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Mode = Literal["auto", "pipe", "shared_memory"]


@dataclass(frozen=True)
class Target:
    """What a stage, source or sink runs: an import path (or an object, from Python) and its arguments.

    `arguments` may hold further mappings `{"uses": ..., "with": ...}` to any depth; they are built in the worker,
    innermost first. A key `uses` in a mapping always means that.
    """

    uses: str | Callable[..., Any] | object
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """A short name for messages: the path, or the object's own name."""
        if isinstance(self.uses, str):
            return self.uses
        return getattr(self.uses, "__qualname__", type(self.uses).__name__)


@dataclass(frozen=True)
class BatchSpec:
    """A stage that is called with lists: at most `size` items, waiting at most `max_wait_ns` for them."""

    size: int
    max_wait_ns: int = 20_000_000


@dataclass(frozen=True)
class StageSpec:
    """One entry of `stages`."""

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
    transport: Mode = "auto"
    fuse: bool = False
    field: str | Mapping[str, str] | None = None
    as_: Literal["numpy", "tensor", "pil"] | None = None
    batch: BatchSpec | None = None
    mutable: bool = False
    reseed: bool = True


@dataclass(frozen=True)
class TransportSpec:
    """The pipeline's `transport`: the mode of every hop that has none of its own, and the threshold of `auto`."""

    mode: Mode = "auto"
    threshold_bytes: int | None = None


@dataclass(frozen=True)
class ReportSpec:
    """Where the report goes; paths relative to the current directory."""

    html: str | None = None
    json: str | None = None
    trace: str | None = None
    prometheus: str | None = None


@dataclass(frozen=True)
class PipelineSpec:
    """A whole config, checked."""

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
    path: Path | None = None
    sha256: str = ""
    source_sha256: str = ""
    source_retries: int | None = None
    source_on_error: Literal["fail", "skip"] = "fail"
