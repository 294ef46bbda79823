"""The files with the code of a config's targets: of import paths, of objects from Python, and of what they hold.

`validate` says which packages the targets of a config import and this machine lacks, and imports none of them.
"""

import functools
import sys
import types
from pathlib import Path

import pytest

from stagepipe import defer
from stagepipe.config import find_target_files, load
from stagepipe.config.source_code import ModuleLocator
from tests.support import bad_stages, stages
from tests.support.command import call_here
from tests.support.pipelines import pipeline, stage

STAGES = Path(stages.__file__)
BAD_STAGES = Path(bad_stages.__file__)


def files(*entries, **keys):
    """The names of the files, without those of built-in sources and stages."""
    spec = load(pipeline(*entries, **keys))
    found = find_target_files([spec.source.target, *(stage.target for stage in spec.stages)], spec.config_dir)
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
    assert files({"name": "a", "uses": cell}, stage("double")) == {STAGES}


CONFIG = """
name: p
source: {uses: stagepipe.sources.parquet, with: {path: "*.parquet"}}
stages:
  - {name: look, uses: lacking_ops.look}
sink: {uses: stagepipe.sinks.parquet, with: {path: out}}
"""
LACKING_OPS = """
import json
import lacking_helper
from lacking_package.image import resize
try:
    import optional_package
except ImportError:
    optional_package = None
raise RuntimeError("imported")

def look(item):
    import lazy_package
    return item

def other(item):
    import package_of_another
"""


@pytest.fixture
def lines(tmp_path, monkeypatch):
    (tmp_path / "p.yaml").write_text(CONFIG)
    (tmp_path / "lacking_ops.py").write_text(LACKING_OPS)
    (tmp_path / "lacking_helper.py").write_text("import os, cv2_of_helper\n")
    find = ModuleLocator.find
    monkeypatch.setattr(ModuleLocator, "find", lambda self, name: None if name == "pyarrow" else find(self, name))

    def validate(*arguments):
        done = call_here("validate", str(tmp_path / "p.yaml"), *arguments)
        return done.exit_code, done.output.replace(f"{tmp_path}/", "").splitlines()

    return validate


def test_missing_packages_are_notes_with_their_place_and_how_to_install_them(lines):
    code, shown = lines()
    assert code == 0
    assert shown[0].startswith("ok: p: ")
    assert set(shown[1:]) == {
        "note: source needs pyarrow, which is not installed: pip install 'pyarrow>=15'",
        "note: stage look: lacking_ops.py:4 needs lacking_package, which is not installed: pip install lacking_package",
        "note: stage look: lacking_helper.py:1 needs cv2_of_helper, which is not installed: pip install cv2_of_helper",
        "note: stage look: lacking_ops.py:12 needs lazy_package, which is not installed: pip install lazy_package",
    }
    assert "lacking_ops" not in sys.modules


def test_a_sink_that_lacks_its_package_is_named_too(lines):
    shown = lines("source={uses: stagepipe.sources.numbers, with: {count: 3}}")[1]
    assert "note: sink needs pyarrow, which is not installed: pip install 'pyarrow>=15'" in shown


def test_a_gpu_that_is_not_there_is_a_note(lines, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    has_note = [
        any("has `device: " in line for line in lines(f"stages.look.device={d}")[1]) for d in ("cuda", "cuda:1")
    ]
    assert has_note == [False, True]


def test_real_imports_run_in_a_child_and_are_reported_as_other_problems(lines):
    code, shown = lines("--import")
    assert code == 2
    assert shown == [
        "p.yaml:5:24: `lacking_ops.look` cannot be imported: ModuleNotFoundError: No module named 'cv2_of_helper'",
        "      - {name: look, uses: lacking_ops.look}",
        "                           ^",
        "1 problem",
    ]
    assert lines("--import", "stages.look.uses=os.path.basename")[0] == 0
