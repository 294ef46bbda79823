"""Builds the JSON Schema of a config, for editors (`# yaml-language-server: $schema=...`). Pure.

Runs in the process of `stagepipe schema`.
"""

from __future__ import annotations

from typing import Any, Final

from stagepipe.config.schema.models import PipelineModel

SCHEMA_DIALECT_URL: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE_SCHEMA: Final = {"type": "string", "pattern": r"\$\{"}


def build_json_schema() -> dict[str, Any]:
    """Return the JSON Schema, Draft 2020-12. Every key also accepts a string with `${...}`.

    >>> build_json_schema()["properties"]["window"]["description"]
    'Items in flight, counted at the source.'
    """
    schema = PipelineModel.model_json_schema(by_alias=True)
    for model in (schema, *schema["$defs"].values()):
        model["properties"] = {key: _allow_reference(value) for key, value in model["properties"].items()}
    # A file with `extends` may leave the required keys to its base.
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["extends"]}]
    schema["$defs"]["StageModel"]["required"] = ["name"]
    for target in ("TargetModel", "SourceModel"):
        schema["$defs"][target].pop("required")
    return {
        "$schema": SCHEMA_DIALECT_URL,
        "title": "stagepipe pipeline",
        **{k: v for k, v in schema.items() if k != "title"},
    }


def _allow_reference(property_schema: dict[str, Any]) -> dict[str, Any]:
    annotations: dict[str, Any] = {
        key: property_schema[key] for key in ("description", "default") if key in property_schema
    }
    value_schema = {key: inner for key, inner in property_schema.items() if key not in {*annotations, "title"}}
    if value_schema == {"type": "string"}:
        return {**annotations, **value_schema}
    return {**annotations, "anyOf": [value_schema, _REFERENCE_SCHEMA]}
