"""Makes a pydantic model of each mapping of a config from the keys of its spec. Pure.

The JSON Schema is built from the models. Runs in the process that loads the config.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Final, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, Strict, create_model

from stagepipe.config.schema import fields
from stagepipe.spec import (
    BatchSpec,
    KeyField,
    PipelineSpec,
    ReportSpec,
    SourceSpec,
    StageSpec,
    Target,
    TransportSpec,
    iter_keys,
)


class ConfigModel(BaseModel):
    """A mapping of a config. Its fields have the names and the values of its spec; keys are their aliases."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)
    spec_type: ClassVar[type[Any]]

    def to_spec(self, **others: Any) -> Any:
        """Make the spec. `others` are its fields that are no keys."""
        values = {name: _to_spec_value(value) for name, value in self if name not in _FileModel.model_fields}
        if self.spec_type is not Target and "uses" in values:
            values["target"] = Target(values.pop("uses"), values.pop("arguments"))
        return self.spec_type(**values, **others)


class _FileModel(ConfigModel):
    """The keys that belong to the file: loading resolves them, so the spec has none of them."""

    version: fields.Version = Field(default=1, description="Version of this format: 1.")
    extends: str | None = Field(
        default=None, description="Base file that this file is merged over, relative to this file."
    )
    variables: dict[Any, Any] = Field(
        alias="vars", default_factory=dict, description="Values for ${vars.name}; ${env:NAME,default} works everywhere."
    )


def _to_spec_value(value: Any) -> Any:
    if isinstance(value, tuple) and all(isinstance(item, ConfigModel) for item in value):
        return tuple(item.to_spec() for item in value)
    return value.to_spec() if isinstance(value, ConfigModel) else value


_model_by_spec: Final[dict[Any, type[ConfigModel]]] = {}


def _make_model(spec_type: type[Any], base: type[ConfigModel] = ConfigModel, **value_types: Any) -> type[ConfigModel]:
    """Make the model of a spec whose inner specs have theirs. `value_types` replace the types of its fields."""
    definitions: dict[str, Any] = {
        key.field.name: (value_types.get(key.field.name) or _get_value_type(key), _make_field(key))
        for key in iter_keys(spec_type)
    }
    model = create_model(
        f"{spec_type.__name__.removesuffix('Spec')}Model",
        __base__=base,
        __doc__=(spec_type.__doc__ or "").partition("\n")[0],
        __module__=__name__,
        **definitions,
    )
    model.spec_type = spec_type
    _model_by_spec[spec_type] = model
    return model


def _make_field(key: KeyField) -> Any:
    default = {
        name: getattr(key.field, name)
        for name in ("default", "default_factory")
        if getattr(key.field, name) is not dataclasses.MISSING
    }
    if dataclasses.is_dataclass(default.get("default")):
        default["default"] = _model_by_spec[type(default["default"])]()
    # A config gives a duration in seconds or with its unit; the model's own default is in ns.
    is_duration = key.info.value_type == "Duration" and default.get("default") is not None
    schema: Any = {"default": f"{default['default'] / 1e9:g}s"} if is_duration else None
    return Field(**default, alias=key.key, description=key.info.description, json_schema_extra=schema)


def _get_value_type(key: KeyField) -> Any:
    if key.info.value_type is not None:
        value_type = getattr(fields, key.info.value_type)
    elif key.info.minimum is not None:
        keyword = "auto" if key.accepts_auto else None
        value_type = fields.bounded_int(key.info.minimum, key.info.maximum, keyword=keyword)
    else:
        return reduce(or_, map(_to_model_type, key.types))
    return value_type | None if key.is_optional else value_type


def _to_model_type(hint: Any) -> Any:
    """Replace a spec by its model. A tuple of specs accepts a list."""
    if get_origin(hint) is tuple:
        item_type: Any = _model_by_spec[get_args(hint)[0]]
        return Annotated[tuple[item_type, ...], Strict(strict=False)]
    return _model_by_spec.get(hint, hint)


_make_model(Target)
_make_model(SourceSpec, uses=fields.SourceUses)
_make_model(BatchSpec)
_make_model(StageSpec)
_make_model(TransportSpec)
_make_model(ReportSpec)
PipelineModel: Final = _make_model(PipelineSpec, _FileModel)


def _find_models(model: type[ConfigModel], path: str) -> Iterator[tuple[str, type[ConfigModel]]]:
    yield path, model
    for key in iter_keys(model.spec_type):
        for value_type in key.types:
            is_list = get_origin(value_type) is tuple
            inner_model = _model_by_spec.get(get_args(value_type)[0] if is_list else value_type)
            if inner_model is not None:
                yield from _find_models(inner_model, f"{path}.{key.key}".lstrip(".") + "[]" * is_list)


MODEL_BY_MAPPING_PATH: Final = dict(_find_models(PipelineModel, ""))
"""The mappings of a config that have fixed keys, by path; `stages[]` is an entry of `stages`."""
