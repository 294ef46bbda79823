"""The way of a config from its source to a spec; in the process that was given it. Nothing of it has a side effect.

read -> extends -> overrides -> references (OmegaConf's first) -> a dataset's stage -> keys and values -> keys together
-> targets -> spec
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stagepipe.config.checks import crosswise
from stagepipe.config.convert import to_spec
from stagepipe.config.datasets import expanded, with_stage
from stagepipe.config.interpolations import Interpolations, is_omegaconf
from stagepipe.config.later import not_yet
from stagepipe.config.merging import extend, read_chain
from stagepipe.config.models import PipelineModel
from stagepipe.config.nodes import Map, Scalar, check_size, from_plain
from stagepipe.config.overrides import apply
from stagepipe.config.references import Resolver
from stagepipe.config.spec import PipelineSpec
from stagepipe.config.targets import TargetCheck
from stagepipe.config.validation import validate
from stagepipe.core import ConfigError, Problem, UsageError


def load(source: str | Path | Mapping[str, Any] | object, overrides: Sequence[str] = ()) -> PipelineSpec:
    """The checked spec of a config: a path of a YAML file, a mapping, or an OmegaConf object.

    `overrides` are laid over it: `["stages.decode.workers=8", "vars.size=128"]`. A config without a `name` gets that of
    its file, or `pipeline`.

    >>> load({"source": {"uses": "itertools.repeat", "with": {"object": 1}}}, ["window=8"]).window
    8

    Raises ConfigError with all that is wrong at once, UsageError for a source of another kind. Imports no target.
    """
    interpolations = Interpolations(source) if is_omegaconf(source) else None
    root, path = _read(source if interpolations is None else interpolations.unresolved)
    problems: list[Problem] = []
    root = _overridden(root, overrides, problems)
    if interpolations is not None:
        root = interpolations.put_in(root)
    root = _named(root, path)
    variables = root.get("vars")
    resolver = Resolver(variables if isinstance(variables, Map) else None)
    resolved = resolver.resolve(root)
    if not isinstance(resolved, Map):  # pragma: no cover - a mapping stays one
        raise ConfigError([root.place.problem("a config is a mapping")])
    config_dir = None if path is None else path.resolve().parent
    resolved = expanded(resolved, config_dir, problems)
    check_size(resolved)
    model = _check(resolved, config_dir, problems, resolver.problems)
    if problems or model is None:
        raise ConfigError(_in_order(problems, "" if path is None else str(path)))
    return to_spec(model, resolved, path)


def _overridden(root: Map, overrides: Sequence[str], problems: list[Problem]) -> Map:
    """Those of a stage come last: among the stages is one that the source may imply."""
    of_stages = [override for override in overrides if override.startswith("stages.")]
    root = apply(root, [override for override in overrides if override not in of_stages], problems)
    return apply(with_stage(root) if of_stages else root, of_stages, problems)


def _check(
    root: Map, config_dir: Path | None, problems: list[Problem], bad_references: list[Problem]
) -> PipelineModel | None:
    found: list[Problem] = []
    model = validate(root, found)
    found += crosswise(root)
    found += not_yet(root)
    found += TargetCheck(config_dir).run(root)
    # What a bad reference stands for is unknown: only the reference itself is worth a word.
    bad_places = {(p.file, p.line, p.column) for p in bad_references}
    problems += bad_references
    problems += [p for p in found if (p.file, p.line, p.column) not in bad_places or not p.line]
    return model


def _in_order(problems: list[Problem], main: str) -> list[Problem]:
    """Once each, in the order of the file; what is elsewhere comes after it."""
    once = list(dict.fromkeys(problems))
    return sorted(once, key=lambda p: (p.file != main, not p.line, p.file, p.line, p.column))


def _read(source: object) -> tuple[Map, Path | None]:
    if isinstance(source, str | os.PathLike):
        path = Path(os.fspath(source))
        return read_chain(path), path
    if not isinstance(source, Mapping):
        raise UsageError(f"a config is a path, a mapping or an OmegaConf object, found {type(source).__name__}")
    root = from_plain(source)
    return extend(root, Path.cwd()) if isinstance(root, Map) else Map(), None


def _named(root: Map, path: Path | None) -> Map:
    if root.get("name") is not None:
        return root
    stem = "" if path is None else re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-")
    return root.with_entry("name", Scalar(stem or "pipeline"))
