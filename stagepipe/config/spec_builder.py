"""Makes the PipelineSpec of a validated config. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from stagepipe.config.config_hash import hash_config, hash_source
from stagepipe.config.cross_checks import get_stages
from stagepipe.config.stage_traits import StageTraits
from stagepipe.config.torch_use import uses_torch
from stagepipe.config.yaml import MapNode
from stagepipe.spec import PipelineSpec, StageSpec, WorkerRange

StageT = TypeVar("StageT", bound=StageSpec)


def to_spec(
    values: Mapping[str, Any], resolved: MapNode, path: Path | None, stage_traits: Sequence[StageTraits]
) -> PipelineSpec:
    """Build the spec of a validated config: `values` are its fields. `resolved` is the same as nodes, for hashes."""
    syntax = resolved.location.syntax
    spec = PipelineSpec(
        **values,
        config_dir=None if path is None else path.resolve().parent,
        config_path=path,
        config_sha256=hash_config(resolved),
        source_sha256=hash_source(resolved),
        uses_torch=uses_torch(resolved, None if path is None else path.resolve().parent),
    )
    stages = (
        replace(
            _complete_workers(stage, node),
            is_order_point=traits.is_order_point,
            items_per_output=traits.items_per_output,
            syntax=syntax,
        )
        for stage, node, traits in zip(spec.stages, get_stages(resolved), stage_traits, strict=True)
    )
    source = resolved.get("source")
    completed = _complete_workers(spec.source, source) if isinstance(source, MapNode) else spec.source
    return replace(spec, source=replace(completed, syntax=syntax), stages=tuple(stages))


def _complete_workers(stage: StageT, node: MapNode) -> StageT:
    """Set `workers` to `auto` too where the config says `fuse: auto` and nothing of workers; take a range apart.

    Not the other way round: a fused stage gets the very object of the stage before it, so a stage that changes its
    input could change what the source keeps.
    """
    if stage.fuse == "auto" and "workers" not in node.entries:
        return replace(stage, workers="auto")
    if isinstance(stage.workers, WorkerRange):
        return replace(stage, workers=stage.workers.maximum, min_workers=stage.workers.minimum)
    return stage
