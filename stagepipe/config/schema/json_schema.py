"""Builds the JSON Schema of a config, for editors (`# yaml-language-server: $schema=...`). Pure.

Runs in the process of `stagepipe schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, Final

from stagepipe.config.schema.models import MODEL_BY_MAPPING_PATH, PIPELINE_MODEL, KeyModel, MappingModel

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
    # A file with `extends` may leave the required keys to its base.
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
