"""Makes a model of each mapping of a config from the keys of its spec. Pure.

Configs are checked against the models, and the JSON Schema is built from them. Runs in the process that loads the
config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Final, Literal, get_args, get_origin

from stagepipe.config.schema import fields
from stagepipe.config.schema.value_types import BOOLEAN, MAPPING, TEXT, ValueType, bounded_int, make_choice
from stagepipe.spec import (
    BatchSpec,
    EngineSpec,
    KeyField,
    PipelineSpec,
    ReportSpec,
    SinkSpec,
    SourceSpec,
    StageSpec,
    TransportSpec,
    iter_keys,
)


@dataclass(frozen=True, kw_only=True)
class KeyModel:
    """One key: the field of the spec that it sets, and what it accepts.

    `is_list`: a list of such values; with `accepts_one`, also a single one. `default` is as a config writes it; MISSING
    if there is none to show.
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


_FILE_KEYS: Final = {
    "version": KeyModel(
        field_name="version", description="Version of this format: 1.", value_type=fields.Version, default=1
    ),
    "extends": KeyModel(
        field_name="extends",
        description="Base file that this file is merged over, relative to this file.",
        value_type=TEXT,
        is_optional=True,
        default=None,
    ),
    "vars": KeyModel(
        field_name="variables",
        description="Values for ${vars.name}; ${env:NAME,default} works everywhere.",
        value_type=MAPPING,
        default=MISSING,
    ),
}
"""The keys that belong to the file: loading resolves them, so the spec has none of them."""
FILE_FIELDS: Final = frozenset(key.field_name for key in _FILE_KEYS.values())
_model_by_spec: Final[dict[Any, MappingModel]] = {}


def _make_model(
    spec_type: type[Any], first_keys: Mapping[str, KeyModel] | None = None, **value_types: ValueType
) -> MappingModel:
    """Make the model of a spec whose inner specs have theirs. `value_types` replace the types of its fields."""
    own_keys = {key.key: _make_key(key, value_types.get(key.field.name)) for key in iter_keys(spec_type)}
    model = _model_by_spec[spec_type] = MappingModel(spec_type, {**(first_keys or {}), **own_keys})
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
        value_type: ValueType = getattr(fields, key.info.value_type)
        return value_type if key.info.minimum is None else fields.require_positive(value_type)
    if key.info.minimum is not None:
        return bounded_int(key.info.minimum, key.info.maximum, keyword="auto" if key.accepts_auto else None)
    if get_origin(hint) is Literal:
        return make_choice(get_args(hint))
    return {bool: BOOLEAN, str: TEXT}.get(hint) or _model_by_spec[hint]


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
_make_model(SourceSpec, uses=fields.SourceUses)
for _inner_spec in (StageSpec, SinkSpec, TransportSpec, ReportSpec):
    _make_model(_inner_spec)
PIPELINE_MODEL: Final = _make_model(PipelineSpec, _FILE_KEYS)


def _find_models(model: MappingModel, path: str) -> Iterator[tuple[str, MappingModel]]:
    yield path, model
    for name, key in model.keys.items():
        if isinstance(key.value_type, MappingModel):
            inner_path = f"{path}.{name}".lstrip(".")
            if key.accepts_one:
                yield from _find_models(key.value_type, inner_path)
            yield from _find_models(key.value_type, inner_path + "[]" * key.is_list)


MODEL_BY_MAPPING_PATH: Final = dict(_find_models(PIPELINE_MODEL, ""))
"""The mappings of a config that have fixed keys, by path; `stages[]` is an entry of `stages`."""
