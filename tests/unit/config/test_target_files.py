"""The files with the code of a config's targets: of import paths, of objects from Python, and of what they hold."""

import functools
import sys
import types
from pathlib import Path

import pytest

from stagepipe import defer
from stagepipe.config import NoFileError, find_target_files, load
from tests.support import bad_stages, stages
from tests.support.pipelines import pipeline, stage

STAGES = Path(stages.__file__)
BAD_STAGES = Path(bad_stages.__file__)


def files(*entries, **keys):
    """The names of the files, without those of built-in sources and stages."""
    found = find_target_files(load(pipeline(*entries, **keys)))
    return {file for file in found if "stagepipe" not in file.parent.parts[-2:]}


def here(value, more=()):
    return value, more


@pytest.mark.parametrize(
    "uses",
    [
        "tests.support.stages.double",
        "tests.support.stages:double",
        str(STAGES) + ":double",
        stages.double,
        functools.partial(stages.double),
        defer(stages.Echo),
    ],
    ids=["dots", "colon", "path", "function", "partial", "defer"],
)
def test_a_target_in_any_form_has_the_file_that_defines_it(uses):
    assert files({"name": "a", "uses": uses}) == {STAGES}


def test_each_file_is_listed_once_with_those_of_nested_targets():
    nested = {"uses": "tests.support.stages.double", "with": {}}
    entries = stage("double"), {"name": "b", "uses": functools.partial(here, more=[nested, bad_stages.raises])}
    assert files(*entries) == {STAGES, BAD_STAGES, Path(__file__)}


def test_the_items_of_a_list_are_no_targets_and_have_no_file():
    assert files(stage("double"), source={"uses": [bad_stages.raises, here]}) == {STAGES}


def test_code_of_an_interactive_session_has_no_file(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    cell = types.FunctionType(here.__code__, {"__name__": "__main__"}, "cell", here.__defaults__)
    with pytest.raises(NoFileError):
        files({"name": "a", "uses": cell})
