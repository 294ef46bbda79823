"""Converts validated models to a PipelineSpec, and computes a config's fingerprints. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stagepipe.config.schema import PipelineModel, StageModel, TargetModel
from stagepipe.config.yaml import MapNode, to_plain
from stagepipe.spec import BatchSpec, PipelineSpec, ReportSpec, StageSpec, Target, TransportSpec


def to_spec(model: PipelineModel, resolved: MapNode, path: Path | None) -> PipelineSpec:
    """Build the spec of a validated config. `resolved` is the same config as nodes, for the fingerprints."""
    return PipelineSpec(
        name=model.name,
        source=_to_target(model.source),
        stages=tuple(_to_stage_spec(stage) for stage in model.stages),
        sink=None if model.sink is None else _to_target(model.sink),
        version=model.version,
        seed=model.seed,
        order=model.order,
        window=None if model.window == "auto" else model.window,
        memory_bytes=model.memory,
        max_restarts=model.max_restarts,
        max_skipped=model.max_skipped,
        transport=TransportSpec(model.transport.mode, model.transport.threshold),
        report=ReportSpec(model.report.html, model.report.json_, model.report.trace, model.report.prometheus),
        engine=model.engine,
        config_dir=None if path is None else path.resolve().parent,
        config_path=path,
        config_sha256=compute_fingerprint(resolved),
        source_sha256=compute_fingerprint(_select_source_keys(resolved)),
        source_retries=model.source.retries,
        source_on_error=model.source.on_error,
    )


def _to_target(model: TargetModel) -> Target:
    return Target(model.uses, model.arguments)


def _to_stage_spec(model: StageModel) -> StageSpec:
    return StageSpec(
        name=model.name,
        target=_to_target(model),
        workers=model.workers,
        threads=model.threads,
        cpus=model.cpus,
        device=model.device,
        env=model.env,
        timeout_ns=model.timeout,
        start_timeout_ns=model.start_timeout,
        retries=model.retries,
        on_error=model.on_error,
        stateful=model.stateful,
        transport=model.transport,
        fuse=model.fuse,
        field=model.field,
        as_=model.as_,
        batch=None if model.batch is None else BatchSpec(model.batch.size, model.batch.max_wait),
        mutable=model.mutable,
        reseed=model.reseed,
    )


def _select_source_keys(resolved: MapNode) -> MapNode:
    """Select the keys that determine the source's items, their numbers and their seeds."""
    source = resolved.get("source")
    selected = resolved.without(*(key for key in resolved.entries if key not in {"source", "seed"}))
    if not isinstance(source, MapNode):
        return selected
    return selected.with_entry("source", source.without("retries", "on_error"))


def compute_fingerprint(resolved: MapNode) -> str:
    """Return the SHA-256 of a config with bases, overrides and variables resolved. Its layout does not matter."""
    value = _to_canonical(to_plain(resolved.without("vars", "extends")))
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _to_canonical(value: Any) -> Any:
    """Convert a value to JSON types. An object from Python becomes its name, since its address changes between runs."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else f"\0{key!r}": _to_canonical(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_canonical(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    definition = value if hasattr(value, "__qualname__") and hasattr(value, "__module__") else type(value)
    return f"\0{definition.__module__}.{definition.__qualname__}"
