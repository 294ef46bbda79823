"""Loads a config: runs every step from its source to a spec. Has no side effects; runs in the caller's process.

read -> extends -> overrides -> references (OmegaConf's first) -> long form of the source -> keys and values
-> key combinations -> targets -> spec
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stagepipe.config.cross_checks import check_key_combinations, check_sinks, get_sinks, get_stages
from stagepipe.config.dataset_source import normalize_source
from stagepipe.config.merging import apply_extends, read_with_bases
from stagepipe.config.python_calls import SupportsPythonCalls, from_python_calls
from stagepipe.config.spec_builder import to_spec
from stagepipe.config.stage_traits import read_sink_traits, read_stage_traits
from stagepipe.config.target_checks import TargetChecker
from stagepipe.config.validation import validate
from stagepipe.config.yaml import (
    ListNode,
    MapNode,
    Node,
    OmegaConfResolver,
    ReferenceResolver,
    ScalarNode,
    SourceLocation,
    apply_overrides,
    check_size,
    edit_text,
    from_plain,
    is_omegaconf,
    iter_children,
    parse_mapping,
    to_plain,
)
from stagepipe.core import ConfigError, ConfigSyntax, Problem, UsageError
from stagepipe.spec import PipelineSpec


def load(
    source: str | Path | Mapping[str, Any] | SupportsPythonCalls | object, overrides: Sequence[str] = ()
) -> PipelineSpec:
    """Load and check a config. Imports no target.

    `source` is the path of a YAML file, a mapping, an OmegaConf object, or a Python builder. `overrides` replace values
    in it, such as `["stages.decode.workers=8", "vars.size=128"]`. A config without a `name` is named after its file, or
    `pipeline`.

    >>> load({"source": {"uses": "itertools.repeat", "with": {"object": 1}}}, ["window=8"]).window
    8

    Raises:
        ConfigError: the config is wrong; `problems` holds every problem with its location.
        UsageError: `source` is none of these.
    """
    interpolations = OmegaConfResolver(source) if is_omegaconf(source) else None
    if interpolations is None:
        root, path = _read_source(source, ConfigSyntax.MAPPING)
    else:
        root, path = _read_source(interpolations.unresolved_values, ConfigSyntax.YAML)
    return _load_root(root, path, overrides, interpolations)


def edit_config(path: Path, changes: Sequence[str], overrides: Sequence[str] = ()) -> str:
    """Return the text of a config file with the overrides `changes` written into it. Its comments stay.

    In a file that `extends` another, they go into this file. `overrides` are others, which stay on the command line.
    Raises UsageError if there is no way to write them so that the file means the same as with them.

    >>> edit_config(Path("train.yaml"), ["stages.decode.workers=3"])  # doctest: +SKIP
    """
    text = path.read_bytes().decode("utf-8")
    extends = parse_mapping(text.removeprefix("\ufeff"), str(path)).get("extends") is not None
    edited = edit_text(text, changes, keeps_null=extends)
    wanted = load(path, (*overrides, *changes))
    try:
        root = parse_mapping(edited.removeprefix("\ufeff"), str(path))
        found = _load_root(apply_extends(root, path.parent, (path.resolve(),)), path, overrides, None)
    except ConfigError as error:
        found, reason = None, f": {error.problems[0].message}"
    else:
        reason = ""
    if found is None or replace(found, config_sha256="") != replace(wanted, config_sha256=""):
        raise UsageError(
            f"{path}: cannot write {' '.join(changes)} so that the file means the same{reason}; nothing was written: "
            "set it by hand"
        )
    return edited


def _load_root(
    root: MapNode, path: Path | None, overrides: Sequence[str], interpolations: OmegaConfResolver | None
) -> PipelineSpec:
    problems: list[Problem] = []
    root = apply_overrides(root, overrides, problems)
    if interpolations is not None:
        root = interpolations.resolve(root)
    root = _fill_in_name(root, path)
    variables = root.get("vars")
    resolver = ReferenceResolver(variables=variables if isinstance(variables, MapNode) else None)
    resolved = resolver.resolve(root)
    if not isinstance(resolved, MapNode):  # pragma: no cover - a mapping stays one
        raise ConfigError([root.location.make_problem("a config must be a mapping")])
    config_dir = None if path is None else path.resolve().parent
    resolved, reading = normalize_source(resolved, config_dir, problems)
    check_size(resolved)
    stage_traits = read_stage_traits(get_stages(resolved), config_dir)
    sink_traits = read_sink_traits(get_sinks(resolved), config_dir)
    problems += check_sinks(resolved, sink_traits)
    found_problems: list[Problem] = []
    values = validate(resolved, found_problems)
    found_problems += check_key_combinations(resolved, stage_traits, reading)
    found_problems += TargetChecker(config_dir).check_config(resolved, stage_traits)
    problems += _drop_misleading(found_problems, resolver.problems)
    if problems or values is None:
        raise ConfigError(_sort_problems(problems, "" if path is None else str(path)))
    spec = to_spec(values, resolved, path, stage_traits)
    sinks = (
        replace(
            sink,
            writes_parts=traits.writes_parts,
            appends_parts=traits.appends_parts,
            part_multiple=traits.part_multiple,
        )
        for sink, traits in zip(spec.sinks, sink_traits, strict=True)
    )
    return replace(spec, source=replace(spec.source, reading=reading), sinks=tuple(sinks))


def locate_targets(path: Path, overrides: Sequence[str] = ()) -> list[tuple[str, SourceLocation]]:
    """Return the import paths of a config that `load` accepts, each with its place."""
    root = apply_overrides(read_with_bases(path), overrides, [])
    variables = root.get("vars")
    resolved = ReferenceResolver(variables=variables if isinstance(variables, MapNode) else None).resolve(root)
    return list(_iter_uses(resolved))


def _iter_uses(node: Node) -> Iterator[tuple[str, SourceLocation]]:
    for key, child in iter_children(node):
        if key == "uses" and isinstance(child, ScalarNode) and isinstance(child.value, str):
            yield child.value, child.location
        else:
            yield from _iter_uses(child)


def _drop_misleading(problems: list[Problem], reference_problems: list[Problem]) -> list[Problem]:
    """Return those of bad references, and the others elsewhere: the value of a bad reference is unknown."""
    bad_locations = {(p.file, p.line, p.column) for p in reference_problems}
    others = [p for p in problems if (p.file, p.line, p.column) not in bad_locations or not p.line]
    return [*reference_problems, *others]


def _sort_problems(problems: list[Problem], main_file: str) -> list[Problem]:
    """Remove duplicates and sort by position: the main file first, then other files, overrides and Python values."""
    unique_problems = list(dict.fromkeys(problems))
    return sorted(unique_problems, key=lambda p: (p.file != main_file, not p.line, p.file, p.line, p.column))


def _read_source(source: object, syntax: ConfigSyntax) -> tuple[MapNode, Path | None]:
    if isinstance(source, str | os.PathLike):
        path = Path(os.fspath(source))
        return read_with_bases(path), path
    if isinstance(source, SupportsPythonCalls):
        return from_python_calls(source.python_calls), None
    if not isinstance(source, Mapping):
        raise UsageError(
            f"a config must be a path, a mapping, an OmegaConf object or a builder, found {type(source).__name__}"
        )
    root = from_plain(source, SourceLocation(syntax=syntax))
    if not isinstance(root, MapNode):  # pragma: no cover - a mapping stays one
        return MapNode(), None
    return apply_extends(_locate_stages(root), Path.cwd()), None


def _locate_stages(root: MapNode) -> MapNode:
    """Return the config of a mapping with the name of its stage in each location: there is no line."""
    stages = root.get("stages")
    if not isinstance(stages, ListNode):
        return root
    named = tuple(
        from_plain(to_plain(stage), replace(stage.location, stage=stage.get_text("name") or ""))
        if isinstance(stage, MapNode)
        else stage
        for stage in stages.items
    )
    return root.with_entry("stages", ListNode(named, stages.location))


def _fill_in_name(root: MapNode, path: Path | None) -> MapNode:
    if root.get("name") is not None:
        return root
    stem = "" if path is None else re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-")
    return root.with_entry("name", ScalarNode(stem or "pipeline"))
