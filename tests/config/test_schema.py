"""The JSON Schema knows every key, with a description."""

from stagepipe.config import schema


def test_every_key_is_described():
    made = schema()
    assert made["$schema"].endswith("2020-12/schema")
    for model in (made, *made["$defs"].values()):
        assert model["additionalProperties"] is False
        assert all(value["description"] for value in model["properties"].values())


def test_the_designs_keys_are_there():
    made = schema()
    top = "version name extends vars seed order window memory max_restarts max_skipped source stages sink transport"
    stage = "name uses with workers threads cpus device env timeout start_timeout retries on_error stateful transport"
    assert {*top.split(), "report", "engine"} == set(made["properties"])
    assert {*stage.split(), "fuse", "field", "as", "batch", "mutable", "reseed"} == set(
        made["$defs"]["StageModel"]["properties"]
    )


def test_a_reference_stands_for_any_value():
    assert {"type": "string", "pattern": r"\$\{"} in schema()["properties"]["window"]["anyOf"]
