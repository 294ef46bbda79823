"""Describes the part of a config that decides which items come out and in which order, as lines of text. Pure.

Workers, transport and memory are not part of it: they may change between a save and a resume.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from stagepipe.fingerprint import compute_fingerprint, describe_fingerprint, get_display_name
from stagepipe.plan import Shard
from stagepipe.spec import SOURCE_NAME, PipelineSpec, Target

PYTHON_KEY: Final = "python"
"""The line with the version of Python, in a description with bytecode, which differs between versions."""

ORDER_POINTS_KEY: Final = "order_points"
"""The line with the number of order points, and so of the cursors in a position."""

_MAX_VALUE_CHARS: Final = 96
"""Maximum length of a config value. Of a longer one, the description has the beginning and a hash."""

_PLAIN_TYPES: Final = (type(None), str, bytes, bool, int, float, range)

_ITEM_KEYS: Final = frozenset({"seed", "limit", "stages", PYTHON_KEY})
"""Settings of the whole pipeline that change the items, but leave a position its meaning."""

DescribeObject = Callable[[Any, str, dict[str, str]], None]
"""Adds the lines of an object from Python at a path."""


def describe_config(
    spec: PipelineSpec, limit: int | None, shard: Shard, *, with_contents: bool = True
) -> dict[str, str]:
    """Return a line for each setting: from its path to its value.

    An object from Python has a line for each part of its fingerprint. Without `with_contents`, it has its name alone;
    this takes microseconds.
    """
    describe_object = _add_contents if with_contents else _add_name
    lines = {"seed": str(spec.seed), "order": spec.order, "limit": str(limit)}
    lines |= {key: str(value) for key, value in asdict(shard).items() if key != "rank"}
    lines[ORDER_POINTS_KEY] = str(sum(stage.is_order_point for stage in spec.stages))
    lines["stages"] = _shorten(" ".join(stage.name for stage in spec.stages if not stage.part_of))
    for stage in (spec.source, *spec.stages):
        path = SOURCE_NAME if stage.row == SOURCE_NAME else f"stages.{stage.name}"
        target = stage.target
        if stage.sink_path:  # it says what to do with the files of an earlier run
            target = Target(target.uses, {key: target.arguments[key] for key in target.arguments if key != "overwrite"})
        _add_target(target, path, lines, describe_object)
        options = {"field": stage.field, "as": stage.as_, "into": stage.into, "batch": stage.batch and stage.batch.size}
        lines |= {f"{path}.{key}": _shorten(str(value)) for key, value in options.items() if value is not None}
        if isinstance(stage.when, Target):
            _add_target(stage.when, f"{path}.when", lines, describe_object)
        elif stage.when is not None:
            lines[f"{path}.when"] = _describe_plain(stage.when)
        if stage.cache is not None and stage.cache.is_deterministic:
            lines[f"{path}.cache"] = "deterministic"
        if not stage.reseed:
            lines[f"{path}.reseed"] = "False"
    return lines


def is_position_key(path: str) -> bool:
    """Whether a line decides what a position means: the order, the shard, the number of order points.

    >>> is_position_key("order"), is_position_key("stages.decode.uses: code")
    (True, False)
    """
    return "." not in path and path not in _ITEM_KEYS


def _add_target(target: Target, path: str, lines: dict[str, str], describe_object: DescribeObject) -> None:
    if isinstance(target.uses, str):
        lines[f"{path}.uses"] = target.uses
    else:
        describe_object(target.uses, f"{path}.uses", lines)
    for key, value in target.arguments.items():
        if _is_plain(value):
            lines[f"{path}.with.{key}"] = _describe_plain(value)
        else:
            describe_object(value, f"{path}.with.{key}", lines)


def _add_name(value: Any, path: str, lines: dict[str, str]) -> None:
    lines[path] = get_display_name(value)


def _add_contents(value: Any, path: str, lines: dict[str, str]) -> None:
    fingerprint = compute_fingerprint(value)
    lines |= describe_fingerprint(fingerprint, path)
    if fingerprint.has_bytecode:
        lines[PYTHON_KEY] = f"{sys.version_info.major}.{sys.version_info.minor}"


def _is_plain(value: Any) -> bool:
    """Whether YAML could have given a value."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN_TYPES


def _describe_plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return _shorten("{" + ", ".join(f"{key}: {_describe_plain(inner)}" for key, inner in value.items()) + "}")
    if isinstance(value, list | tuple):
        return _shorten(f"[{', '.join(map(_describe_plain, value))}]")
    return _shorten(repr(value))


def _shorten(text: str) -> str:
    if len(text) <= _MAX_VALUE_CHARS:
        return text
    return f"{text[: _MAX_VALUE_CHARS // 2]}... #{hashlib.sha256(text.encode()).hexdigest()[:12]}"
