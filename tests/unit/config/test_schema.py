"""The JSON Schema has every key, with a description."""

import json
from dataclasses import replace

from stagepipe.config import build_json_schema, load


def test_every_key_is_described():
    schema = build_json_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    for model in (schema, *schema["$defs"].values()):
        assert model["additionalProperties"] is False
        assert all(value["description"] for value in model["properties"].values())


def test_every_key_accepts_a_reference():
    assert {"type": "string", "pattern": r"\$\{"} in build_json_schema()["properties"]["window"]["anyOf"]


def test_the_schema_is_the_expected_one(golden):
    """Editors complete and check configs with it, so a changed key shows as a difference here."""
    golden("schema.json", json.dumps(build_json_schema(), indent=2) + "\n")


def find_defaults(keys, *skipped):
    return {
        key: value["default"] for key, value in keys.items() if value.get("default") is not None and key not in skipped
    }


def test_a_config_that_writes_out_every_default_means_the_same():
    schema = build_json_schema()
    models = {name: model["properties"] for name, model in schema["$defs"].items()}
    stage = {"name": "a", "uses": abs, "batch": {"size": 2}}
    short = {"name": "p", "source": {"uses": range(3)}, "stages": [stage]}
    batch = {"size": 2, **find_defaults(models["BatchModel"])}
    full = {**short, **find_defaults(schema["properties"], "name", "stages")}
    full["stages"] = [{**stage, **find_defaults(models["StageModel"]), "batch": batch}]
    assert batch["max_wait"] == "0.02s"
    specs = [replace(load(config), config_sha256="", source_sha256="") for config in (short, full)]
    assert specs[0] == specs[1]
