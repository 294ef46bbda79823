"""`validate` says which packages the targets of a config import and this machine lacks, and imports none of them."""

import sys

import pytest

from stagepipe.config.source_code import ModuleLocator
from tests.support.command import call_here

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
