"""Defines the value types that only some keys of a config have. Pure.

Runs in the process that loads the config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from types import GeneratorType
from typing import Any, Final

from stagepipe.config.schema.caches import CACHE_SCHEMA, check_cache
from stagepipe.config.schema.conditions import CONDITION_SCHEMA, check_condition
from stagepipe.config.schema.engines import (
    ENGINE_SCHEMA,
    RESOURCES_SCHEMA,
    WORKERS_SCHEMA,
    check_engine,
    check_resources,
    check_workers,
)
from stagepipe.config.schema.outputs import ADDRESS_SCHEMA, TRACE_SCHEMA, check_address, check_trace_path
from stagepipe.config.schema.value_types import (
    MAPPING,
    InvalidValueError,
    ValueType,
    format_kind,
    format_value,
    make_boolean_hint,
    make_unexpected,
)
from stagepipe.core import ConfigSyntax, Placeholder, parse_bytes, parse_duration_ns

_CPU_RANGE_PATTERN: Final = re.compile(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?")
_PERCENT_PATTERN: Final = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%\s*")
_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED_STAGE_NAMES: Final = {"source": "the source", "sink": "the sink"}
_DEVICE_PATTERN: Final = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
_ENVIRONMENT_EXAMPLE: Final = {"MY_FLAG": Placeholder('"1"')}
_MAX_CPU_COUNT: Final = 65536


def _check_fuse(value: Any) -> Any:
    if isinstance(value, bool) or value == "auto":
        return value
    hint = make_boolean_hint(value)
    raise make_unexpected(lambda syntax: f"{format_kind('true or false', syntax)}, or `auto`", value, hint)


def _parse_size_bytes(value: Any) -> int | None:
    if value == "auto":
        return None
    return parse_bytes(value)


def _parse_duration_ns(value: Any) -> int:
    return parse_duration_ns(value)


def require_positive(value_type: ValueType) -> ValueType:
    """Return the type of a size or a duration without 0: some would mean no limit by it, and others the default."""

    def check(value: Any) -> Any:
        checked = value_type.check(value)
        if checked == 0:
            raise InvalidValueError(
                f"expected more than 0, found {format_value(value)}", "leave it out for the default"
            )
        return checked

    number = {**value_type.json_schema["anyOf"][0], "exclusiveMinimum": 0}
    del number["minimum"]
    return ValueType(check, {"anyOf": [number, *value_type.json_schema["anyOf"][1:]]})


def _check_name(value: Any) -> str:
    if not isinstance(value, str):
        hint = "quote it" if isinstance(value, int | float) else ""
        raise make_unexpected("a name", value, hint)
    if not _NAME_PATTERN.fullmatch(value):
        raise InvalidValueError(
            f"the name `{value}` has characters other than letters, digits, `_` and `-`", _name_hint(value)
        )
    return value


def _name_hint(value: str) -> str:
    valid_name = re.sub(r"[^A-Za-z0-9_-]+", "-", value).strip("-")
    return f"write `{valid_name}`" if valid_name else "write a name such as `decode`"


def _check_stage_name(value: Any) -> str:
    if isinstance(value, str) and value in _RESERVED_STAGE_NAMES:
        raise InvalidValueError(
            f"the name `{value}` is reserved for {_RESERVED_STAGE_NAMES[value]}", "give the stage another name"
        )
    return _check_name(value)


def _parse_cpus(value: Any) -> tuple[int, ...]:
    expected = "CPU numbers such as `0-3`, `0,2` or [0, 2]"
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    cpus: set[int] = set()
    for part in parts:
        if isinstance(part, bool) or not (match := _CPU_RANGE_PATTERN.fullmatch(str(part))):
            raise make_unexpected(expected, value)
        first = int(match[1])
        last = int(match[2] or first)
        if last < first or last >= _MAX_CPU_COUNT:
            raise InvalidValueError(f"expected {expected}, found {format_value(value)}: `{part}` is not a valid range")
        cpus.update(range(first, last + 1))
    if not cpus:
        raise InvalidValueError(f"expected {expected}, found an empty list")
    return tuple(sorted(cpus))


def _check_device(value: Any) -> str:
    if isinstance(value, str) and _DEVICE_PATTERN.fullmatch(value):
        return value
    raise make_unexpected("`cuda`, `cuda:1` or `cpu`", value, "`cuda` spreads the workers over all GPUs")


def _check_environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise make_unexpected(
            lambda syntax: f"{format_kind('a mapping', syntax)} of names to strings",
            value,
            lambda syntax: f"write {syntax.format_value(_ENVIRONMENT_EXAMPLE)}",
        )
    for name, setting in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise InvalidValueError(f"{format_value(name)} is not a valid environment variable name")
        if (not isinstance(setting, str | int) or isinstance(setting, bool)) or "\0" in str(setting):
            raise _unexpected_setting(name, setting)
    return {name: str(setting) for name, setting in value.items()}


def _unexpected_setting(name: str, setting: Any) -> InvalidValueError:
    def write_hint(syntax: ConfigSyntax) -> str:
        entry = syntax.format_value({name: Placeholder('"..."')})
        return f"quote it: {entry[1:-1]}"

    return InvalidValueError(
        lambda syntax: f"`{name}`: expected a string, found {format_value(setting, syntax)}", write_hint
    )


def _check_modules(value: Any) -> tuple[str, ...]:
    modules = [value] if isinstance(value, str) else value
    if isinstance(modules, list | tuple) and all(map(_is_module_path, modules)):
        return tuple(modules)
    raise make_unexpected("a list of modules such as [torch, my_models]", value)


def _is_module_path(value: Any) -> bool:
    return isinstance(value, str) and all(part.isidentifier() for part in value.split("."))


def _parse_max_skipped(value: Any) -> int | float:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    percent = _PERCENT_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if percent is None or float(percent[1]) > 100:  # noqa: PLR2004 - percent
        raise make_unexpected(lambda syntax: f"a count or a percentage such as {syntax.format_value('1%')}", value)
    return float(percent[1]) / 100


def _check_field_selection(value: Any) -> str | dict[str, str]:
    if isinstance(value, str) and value:
        return value
    is_mapping = isinstance(value, dict) and bool(value)
    if is_mapping and all(isinstance(k, str) and k.isidentifier() and isinstance(v, str) for k, v in value.items()):
        return dict(value)
    example = {"img": "image"}
    raise make_unexpected(
        lambda syntax: f"a field name, or arguments and their fields such as {syntax.format_value(example)}", value
    )


def _check_field_name(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise make_unexpected("a field name", value, "quote it" if isinstance(value, int | float) else "")


def _check_uses(value: Any, python_hint: str = "pass a function or a class") -> Any:
    if isinstance(value, str) and value.strip():
        return value
    if value is None or isinstance(value, str | bool | int | float | list | tuple | dict):
        raise make_unexpected("an import path", value, partial(_write_uses_hint, python_hint))
    return value


def _write_uses_hint(python_hint: str, syntax: ConfigSyntax) -> str:
    path = "write pkg.module.name or ./file.py:name"
    return path if syntax is ConfigSyntax.YAML else f"{python_hint}, or {path}"


def _check_source_uses(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Iterator):
        kind = "a generator object" if isinstance(value, GeneratorType) else f"an iterator ({_type_name(value)})"
        message = f"{kind} cannot be sent to the source's process"
        raise InvalidValueError(message, "pass the function that creates it, without calling it")
    hint = "pass a function that returns an iterable, or an object with __len__ and __getitem__"
    value = _check_uses(value, hint)
    if not (callable(value) or hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")):
        raise make_unexpected("a source of items", value, hint)
    return value


def _type_name(value: Any) -> str:
    return type(value).__qualname__


def _check_version(value: Any) -> int:
    if value == 1 and not isinstance(value, bool):
        return 1
    raise InvalidValueError(
        f"unknown format version {value}", lambda syntax: f"write `{syntax.format_setting('version', 1)}`"
    )


_SIZE_SCHEMA: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
_DURATION_SCHEMA: Final = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}
_CPUS_SCHEMA: Final = {"type": ["integer", "string", "array"], "items": {"type": ["integer", "string"]}}
_ENV_SCHEMA: Final = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
_FIELD_SCHEMA: Final = {"type": ["string", "object"], "additionalProperties": {"type": "string"}}

Size = ValueType(_parse_size_bytes, _SIZE_SCHEMA)
Duration = ValueType(_parse_duration_ns, _DURATION_SCHEMA)
Name = ValueType(_check_name, {"type": "string", "pattern": f"^{_NAME_PATTERN.pattern}$"})
StageName = ValueType(_check_stage_name, {"type": "string", "pattern": f"^{_NAME_PATTERN.pattern}$"})
Fuse = ValueType(_check_fuse, {"anyOf": [{"type": "boolean"}, {"const": "auto"}]})
Cpus = ValueType(_parse_cpus, _CPUS_SCHEMA)
Device = ValueType(_check_device, {"type": "string", "pattern": f"^({_DEVICE_PATTERN.pattern})$"})
Environment = ValueType(_check_environment, _ENV_SCHEMA)
Modules = ValueType(_check_modules, {"type": ["string", "array"], "items": {"type": "string"}})
MaxSkipped = ValueType(_parse_max_skipped, {"type": ["integer", "string"]})
FieldSelection = ValueType(_check_field_selection, _FIELD_SCHEMA)
FieldName = ValueType(_check_field_name, {"type": "string", "minLength": 1})
Arguments = MAPPING
Uses = ValueType(_check_uses, {"type": "string", "minLength": 1})
SourceUses = ValueType(_check_source_uses, {"type": "string", "minLength": 1})
When = ValueType(check_condition, CONDITION_SCHEMA)
StageCache = ValueType(check_cache, CACHE_SCHEMA)
TracePath = ValueType(check_trace_path, TRACE_SCHEMA)
Address = ValueType(check_address, ADDRESS_SCHEMA)
Engine = ValueType(check_engine, ENGINE_SCHEMA)
Resources = ValueType(check_resources, RESOURCES_SCHEMA)
Workers = ValueType(check_workers, WORKERS_SCHEMA)
Version = ValueType(_check_version, {"const": 1})
