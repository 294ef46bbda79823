"""`stagepipe list`: names in any form, JSON, and the hint for a wrong name."""

import json
import runpy
import sys

import pytest

from tests.support.command import call_here


def test_all_kinds_are_listed_with_their_summaries():
    called = call_here("list")
    assert called.exit_code == 0
    for part in ("stagepipe.sources", "  jsonl", "image.Resize", "stagepipe.sinks", "Yield the value of each"):
        assert part in called.stdout


def test_kind_limits_the_list():
    entries = json.loads(call_here("list", "sinks", "--json").stdout)
    assert {entry["kind"] for entry in entries} == {"sink"}
    assert "stagepipe.sinks.parquet" in {entry["uses"] for entry in entries}


@pytest.mark.parametrize(
    "words",
    [("image.Resize",), ("stages", "resize"), ("stagepipe.stages.image.Resize",), ("stages.image.Resize",)],
)
def test_name_shows_arguments_and_an_example(words):
    called = call_here("list", *words)
    assert called.exit_code == 0
    assert "stagepipe.stages.image.Resize" in called.stdout
    assert "required" in called.stdout
    assert "  - {name: resize, uses: stagepipe.stages.image.Resize, with: {size: 224}}" in called.stdout


def test_a_module_lists_its_stages():
    entries = json.loads(call_here("list", "stagepipe.stages.image", "--json").stdout)
    assert entries == json.loads(call_here("list", "image", "--json").stdout)
    assert "image.Resize" in {entry["name"] for entry in entries}
    assert all(entry["name"].startswith("image.") for entry in entries)


def test_json_of_a_name_has_types_and_defaults():
    [entry] = json.loads(call_here("list", "Shuffle", "--json").stdout)
    assert entry["arguments"] == [
        {
            "name": "size",
            "type": "a whole number",
            "required": True,
            "description": "items in a block, such as `1000`, which are all in memory at once.",
        }
    ]
    [entry] = json.loads(call_here("list", "files", "--json").stdout)
    assert {a["name"]: a.get("default") for a in entry["arguments"]}["labels"] == "none"


def test_name_of_two_kinds_shows_both():
    called = call_here("list", "jsonl")
    assert "stagepipe.sources.jsonl" in called.stdout
    assert "stagepipe.sinks.jsonl" in called.stdout


@pytest.mark.parametrize(
    "words, hint",
    [
        (("jsnl",), "did you mean `jsonl`?"),
        (("sinks", "Batch"), "write `stagepipe list stages Batch`"),
        (("xyz123",), "`stagepipe list` prints all names"),
        (("sources", "csv", "jsonl"), "give a kind (sources, stages, sinks), a name, or both"),
    ],
)
def test_wrong_name_exits_2_with_a_hint(words, hint):
    called = call_here("list", *words)
    assert called.exit_code == 2
    assert hint in called.stderr


def test_python_runs_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["stagepipe", "list", "sinks"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("stagepipe", run_name="__main__")
    assert not ended.value.code
    assert "stagepipe.sinks" in capsys.readouterr().out
