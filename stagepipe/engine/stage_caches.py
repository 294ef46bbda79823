"""Gives the stages with a `cache` their fingerprints: of config, code, data and versions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from stagepipe.config import ModuleLocator, NoFileError, find_target_files
from stagepipe.core import UsageError, import_paths
from stagepipe.engine.code_versions import TooManyFilesError, describe_code
from stagepipe.engine.state import describe_config
from stagepipe.fingerprint import get_unknown_reason
from stagepipe.plan import UNSHARDED, CachePlan, Plan, StagePlan, split_source
from stagepipe.sources import ListedItems, identify_items
from stagepipe.spec import CacheSpec, PipelineSpec, StageSpec, Target

_FETCH_STAGE: Final = "stagepipe.stages.Fetch"
_FORMAT_VERSION: Final = 1
_LINES_OF_ALL: Final = frozenset({"order", "limit", "world_size", "even", "items", "order_points", "stages"})
"""Lines of a description that do not change what a stage returns for an item."""
_FOLDER_DIGITS: Final = 32


def plan_caches(spec: PipelineSpec, plan: Plan) -> Plan:
    """Return the plan with a `cache_plan` for each stage that has a `cache`.

    Reads the names and dates of the source's files, and the code of the stages. Raises UsageError for an object from
    Python that has no fingerprint.
    """
    spec = split_source(spec)
    if all(stage.cache is None for stage in spec.stages):
        return plan
    try:
        items = identify_items(spec.source.target.uses, spec.source.target.arguments)
    except Exception:  # noqa: BLE001 - the source raises it again in its own process, where it is reported
        return plan
    locator = ModuleLocator(import_paths(spec.config_dir))
    processes = tuple(
        replace(process, stages=tuple(_plan_stage(stage, spec, items, locator) for stage in process.stages))
        for process in plan.processes
    )
    return replace(plan, processes=processes)


def _plan_stage(stage: StagePlan, spec: PipelineSpec, items: ListedItems | None, locator: ModuleLocator) -> StagePlan:
    cache = stage.cache
    if cache is None:
        return stage
    identifies_by_input = items is None and cache.is_deterministic and stage.target.label == _FETCH_STAGE
    fingerprint = _compute_fingerprint(stage, cache, spec, items, locator)
    cache_plan = CachePlan(
        folder=Path(cache.path).expanduser().absolute() / f"{stage.name}-{fingerprint}",
        fingerprint=fingerprint,
        is_deterministic=cache.is_deterministic,
        identities=items,
        identifies_by_input=identifies_by_input,
    )
    return replace(stage, cache_plan=cache_plan)


def _compute_fingerprint(
    stage: StagePlan, cache: CacheSpec, spec: PipelineSpec, items: ListedItems | None, locator: ModuleLocator
) -> str:
    """Return the fingerprint of all that decides what a stage returns for an item."""
    stages = spec.stages[: stage.index]
    until_here = replace(spec, stages=stages, sinks=())
    description = describe_config(until_here, None, UNSHARDED, with_contents=cache.key is None)
    lines = {key: line for key, line in description.items() if key not in _LINES_OF_ALL}
    if cache.is_deterministic:
        del lines["seed"]
    lines |= {f"stages.{number}": line for number, line in enumerate(map(_describe_settings, stages))}
    lines |= {"format": str(_FORMAT_VERSION), "data": "" if items is None else items.digest}
    lines |= _describe_code(until_here, stage, cache, locator) if cache.key is None else {"key": cache.key}
    unknown = [f"{key}: {reason}" for key, line in lines.items() if (reason := get_unknown_reason(line))]
    if unknown:
        example = _format_key_example(stage, cache)
        raise UsageError(
            f"stage {stage.name}: its `cache` cannot tell whether this has changed:\n  "
            + "\n  ".join(unknown)
            + f"\nbuild such an object inside the stage, or name its state and change the name with it: `{example}`"
        )
    text = json.dumps(lines, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_FOLDER_DIGITS]


def _describe_settings(stage: StageSpec) -> str:
    """Describe what else changes a stage's results."""
    return repr((stage.name, stage.device, sorted(stage.env.items()), stage.allow_none, stage.mutable))


def _describe_code(spec: PipelineSpec, stage: StagePlan, cache: CacheSpec, locator: ModuleLocator) -> dict[str, str]:
    predicates = tuple(
        StageSpec(name="predicate", target=inner.when) for inner in spec.stages if isinstance(inner.when, Target)
    )
    try:
        return describe_code(find_target_files(replace(spec, stages=(*spec.stages, *predicates))), locator)
    except NoFileError:  # its bytecode is in the description
        return describe_code((), locator)
    except OSError as error:
        message = f"stage {stage.name}: its `cache` cannot read the code that it depends on: {error}"
        raise UsageError(message) from error
    except TooManyFilesError as error:
        raise UsageError(
            f"stage {stage.name}: its `cache` cannot tell whether its code has changed: {error}; name the state of the "
            f"code, and change the name with it: `{_format_key_example(stage, cache)}`"
        ) from error


def _format_key_example(stage: StagePlan, cache: CacheSpec) -> str:
    return f"{stage.config_path}.cache={{path: {cache.path}, key: ...}}"
