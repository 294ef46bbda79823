"""Checks plain values against the models, and makes the fields of specs of them. Pure.

Finds all mistakes at once. Runs in the process that loads the config.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from stagepipe.config.schema.models import FILE_FIELDS, PIPELINE_MODEL, KeyModel, MappingModel
from stagepipe.config.schema.value_types import InvalidValueError, ValueType
from stagepipe.spec import Target

ConfigPath = tuple[Any, ...]
"""Keys and indices from the top of a config to a value."""


class MistakeKind(Enum):
    """What is wrong at a path."""

    UNKNOWN_KEY = "unknown key"
    MISSING_KEY = "missing key"
    NO_MAPPING = "no mapping"
    NO_LIST = "no list"
    BAD_VALUE = "bad value"


@dataclass(frozen=True)
class Mistake:
    """One mistake. `cause` says what is wrong with a bad value."""

    kind: MistakeKind
    path: ConfigPath
    value: Any = None
    cause: ValueError | None = None


def check_pipeline(value: Any) -> tuple[dict[str, Any], list[Mistake]]:
    """Return the fields of a PipelineSpec that a config sets, and all mistakes. With mistakes, fields are missing.

    >>> check_pipeline({"source": {"uses": "itertools.count"}, "window": 8})[0]["window"]
    8
    >>> check_pipeline({"source": {"uses": "itertools.count"}, "windw": 8})[1][0].kind.value
    'unknown key'
    """
    mistakes: list[Mistake] = []
    values = _check_mapping(PIPELINE_MODEL, value, (), mistakes)
    return {name: value for name, value in values.items() if name not in FILE_FIELDS}, mistakes


def _check_mapping(model: MappingModel, value: Any, path: ConfigPath, mistakes: list[Mistake]) -> dict[str, Any]:
    if not isinstance(value, dict):
        mistakes.append(Mistake(MistakeKind.NO_MAPPING, path, value))
        return {}
    values = {}
    for name, key in model.keys.items():
        if name in value:
            values[key.field_name] = _check_key(key, value[name], (*path, name), mistakes)
        elif key.is_required:
            mistakes.append(Mistake(MistakeKind.MISSING_KEY, (*path, name)))
    mistakes += [Mistake(MistakeKind.UNKNOWN_KEY, (*path, name)) for name in value if name not in model.keys]
    return values


def _check_key(key: KeyModel, value: Any, path: ConfigPath, mistakes: list[Mistake]) -> Any:
    if not key.is_list:
        return _check_value(key.value_type, value, path, mistakes)
    if not isinstance(value, list) and key.accepts_one:
        return (_check_value(key.value_type, value, path, mistakes),)
    if not isinstance(value, list):
        mistakes.append(Mistake(MistakeKind.NO_LIST, path, value))
        return ()
    return tuple(_check_value(key.value_type, item, (*path, index), mistakes) for index, item in enumerate(value))


def _check_value(value_type: ValueType | MappingModel, value: Any, path: ConfigPath, mistakes: list[Mistake]) -> Any:
    if isinstance(value_type, MappingModel):
        values = _check_mapping(value_type, value, path, mistakes)
        return None if mistakes else _make_spec(value_type.spec_type, values)
    try:
        return value_type.check(value)
    except ValueError as error:
        inner_path = error.inner_path if isinstance(error, InvalidValueError) else ()
        mistakes.append(Mistake(MistakeKind.BAD_VALUE, (*path, *inner_path), value, error))
        return None


def _make_spec(spec_type: type[Any], values: dict[str, Any]) -> Any:
    """Make a spec. The keys of its target are among its own."""
    if spec_type is not Target and "uses" in values:
        values["target"] = Target(values.pop("uses"), values.pop("arguments", {}))
    return spec_type(**values)
