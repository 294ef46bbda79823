"""An editor offers the builder's methods and every option with its description, and knows the type of the items.

The editor's side is the language server of pyright, as `basedpyright` ships it.
"""

import json
import sys

import pytest

from stagepipe.api import RunOptions, StageOptions
from tests.support.language_server import PythonLanguageServer
from tests.support.paths import ROOT

pytestmark = pytest.mark.timeout(120)
HEAD = """
from stagepipe import defer, from_source

def decode(path: str) -> bytes:
    return path.encode()

builder = from_source(["a.jpg"])
"""


@pytest.fixture(scope="module")
def editor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("editor")
    settings = {"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    with PythonLanguageServer(folder, python=sys.executable) as server:
        yield server


def keywords(items):
    return {label.removesuffix("=") for label in items if label.endswith("=")}


@pytest.mark.parametrize("call", ["map(decode, ", "filter(decode, ", "map_field('a', decode, ", "batch(len('ab'), "])
def test_every_stage_option_is_offered(editor, call):
    assert keywords(editor.complete(f"{HEAD}builder.{call}|)\n")) >= set(StageOptions.__annotations__)


def test_every_run_option_is_offered(editor):
    assert keywords(editor.complete(f"{HEAD}builder.with_options(|)\n")) == set(RunOptions.__annotations__)


@pytest.mark.parametrize(
    "option,description",
    [
        (
            "workers=2",
            "Number of processes. `auto`, `1-8` or `{min: 1, max: 8}`: stagepipe chooses it",
        ),
        ("timeout=3", "Maximum time per item, such as `30s`."),
        ("on_error='skip'", "writes the item to the dead letters"),
        ("fuse=True", "runs the stage in the previous stage's process"),
    ],
)
def test_an_option_has_its_description(editor, option, description):
    assert description in editor.hover(f"{HEAD}builder.map(decode, |{option})\n")


def test_the_values_of_an_option_are_offered(editor):
    assert {"'fail'", "'skip'"} <= set(editor.complete(f"{HEAD}builder.map(decode, on_error='|')\n"))


def test_the_methods_are_offered_with_their_documentation(editor):
    items = editor.complete(f"{HEAD}builder.|\n")
    public = {label for label in items if not label.startswith("_")}
    assert public >= {"map", "flat_map", "filter", "batch", "open", "run", "take", "to_yaml", "loader"}
    assert "Replace each item by the result of a function" in editor.describe(items["map"])


@pytest.mark.parametrize(
    "chain,item_type",
    [
        ("builder", "str"),
        ("builder.map(decode, workers=4)", "bytes"),
        ("builder.map(decode).filter(len)", "bytes"),
        ("builder.map(decode).flat_map(list)", "int"),
        ("builder.map(lambda path: len(path))", "int"),
        ("builder.map(decode).batch(64)", "Any"),
    ],
)
def test_a_hover_shows_the_type_of_the_items(editor, chain, item_type):
    assert f"PipelineBuilder[{item_type}]" in editor.hover(f"{HEAD}|found = {chain}\n")


def test_the_arguments_of_a_deferred_class_are_offered(editor):
    assert "denominator=" in editor.complete(f"{HEAD}from fractions import Fraction\ndefer(Fraction, len('a'), |)\n")
