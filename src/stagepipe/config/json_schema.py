"""The JSON Schema of a config, for editors (`# yaml-language-server: $schema=...`). Pure."""

from __future__ import annotations

from typing import Any, Final

from stagepipe.config.models import PipelineModel

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: Final = {"type": "string", "pattern": r"\$\{"}


def schema() -> dict[str, Any]:
    """The schema, Draft 2020-12. Every key takes a text with `${...}` in place of its own type.

    >>> schema()["properties"]["window"]["description"]
    'Items in flight, counted at the source.'
    """
    made = PipelineModel.model_json_schema(by_alias=True)
    for model in (made, *made["$defs"].values()):
        model["properties"] = {key: _or_reference(value) for key, value in model["properties"].items()}
    # A file that extends another may leave to it what every whole config has.
    made["anyOf"] = [{"required": made.pop("required")}, {"required": ["extends"]}]
    made["$defs"]["StageModel"]["required"] = ["name"]
    for target in ("TargetModel", "SourceModel"):
        made["$defs"][target].pop("required")
    return {"$schema": DIALECT, "title": "stagepipe pipeline", **{k: v for k, v in made.items() if k != "title"}}


def _or_reference(value: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {key: value[key] for key in ("description", "default") if key in value}
    rest = {key: inner for key, inner in value.items() if key not in {*kept, "title"}}
    return {**kept, **rest} if rest == {"type": "string"} else {**kept, "anyOf": [rest, _REFERENCE]}
