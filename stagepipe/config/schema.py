"""Defines the accepted configs: the keys of the specs, the types of their values, and the JSON Schema.

The models are made from the fields of the specs. They check configs, and report all mistakes at once. The JSON Schema
is built from them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from enum import Enum
from functools import partial
from types import GeneratorType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from stagepipe.config.value_types import (
    ADDRESS_SCHEMA,
    BOOLEAN,
    CACHE_SCHEMA,
    CONDITION_SCHEMA,
    MAPPING,
    RESOURCES_SCHEMA,
    TEXT,
    TRACE_SCHEMA,
    WORKERS_SCHEMA,
    InvalidValueError,
    ValueType,
    bounded_int,
    check_address,
    check_cache,
    check_condition,
    check_engine,
    check_resources,
    check_text,
    check_trace_path,
    check_workers,
    format_value,
    make_boolean_hint,
    make_choice,
    make_engine_schema,
    make_unexpected,
)
from stagepipe.core import parse_bytes, parse_duration_ns
from stagepipe.spec import (
    BatchSpec,
    ConfigKey,
    EngineSpec,
    KeyField,
    PipelineSpec,
    ReportSpec,
    SinkSpec,
    SourceSpec,
    StageSpec,
    Target,
    TransportMode,
    TransportSpec,
    WorkerRange,
    iter_keys,
)

_CPU_RANGE_PATTERN: Final = re.compile(r"\s*([0-9]{1,5})\s*(?:-\s*([0-9]{1,5})\s*)?")
_PERCENT_PATTERN: Final = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%\s*")
_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED_STAGE_NAMES: Final = {"source": "the source", "sink": "the sink"}
_DEVICE_PATTERN: Final = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
_MAX_CPU_COUNT: Final = 65536


def _check_fuse(value: Any) -> Any:
    if isinstance(value, bool) or value == "auto":
        return value
    raise make_unexpected("true or false, or `auto`", value, make_boolean_hint(value))


def _parse_size_bytes(value: Any) -> int | None:
    return None if value == "auto" else parse_bytes(value)


def _require_positive(value_type: ValueType) -> ValueType:
    """Return the type of a size or a duration above 0: a 0 might mean no limit, or the default."""

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
    name = check_text("a name", value, is_filled=False)
    if not _NAME_PATTERN.fullmatch(name):
        raise InvalidValueError(
            f"the name `{name}` has characters other than letters, digits, `_` and `-`", _name_hint(name)
        )
    return name


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
        raise make_unexpected("a mapping of names to strings", value, 'write {MY_FLAG: "1"}')
    for name, setting in value.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise InvalidValueError(f"{format_value(name)} is not a valid environment variable name")
        if (not isinstance(setting, str | int) or isinstance(setting, bool)) or "\0" in str(setting):
            message = f"`{name}`: expected a string, found {format_value(setting)}"
            raise InvalidValueError(message, f'quote it: {name}: "..."')
    return {name: str(setting) for name, setting in value.items()}


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
        raise make_unexpected("a count or a percentage such as 1%", value)
    return float(percent[1]) / 100


def _check_field_selection(value: Any) -> str | dict[str, str]:
    if isinstance(value, str) and value:
        return value
    is_mapping = isinstance(value, dict) and bool(value)
    if is_mapping and all(isinstance(k, str) and k.isidentifier() and isinstance(v, str) for k, v in value.items()):
        return dict(value)
    raise make_unexpected("a field name, or arguments and their fields such as {img: image}", value)


def _check_uses(value: Any, python_hint: str = "a function or a class") -> Any:
    if isinstance(value, str) and value.strip():
        return value
    if value is None or isinstance(value, str | bool | int | float | list | tuple | dict):
        raise make_unexpected(
            "an import path", value, f"write pkg.module.name or ./file.py:name; in Python also {python_hint}"
        )
    return value


def _check_source_uses(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, Iterator):
        kind = "a generator object" if isinstance(value, GeneratorType) else f"an iterator ({_type_name(value)})"
        message = f"{kind} cannot be sent to the source's process"
        raise InvalidValueError(message, "pass the function that creates it, without calling it")
    hint = "a function that returns an iterable, or an object with __len__ and __getitem__"
    value = _check_uses(value, hint)
    if not (callable(value) or hasattr(type(value), "__iter__") or hasattr(type(value), "__getitem__")):
        raise make_unexpected("a source of items", value, f"pass {hint}")
    return value


def _type_name(value: Any) -> str:
    return type(value).__qualname__


def _check_version(value: Any) -> int:
    if value == 1 and not isinstance(value, bool):
        return 1
    raise InvalidValueError(f"unknown format version {value}", "write `version: 1`")


_SIZE_SCHEMA: Final = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}
_DURATION_SCHEMA: Final = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}
_CPUS_SCHEMA: Final = {"type": ["integer", "string", "array"], "items": {"type": ["integer", "string"]}}
_ENV_SCHEMA: Final = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
_FIELD_SCHEMA: Final = {"type": ["string", "object"], "additionalProperties": {"type": "string"}}

VALUE_TYPES: Final[dict[str, ValueType]] = {
    "Size": ValueType(_parse_size_bytes, _SIZE_SCHEMA),
    "Duration": ValueType(parse_duration_ns, _DURATION_SCHEMA),
    "Name": ValueType(_check_name, {"type": "string", "pattern": f"^{_NAME_PATTERN.pattern}$"}),
    "StageName": ValueType(_check_stage_name, {"type": "string", "pattern": f"^{_NAME_PATTERN.pattern}$"}),
    "Fuse": ValueType(_check_fuse, {"anyOf": [{"type": "boolean"}, {"const": "auto"}]}),
    "Cpus": ValueType(_parse_cpus, _CPUS_SCHEMA),
    "Device": ValueType(_check_device, {"type": "string", "pattern": f"^({_DEVICE_PATTERN.pattern})$"}),
    "Environment": ValueType(_check_environment, _ENV_SCHEMA),
    "Modules": ValueType(_check_modules, {"type": ["string", "array"], "items": {"type": "string"}}),
    "MaxSkipped": ValueType(_parse_max_skipped, {"type": ["integer", "string"]}),
    "FieldSelection": ValueType(_check_field_selection, _FIELD_SCHEMA),
    "FieldName": ValueType(partial(check_text, "a field name"), {"type": "string", "minLength": 1}),
    "Arguments": MAPPING,
    "Uses": ValueType(_check_uses, {"type": "string", "minLength": 1}),
    "SourceUses": ValueType(_check_source_uses, {"type": "string", "minLength": 1}),
    "When": ValueType(check_condition, CONDITION_SCHEMA),
    "StageCache": ValueType(check_cache, CACHE_SCHEMA),
    "TracePath": ValueType(check_trace_path, TRACE_SCHEMA),
    "Address": ValueType(check_address, ADDRESS_SCHEMA),
    "Engine": ValueType(check_engine, make_engine_schema),
    "Resources": ValueType(check_resources, RESOURCES_SCHEMA),
    "Workers": ValueType(check_workers, WORKERS_SCHEMA),
    "Version": ValueType(_check_version, {"const": 1}),
}
"""The types that `ConfigKey.value_type` names."""


@dataclass(frozen=True, kw_only=True)
class KeyModel:
    """One key: the field of the spec that it sets, and the accepted values.

    `is_list`: a list of values; with `accepts_one`, also a single value. `default` is in config form; MISSING if there
    is none to show.
    """

    field_name: str
    description: str
    value_type: ValueType | MappingModel
    is_list: bool = False
    accepts_one: bool = False
    is_optional: bool = False
    is_required: bool = False
    default: Any


@dataclass(frozen=True)
class MappingModel:
    """A mapping with fixed keys, which becomes a spec."""

    spec_type: type[Any]
    keys: Mapping[str, KeyModel]

    @property
    def name(self) -> str:
        """Its name in the JSON Schema."""
        return f"{self.spec_type.__name__.removesuffix('Spec')}Model"


@dataclass(frozen=True)
class _FileSpec:
    """The keys that belong to the file. Loading resolves them, so the spec of a pipeline does not have them."""

    version: Annotated[int, ConfigKey("Version of the config format: 1.", value_type="Version")] = 1
    extends: Annotated[
        str | None, ConfigKey("Path of the base file over which this file is merged, relative to this file.")
    ] = None
    variables: Annotated[
        Mapping[str, Any],
        ConfigKey(
            "Values for `${vars.name}`. `${env:NAME,default}` works everywhere.", name="vars", value_type="Arguments"
        ),
    ] = dataclasses.field(default_factory=dict)


_model_by_spec: Final[dict[Any, MappingModel]] = {}


def _make_model(spec_type: type[Any], *more: type[Any], **value_types: ValueType) -> MappingModel:
    """Make the model of a spec; its inner specs must have models. `value_types` replace the types of its fields.

    The keys of the specs `more` come before its own.
    """
    keys = [key for each in (*more, spec_type) for key in iter_keys(each)]
    model_keys = {key.key: _make_key(key, value_types.get(key.field.name)) for key in keys}
    model = _model_by_spec[spec_type] = MappingModel(spec_type, model_keys)
    return model


def _make_key(key: KeyField, value_type: ValueType | None) -> KeyModel:
    own_types = [member for member in key.types if member is not type(None)]
    is_list = get_origin(own_types[0]) is tuple and key.info.value_type is None
    return KeyModel(
        field_name=key.field.name,
        description=key.info.description,
        value_type=value_type or _find_value_type(key, get_args(own_types[0])[0] if is_list else own_types[0]),
        is_list=is_list,
        accepts_one=key.info.is_one_or_list,
        is_optional=key.is_optional,
        is_required=key.field.default is MISSING and key.field.default_factory is MISSING,
        default=_write_default(key),
    )


def _find_value_type(key: KeyField, hint: Any) -> ValueType | MappingModel:
    if key.info.value_type is not None:
        value_type = VALUE_TYPES[key.info.value_type]
        return value_type if key.info.minimum is None else _require_positive(value_type)
    if key.info.minimum is not None:
        return bounded_int(key.info.minimum, key.info.maximum, keyword="auto" if key.accepts_auto else None)
    if get_origin(hint) is Literal:
        return make_choice(get_args(hint), _list_transports if hint == TransportMode else tuple)
    return {bool: BOOLEAN, str: TEXT}.get(hint) or _model_by_spec[hint]


def _list_transports() -> tuple[str, ...]:
    from stagepipe.transport import list_transports  # it imports NumPy, which most checks do not need

    return list_transports()


def _write_default(key: KeyField) -> Any:
    default = key.field.default
    if isinstance(default, EngineSpec):
        return str(default)
    if dataclasses.is_dataclass(default):
        return {inner.key: getattr(default, inner.field.name) for inner in iter_keys(type(default))}
    if key.info.value_type == "Duration" and isinstance(default, int):
        return f"{default / 1e9:g}s"
    return list(default) if isinstance(default, tuple) else default


_make_model(BatchSpec)
_make_model(SourceSpec, uses=VALUE_TYPES["SourceUses"])
for _inner_spec in (StageSpec, SinkSpec, TransportSpec, ReportSpec):
    _make_model(_inner_spec)
_SPEC_FIELDS: Final = frozenset(PipelineSpec.__dataclass_fields__)
PIPELINE_MODEL: Final = _make_model(PipelineSpec, _FileSpec)


def _find_models(model: MappingModel, path: str) -> Iterator[tuple[str, MappingModel]]:
    yield path, model
    for name, key in model.keys.items():
        if isinstance(key.value_type, MappingModel):
            inner_path = f"{path}.{name}".lstrip(".")
            if key.accepts_one:
                yield from _find_models(key.value_type, inner_path)
            yield from _find_models(key.value_type, inner_path + "[]" * key.is_list)


MODEL_BY_MAPPING_PATH: Final = dict(_find_models(PIPELINE_MODEL, ""))
"""The mappings of a config with fixed keys, by path; `stages[]` is an entry of `stages`."""


ConfigPath = tuple[Any, ...]
"""Keys and indices from the top of a config to a value."""


class MistakeKind(Enum):
    """The kind of a mistake at a path."""

    UNKNOWN_KEY = "unknown key"
    MISSING_KEY = "missing key"
    BAD_VALUE = "bad value"


@dataclass(frozen=True)
class Mistake:
    """One mistake. For a bad value, `cause` is the reason."""

    kind: MistakeKind
    path: ConfigPath
    cause: ValueError | None = None


def check_pipeline(
    value: Any, derived_fields: Mapping[ConfigPath, Mapping[str, Any]] | None = None
) -> tuple[dict[str, Any], list[Mistake]]:
    """Return the fields of a PipelineSpec that a config sets, and all mistakes. With mistakes, fields are missing.

    `derived_fields` are the fields of inner specs that no key sets, by path.

    >>> check_pipeline({"source": {"uses": "itertools.count"}, "window": 8})[0]["window"]
    8
    >>> check_pipeline({"source": {"uses": "itertools.count"}, "windw": 8})[1][0].kind.value
    'unknown key'
    """
    checker = _Checker(derived_fields or {})
    values = checker.check_mapping(PIPELINE_MODEL, value, ())
    return {name: value for name, value in values.items() if name in _SPEC_FIELDS}, checker.mistakes


class _Checker:
    """Makes specs from plain values, and collects the mistakes in them."""

    def __init__(self, derived_fields: Mapping[ConfigPath, Mapping[str, Any]]) -> None:
        self.mistakes: list[Mistake] = []
        self._derived_fields = derived_fields

    def check_mapping(self, model: MappingModel, value: Any, path: ConfigPath) -> dict[str, Any]:
        """Return the fields of the model's spec that a mapping sets."""
        if not isinstance(value, dict):
            self._add_bad_value(path, make_unexpected("a mapping", value))
            return {}
        values = {}
        for name, key in model.keys.items():
            if name in value:
                values[key.field_name] = self._check_key(key, value[name], (*path, name))
            elif key.is_required:
                self.mistakes.append(Mistake(MistakeKind.MISSING_KEY, (*path, name)))
        self.mistakes += [Mistake(MistakeKind.UNKNOWN_KEY, (*path, name)) for name in value if name not in model.keys]
        return values

    def _check_key(self, key: KeyModel, value: Any, path: ConfigPath) -> Any:
        if not key.is_list:
            return self._check_value(key.value_type, value, path)
        if not isinstance(value, list) and key.accepts_one:
            return (self._check_value(key.value_type, value, path),)
        if not isinstance(value, list):
            self._add_bad_value(path, make_unexpected("a list", value))
            return ()
        return tuple(self._check_value(key.value_type, item, (*path, index)) for index, item in enumerate(value))

    def _check_value(self, value_type: ValueType | MappingModel, value: Any, path: ConfigPath) -> Any:
        if isinstance(value_type, MappingModel):
            values = self.check_mapping(value_type, value, path)
            return None if self.mistakes else self._make_spec(value_type.spec_type, values, path)
        try:
            return value_type.check(value)
        except ValueError as error:
            self._add_bad_value(path, error)
            return None

    def _add_bad_value(self, path: ConfigPath, error: ValueError) -> None:
        self.mistakes.append(Mistake(MistakeKind.BAD_VALUE, (*path, *getattr(error, "inner_path", ())), error))

    def _make_spec(self, spec_type: type[Any], values: dict[str, Any], path: ConfigPath) -> Any:
        """Make a spec. The keys of its target are among its own.

        `fuse: auto` implies `workers: auto`, unless the config sets the workers. The reverse does not hold: a fused
        stage gets the very object of the stage before it, so a stage that changes its input could change an object that
        the source keeps.
        """
        if spec_type is not Target and "uses" in values:
            values["target"] = Target(values.pop("uses"), values.pop("arguments", {}))
        if values.get("fuse") == "auto":
            values.setdefault("workers", "auto")
        if isinstance(bounds := values.get("workers"), WorkerRange):
            values |= {"workers": "auto", "worker_bounds": bounds}
        return spec_type(**values, **self._derived_fields.get(path, {}))


SCHEMA_DIALECT_URL: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE_SCHEMA: Final = {"type": "string", "pattern": r"\$\{"}


def build_json_schema() -> dict[str, Any]:
    """Return the JSON Schema, Draft 2020-12. Every key also accepts a string with `${...}`.

    >>> build_json_schema()["properties"]["window"]["description"]
    'Items in flight, counted at the source.'
    """
    models = {model.name: model for model in MODEL_BY_MAPPING_PATH.values() if model is not PIPELINE_MODEL}
    definitions = {name: _describe_mapping(models[name]) for name in sorted(models)}
    schema = _describe_mapping(PIPELINE_MODEL)
    # A file with `extends` may omit required keys that its base has.
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["extends"]}]
    definitions["StageModel"]["required"] = ["name"]
    for target in ("SinkModel", "SourceModel"):
        definitions[target].pop("required")
    del schema["title"]
    return {"$schema": SCHEMA_DIALECT_URL, "title": "stagepipe pipeline", "$defs": definitions, **schema}


def _describe_mapping(model: MappingModel) -> dict[str, Any]:
    required = [name for name, key in model.keys.items() if key.is_required]
    return {
        "additionalProperties": False,
        "description": (model.spec_type.__doc__ or "").partition("\n")[0],
        "properties": {name: _describe_key(key) for name, key in model.keys.items()},
        **({"required": required} if required else {}),
        "title": model.name,
        "type": "object",
    }


def _describe_key(key: KeyModel) -> dict[str, Any]:
    annotations: dict[str, Any] = {"description": key.description}
    if key.default is not MISSING:
        annotations["default"] = key.default
    schema = _describe_value(key)
    if schema == {"type": "string"}:
        return {**annotations, **schema}
    return {**annotations, "anyOf": [schema, _REFERENCE_SCHEMA]}


def _describe_value(key: KeyModel) -> Mapping[str, Any]:
    if isinstance(key.value_type, MappingModel):
        reference = {"$ref": f"#/$defs/{key.value_type.name}"}
        schema: Mapping[str, Any] = {"items": reference, "type": "array"} if key.is_list else reference
        if key.accepts_one:
            schema = {"anyOf": [reference, schema]}
    else:
        schema = _sort_keys(key.value_type.json_schema)
    if not key.is_optional:
        return schema
    members = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
    return {"anyOf": [*members, {"type": "null"}]}


def _sort_keys(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {key: _sort_keys(schema[key]) for key in sorted(schema)}
    return [_sort_keys(member) for member in schema] if isinstance(schema, list) else schema
