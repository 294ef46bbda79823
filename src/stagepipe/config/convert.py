"""Validated models -> the frozen values of `spec`, and the fingerprint of a config. Pure."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stagepipe.config import models
from stagepipe.config.nodes import Map, plain
from stagepipe.config.spec import BatchSpec, PipelineSpec, ReportSpec, StageSpec, Target, TransportSpec


def to_spec(model: models.PipelineModel, resolved: Map, path: Path | None) -> PipelineSpec:
    """The spec of a validated config."""
    return PipelineSpec(
        name=model.name,
        source=_target(model.source),
        stages=tuple(_stage(stage) for stage in model.stages),
        sink=None if model.sink is None else _target(model.sink),
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
        path=path,
        sha256=fingerprint(resolved),
        source_sha256=fingerprint(_of_source(resolved)),
        source_retries=model.source.retries,
        source_on_error=model.source.on_error,
    )


def _target(model: models.TargetModel) -> Target:
    return Target(model.uses, model.arguments)


def _stage(model: models.StageModel) -> StageSpec:
    field = model.field
    return StageSpec(
        name=model.name,
        target=_target(model),
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
        field=field,
        as_=model.as_,
        batch=None if model.batch is None else BatchSpec(model.batch.size, model.batch.max_wait),
        mutable=model.mutable,
        reseed=model.reseed,
    )


def _of_source(resolved: Map) -> Map:
    """What decides which item of the source has which number, and its seeds."""
    source = resolved.get("source")
    kept = resolved.without(*(key for key in resolved.entries if key not in {"source", "seed"}))
    return kept.with_entry("source", source.without("retries", "on_error")) if isinstance(source, Map) else kept


def fingerprint(resolved: Map) -> str:
    """SHA-256 of what a config says once variables, overrides and bases are put in; its layout does not matter."""
    value = _canonical(plain(resolved.without("vars", "extends")))
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """The value as JSON can hold it; an object from Python by its name, since its address changes from run to run."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else f"\0{key!r}": _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    named = value if hasattr(value, "__qualname__") and hasattr(value, "__module__") else type(value)
    return f"\0{named.__module__}.{named.__qualname__}"
