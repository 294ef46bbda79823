"""Converts validated models to a PipelineSpec. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stagepipe.config.config_hash import hash_config, hash_source
from stagepipe.config.schema import ConfigModel
from stagepipe.config.stage_traits import StageTraits
from stagepipe.config.torch_use import uses_torch
from stagepipe.config.yaml import MapNode
from stagepipe.spec import PipelineSpec


def to_spec(
    model: ConfigModel, resolved: MapNode, path: Path | None, stage_traits: Sequence[StageTraits]
) -> PipelineSpec:
    """Build the spec of a validated config. `resolved` is the same config as nodes, for the hashes."""
    syntax = resolved.location.syntax
    spec: PipelineSpec = model.to_spec(
        config_dir=None if path is None else path.resolve().parent,
        config_path=path,
        config_sha256=hash_config(resolved),
        source_sha256=hash_source(resolved),
        uses_torch=uses_torch(resolved, None if path is None else path.resolve().parent),
    )
    stages = (
        replace(stage, is_order_point=traits.is_order_point, items_per_output=traits.items_per_output, syntax=syntax)
        for stage, traits in zip(spec.stages, stage_traits, strict=True)
    )
    return replace(spec, source=replace(spec.source, syntax=syntax), stages=tuple(stages))
